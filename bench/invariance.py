"""What batch_invariant=True costs: torch's time for products and convolutions over the time under the option, and both errors.

MKL's mode holds for a whole process, so each side has its own: PyTorch as it is, PyTorch again (A/A), PyTorch under the option, under
thread_invariant=True, and under the option where MKL has computed before, so that products run msctx's kernel. They take turns for
each shape, and of each turn the fastest call counts; convolutions in the faster of the two memory formats. A figure is the median
over --processes such groups; an error is relative to the largest result in float64.

    python bench/invariance.py --threads 1,2 --processes 3 --out RAW.json
    python bench/invariance.py --summary RAW.json > bench/results/NAME-invariance.json
    python bench/invariance.py --docs bench/results/NAME-invariance.json [more machines]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import contest
import figures
import summary
import torch
from layers import FORMATS
from torch.nn import functional as fn

import msctx

PRODUCTS = {
    "1024 x 1024 x 1024": (1024, 1024, 1024),
    "128 x 768 x 3072": (128, 768, 3072),
    "16 x 4096 x 4096": (16, 4096, 4096),
    "1 x 4096 x 4096": (1, 4096, 4096),
    "64 x 64 x 64": (64, 64, 64),
}
CONVOLUTIONS = {
    "3x3, 64 channels, 56 x 56, batch 4": ((4, 64, 56, 56), (64, 64, 3, 3)),
    "3x3, 256 channels, 14 x 14, batch 4": ((4, 256, 14, 14), (256, 256, 3, 3)),
    "1x1, 256 channels, 28 x 28, batch 4": ((4, 256, 28, 28), (256, 256, 1, 1)),
}
SIDES = ("torch", "again", "ours", "threads", "late")
TITLES = {"ours": "", "threads": ", thread_invariant", "late": ", MKL too late"}
KINDS = ("linear", "convolution")
TURNS = 9


def problems(kind: str) -> dict[str, list[Callable[[torch.dtype], torch.Tensor]]]:
    """Name → the ways to compute it, of which the fastest counts; each takes the dtype."""
    torch.manual_seed(0)
    found: dict[str, list[Callable[[torch.dtype], torch.Tensor]]] = {}
    for name, (m, k, n) in PRODUCTS.items() if kind == "linear" else ():
        x, w = torch.randn(m, k), torch.randn(n, k)
        found[f"linear, {name}"] = [lambda dtype, x=x, w=w: fn.linear(x.to(dtype), w.to(dtype))]
    for name, (images, window) in CONVOLUTIONS.items() if kind == "convolution" else ():
        x, w = torch.randn(images), torch.randn(window)
        both = [(x.to(memory_format=f), w.to(memory_format=f)) for f in FORMATS.values()]
        found[f"convolution, {name}"] = [
            lambda dtype, x=x, w=w: fn.conv2d(x.to(dtype), w.to(dtype), padding=w.shape[-1] // 2) for x, w in both
        ]
    return found


def side(name: str, kind: str, seconds: float) -> None:
    """A process: for each problem that is read, the fastest call of a turn in ms, and the error."""
    if name == "late":
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    if name in ("ours", "late"):
        msctx.set_context(batch_invariant=True)
    if name == "threads":
        msctx.set_context(thread_invariant=True)
    known = problems(kind)
    with torch.no_grad():
        errors = {
            name: max(contest.error_of(run(torch.float32), runs[0](torch.float64)) for run in runs)
            for name, runs in known.items()
        }
        for problem in map(str.strip, sys.stdin):
            best, begun = float("inf"), time.perf_counter()
            while time.perf_counter() - begun < seconds / TURNS:
                for run in known[problem]:
                    start = time.perf_counter()
                    run(torch.float32)
                    best = min(best, time.perf_counter() - start)
            print(json.dumps([best * 1e3, errors[problem]]), flush=True)


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each problem of a kind, its sides in turns; or one of these, to which the other process writes."""
    if given.side:
        side(given.side, given.work, given.seconds)
        return
    idle = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait must not take the others' processors
    with ExitStack() as stack:
        running = {}
        for name in SIDES:
            command = [sys.executable, *sys.argv, "--side", name]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=idle)
            running[name] = stack.enter_context(child)
        for problem in problems(given.work):
            ms: dict[str, list[float]] = {name: [] for name in SIDES}
            errors: dict[str, float] = {}
            for turn in range(TURNS + 1):
                for name in SIDES if turn % 2 else reversed(SIDES):
                    running[name].stdin.write(f"{problem}\n")
                    running[name].stdin.flush()
                    took, errors[name] = json.loads(running[name].stdout.readline())
                    ms[name].append(took)
            best = {name: {"": min(each[1:])} for name, each in ms.items()}  # the first turn warms up
            yield {"problem": problem, "ms": best, "errors": errors}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each problem, option and number of threads."""
    rows = []
    for (problem, threads), found in summary.by(summary.every(results), "problem", "threads").items():
        again, errors = figures.of(figures.ratios(found, "again")), figures.errors(found)
        for name, title in TITLES.items():
            if name != "late" or problem.startswith("linear"):
                each = {
                    "ratio": figures.of(figures.ratios(found, name)),
                    "again": again,
                    "errors": [errors["torch"], errors[name]],
                }
                rows.append({"problem": problem + title, "threads": threads, **each})
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each problem."""
    threads, lines = sorted({row["threads"] for row in of["rows"]}), []
    for (name,), found in summary.by(of["rows"], "problem").items():
        rows = sorted(found, key=lambda row: row["threads"])
        again = figures.of([end for row in rows for end in (row["again"]["low"], row["again"]["high"])])
        shown = [figures.text(row["ratio"], row["again"], of["processes"]) for row in rows]
        lines.append([name, *shown, figures.ends(again), ", ".join(f"{error:.0e}" for error in rows[0]["errors"])])
    heads = [*map(summary.threads, threads), "A/A", "error: torch, ours"]
    head = ["torch's time over that with `batch_invariant=True`", *heads]
    told = f"{of['processes']} or more processes for each side. {figures.legend(of['processes'])}"
    return {"invariance": summary.table(head, lines, f"{summary.described(of)}; {told}")}


def main() -> None:
    parser = contest.arguments(__doc__, KINDS)
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    summary.do(parser.parse_args(), KINDS, work, reduced, tables)


if __name__ == "__main__":
    main()
