"""Trains the digits network once under each algorithm of convolution, from the same seed, and compares what they learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from digits import train as train_once

import msctx

ALGORITHMS = {
    "torch": {},
    "normal": {"fprop": "normal", "dgrad": "normal", "wgrad": "normal"},
    "performance": {"fprop": "performance", "dgrad": "performance", "wgrad": "performance"},
    "gemm": {"fprop": "gemm", "dgrad": "algo_1", "wgrad": "algo_1"},
    "implicit_gemm": {"fprop": "implicit_gemm", "dgrad": "algo_0", "wgrad": "algo_0"},
    "implicit_precomp_gemm": {"fprop": "implicit_precomp_gemm", "dgrad": "algo_1", "wgrad": "algo_3"},
    "direct": {"fprop": "direct", "dgrad": "algo_1", "wgrad": "algo_1"},
    "fft": {"fprop": "fft", "dgrad": "fft", "wgrad": "fft"},
    "fft_tiling": {"fprop": "fft_tiling", "dgrad": "fft_tiling", "wgrad": "fft_tiling"},
    "winograd": {"fprop": "winograd", "dgrad": "winograd", "wgrad": "winograd_nonfused"},
    "winograd_nonfused": {"fprop": "winograd_nonfused", "dgrad": "winograd_nonfused", "wgrad": "winograd_nonfused"},
    "reference": {"fprop": "reference", "dgrad": "reference", "wgrad": "reference"},
}
"""A name → the algorithm of each direction; what a direction does not have is replaced by its nearest."""
BY_DEFAULT = tuple(name for name in ALGORITHMS if name != "reference")  # minutes


def train(algorithms: Sequence[str] = BY_DEFAULT, epochs: int = 8, seed: int = 0, run: Any = None) -> dict[str, Any]:
    """Train under each of *algorithms*; returns name → test accuracy (0..1), and the widest difference between two."""
    accuracy: dict[str, float] = {}
    for name in run.progress(list(algorithms), "algorithms") if run else algorithms:
        torch.manual_seed(seed)
        options = {f"conv_{direction}_algo": value for direction, value in ALGORITHMS[name].items()}
        began = time.perf_counter()
        with msctx.context(**options, **({"fallback": "error"} if options else {})) as ctx:
            accuracy[name] = train_once(epochs=epochs)["test_accuracy"]
        ran = sorted({f"{row.direction}={row.ran}" for row in ctx.choices()})
        if run:
            run.log(algorithm=name, test_accuracy=accuracy[name], seconds=time.perf_counter() - began, ran=", ".join(ran))
    return {"test_accuracy": accuracy, "difference": max(accuracy.values()) - min(accuracy.values())}
