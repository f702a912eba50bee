"""What many entries do to the time and the memory of the next: each kind of context is entered over and over in one process.

`python bench/entries.py [--entries 100000] [--kind NAME …] [--json FILE]`. The first and the last twentieth are compared: the median
of their times as a ratio, and how much memory the process holds after each. It does nothing between the entries.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

import msctx

CONVS = {"conv_fprop_algo": "gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
MODEL = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.ReLU()) for _ in range(50)))
X = torch.ones(1, 1, 2, 2)

Kind = Callable[[], AbstractContextManager[object]]


class Calls:
    """A call of a bound function in place of a with-block."""

    def __init__(self, inside: msctx.Context) -> None:
        with inside:
            self.function = inside.bind(lambda: None)

    def __enter__(self) -> None:
        self.function()

    def __exit__(self, *_: object) -> None:
        pass


RULES = msctx.context(**CONVS, conv_algo_rules={"0.*": "direct"}, fallback="silent").watch(MODEL)
RECOMPUTED = msctx.context(memory_optimize_level="O1").watch(MODEL)
BOUND = Calls(msctx.context(deterministic="ON", **CONVS))
KINDS: dict[str, Kind] = {
    "nothing": msctx.context,
    "deterministic": lambda: msctx.context(deterministic="ON"),
    "threads": lambda: msctx.context(runtime_num_threads=1),
    "seed": lambda: msctx.context(seed=0, seed_scope=True),
    "algorithms": lambda: msctx.context(**CONVS),
    "precision": lambda: msctx.context(precision_mode="allow_mix_precision_bf16"),
    "cap": lambda: msctx.context(max_device_memory="1GB"),
    "one context, watched models": lambda: RULES,
    "O1, watched models": lambda: RECOMPUTED,
    "bound function": lambda: BOUND,
}


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def measured(kind: Kind, entries: int) -> dict[str, float]:
    part = max(1, entries // 20)
    times: list[list[float]] = []
    memory = []
    convolves = kind in (KINDS["algorithms"], KINDS["one context, watched models"])
    for number in range(entries):
        begun = time.perf_counter()
        with kind():
            entered = time.perf_counter() - begun
            if convolves and number % 100 == 0:  # so that there are rows to count
                MODEL[0](X)
            left = time.perf_counter()
        took = entered + time.perf_counter() - left
        if number % part == 0:
            times.append([])
            memory.append(resident())
        times[-1].append(took)
    first, last = statistics.median(times[0]), statistics.median(times[19])
    return {
        "entries": entries,
        "first_us": first * 1e6,
        "last_us": last * 1e6,
        "ratio": last / first,
        "grown_bytes": resident() - memory[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in given.kind or KINDS:
        found[name] = measured(KINDS[name], given.entries)
        row = found[name]
        print(
            f"{name:30} {row['entries']:>7.0f} entries  {row['first_us']:7.1f} -> {row['last_us']:7.1f} us  "
            f"{row['ratio']:.2f}  {row['grown_bytes'] / 1e6:+.1f} MB",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
