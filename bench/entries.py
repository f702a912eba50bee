"""What many entries do to the time and the memory of the next: each kind of context is entered over and over in a process of its own.

After a thousand to warm up, the first and the last thousand are compared: the median of their CPU times, and what is held.
In the same thousands a piece of plain Python takes turns with the entries: its ratio tells what the machine did meanwhile (A/A).

    python bench/entries.py --out RAW.json [--entries 100000] [--kind NAME …]
    python bench/entries.py --summary RAW.json [more] > bench/results/NAME-entries.json
    python bench/entries.py --docs bench/results/NAME-entries.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import contest
import summary
import torch

import msctx

CONVS = {"conv_fprop_algo": "gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
MODEL = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.ReLU()) for _ in range(50)))
LARGE = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(1000)))
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
PRODUCT_RULES = msctx.context(matmul_algo_rules={"*": "reference"}, fallback="silent").watch(LARGE)
DTYPES = Path(tempfile.mkdtemp()) / "dtypes.cfg"
DTYPES.write_text("*::InputDtype:bfloat16\n")
OBSERVED = msctx.context(op_timeout=100).watch(LARGE)
PRINTS = DTYPES.with_name("prints.bin")
PRECISION_RULES = msctx.context(customize_dtypes=str(DTYPES)).watch(LARGE)


class Nested:
    """Ten contexts in each other."""

    def __enter__(self) -> None:
        self.open_ones = ExitStack()
        for depth in range(1, 11):
            self.open_ones.enter_context(msctx.context(max_call_depth=1000 + depth))

    def __exit__(self, *_: object) -> None:
        self.open_ones.close()


BOUND = Calls(msctx.context(deterministic="ON", **CONVS))
KINDS: dict[str, Kind] = {
    "nothing": msctx.context,
    "deterministic": lambda: msctx.context(deterministic="ON"),
    "threads": lambda: msctx.context(runtime_num_threads=1),
    "seed": lambda: msctx.context(seed=0, seed_scope=True),
    "algorithms": lambda: msctx.context(**CONVS),
    "performance": lambda: msctx.context(**dict.fromkeys(CONVS, "performance")),
    "frozen weights": lambda: msctx.context(**CONVS, frozen_weights=True),
    "products": lambda: msctx.context(matmul_algo="reference"),
    "batch_invariant": lambda: msctx.context(batch_invariant=True),
    "flush_denormal": lambda: msctx.context(flush_denormal=True),
    "precision": lambda: msctx.context(precision_mode="allow_mix_precision_bf16"),
    "cap": lambda: msctx.context(max_device_memory="1GB"),
    "one context, watched models": lambda: RULES,
    "new contexts, a watched model": lambda: msctx.context(**CONVS).watch(MODEL),
    "new contexts, 1,000 watched modules": lambda: msctx.context(**CONVS).watch(LARGE),
    "algorithms of 1,000 named modules": lambda: PRODUCT_RULES,
    "dtypes of 1,000 named modules": lambda: PRECISION_RULES,
    "an observer, 1,000 watched modules": lambda: OBSERVED,
    "new contexts with print_file_path": lambda: msctx.context(print_file_path=PRINTS),
    "ten nested contexts": Nested,
    "O1, watched models": lambda: RECOMPUTED,
    "bound function": lambda: BOUND,
}


CONVOLVE = ("algorithms", "performance", "frozen weights", "one context, watched models", "new contexts, a watched model")
"""Those in which a convolution is run now and then, so that there is something to count."""
PART = 1000
"""Entries whose median counts."""


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def measured(kind: Kind, entries: int) -> dict[str, float]:
    convolves = kind in [KINDS[name] for name in CONVOLVE]

    def enter(count: int, times: array[float] | None = None, controls: array[float] | None = None) -> None:
        for number in range(count):
            begun = time.thread_time()
            with kind():
                entered = time.thread_time()
                if convolves and number % 100 == 0:
                    MODEL[0](X)
                left = time.thread_time()
            ended = time.thread_time()
            if times is not None and controls is not None:
                times[number] = entered - begun + ended - left
                begun = time.thread_time()
                sum(range(PART))
                controls[number] = time.thread_time() - begun

    first, last, control, later_control = (array("d", bytes(8 * PART)) for _ in range(4))  # theirs is not what grows
    enter(PART)
    enter(PART, first, control)
    held = resident()
    enter(entries - 3 * PART)
    enter(PART, last, later_control)
    grown = resident() - held
    us, later_us = (statistics.median(times) * 1e6 for times in (first, last))
    aside = statistics.median(later_control) / statistics.median(control)
    return {"entries": entries, "first_us": us, "last_us": later_us, "control": aside, "grown_bytes": grown}


def collect(given: argparse.Namespace) -> dict[str, Any]:
    result = contest.begun(kinds={}) | {"processes": 1}
    for name in given.kind or KINDS:
        (result["kinds"][name],) = contest.process(__file__, name, "--entries", given.entries)
        result["kinds"][name]["load"] = os.getloadavg()[0]
        contest.keep(given.out, result)
    return result


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each kind."""
    return summary.head(results, rows=[{"kind": name, **row} for result in results for name, row in result["kinds"].items()])


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each kind."""
    lines = []
    for row in of["rows"]:
        ratios = f"{row['last_us'] / row['first_us']:.2f}", f"{row['control']:.2f}"
        grown = f"{row['grown_bytes'] / 1e6:+.1f} MB"
        lines.append([row["kind"], f"{row['entries']:,}", f"{row['first_us']:.0f} µs", *ratios, grown])
    load = max(row["load"] for row in of["rows"])
    busy = f" The machine was busy with other work (load up to {load:.1f}): use the ratios, not the times." * (load > 1.5)
    head = ("context", "entries", "the first 1,000, each", "last over first", "A/A", "memory")
    return {"entries": [*summary.markdown(head, lines), "", f"{summary.described(of)}; one process for each.{busy}"]}


def main() -> None:
    parser = contest.parser(__doc__, processes=1)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--kind", choices=KINDS, action="append")
    work = lambda given: print(json.dumps(measured(KINDS[given.work], given.entries)))  # noqa: E731
    summary.do(parser.parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
