"""What each precision_mode costs and gives: the time of a step in float32 over its time, with the error against float64 beside it.

A step is forward and backward pass of a whole network, in its faster memory format. Errors are those of the last weight's gradient,
over its largest value.

    python bench/precision.py --threads 1 --out RAW.json
    python bench/precision.py --summary RAW.json > bench/results/NAME-precision.json
    python bench/precision.py --docs bench/results/NAME-precision.json
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import contest
import figures
import summary
import torch
from layers import FORMATS
from networks import encoder, resnet50
from torch import nn

import msctx

MODES = (
    "force_fp16",
    "force_fp32",
    "allow_fp32_to_fp16",
    "allow_fp32_to_bf16",
    "allow_mix_precision_fp16",
    "allow_mix_precision_bf16",
    "must_keep_origin_dtype",
)
SCALE = 1024.0
"""Of the loss, as a GradScaler would: gradients in float16 must not vanish."""


def digits() -> nn.Module:
    """The ConvNet of configs/experiments/digits.py."""
    layers: list[nn.Module] = []
    for c, k in ((1, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10))


SUBJECTS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "digits": lambda: (digits(), torch.randn(64, 1, 8, 8)),
    "resnet50": lambda: (resnet50(), torch.randn(4, 3, 224, 224)),
    "transformer": lambda: (encoder(dropout=0.0), torch.randn(4, 128, 512)),
}


def gradient(model: nn.Module, x: torch.Tensor) -> Any:
    """One step; returns the last weight's gradient."""
    for p in model.parameters():
        p.grad = None
    y = model(x)
    y = y if y.dtype.itemsize == 8 else y.float()
    directions = torch.arange(y.numel(), dtype=y.dtype).sin().view_as(y)  # no sum that a normalization makes constant
    (y * directions).mean().mul(SCALE).backward()
    *_, weight = (p for p in model.parameters() if p.dim() > 1)
    return weight.grad


def measure(name: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    plain, x = SUBJECTS[name]()
    truth = gradient(copy.deepcopy(plain).double(), x.double())
    contenders, errors = [], {}
    for mode in ("float32", "again", *MODES):
        scope = nullcontext() if mode in ("float32", "again") else msctx.context(precision_mode=mode)
        for name, kind in FORMATS.items() if x.dim() == 4 else [("", torch.preserve_format)]:
            step = partial(gradient, copy.deepcopy(plain).to(memory_format=kind), x.contiguous(memory_format=kind))
            if mode not in errors:
                with scope:
                    errors[mode] = contest.error_of(step(), truth)
            contenders.append(contest.Contender(mode, name, lambda scope=scope: scope, lambda number, step=step: step()))
    return {"ms": contest.fastest(contenders, seconds), "errors": errors}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield {"subject": given.work, **measure(given.work, given.seconds)}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each step and number of threads."""
    rows = []
    for (subject, threads), found in summary.by(summary.every(results), "subject", "threads").items():
        ratios = {mode: figures.of(figures.ratios(found, mode, "float32")) for mode in ("again", *MODES)}
        ms = statistics.median(min(row["ms"]["float32"].values()) for row in found)
        rows.append({"subject": subject, "threads": threads, "ms": ms, "ratios": ratios, "errors": figures.errors(found)})
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each mode."""
    rows, processes = of["rows"], of["processes"]

    def cell(row: dict[str, Any], mode: str) -> str:
        shown = figures.text(row["ratios"][mode], None if mode == "again" else row["ratios"]["again"], processes)
        return shown if mode == "again" else f"{shown}, {row['errors'][mode]:.0e}"

    head = ["`precision_mode`", *(f"{row['subject']}, {summary.threads(row['threads'])}" for row in rows)]
    lines = [["none: float32", *(f"{row['ms']:.0f} ms, {row['errors']['float32']:.0e}" for row in rows)]]
    lines += [[f"`{mode}`", *(cell(row, mode) for row in rows)] for mode in MODES]
    lines += [["A/A", *(cell(row, "again") for row in rows)]]
    legend = figures.legend(processes, all("low" in row["ratios"]["again"] for row in rows))
    last = f"{summary.described(of)}; {processes} or more processes. {legend}"
    return {"precision-speed": summary.table(head, lines, last)}


def main() -> None:
    summary.do(contest.arguments(__doc__, SUBJECTS).parse_args(), SUBJECTS, work, reduced, tables)


if __name__ == "__main__":
    main()
