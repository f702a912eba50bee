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
from collections.abc import Callable
from typing import Any

import contest
import figures
import summary

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
THREADS, LATE = ", thread_invariant", ", MKL too late"
TURNS = 9


def problems() -> dict[str, list[Callable[[Any], Any]]]:
    """Name → the ways to compute it, of which the fastest counts; each takes the dtype."""
    import torch
    from torch.nn import functional as fn

    torch.manual_seed(0)
    found: dict[str, list[Callable[[Any], Any]]] = {}
    for name, (m, k, n) in PRODUCTS.items():
        x, w = torch.randn(m, k), torch.randn(n, k)
        found[f"linear, {name}"] = [lambda dtype, x=x, w=w: fn.linear(x.to(dtype), w.to(dtype))]
    for name, (images, window) in CONVOLUTIONS.items():
        x, w = torch.randn(images), torch.randn(window)
        both = [(x.to(memory_format=f), w.to(memory_format=f)) for f in (torch.contiguous_format, torch.channels_last)]
        found[f"convolution, {name}"] = [
            lambda dtype, x=x, w=w: fn.conv2d(x.to(dtype), w.to(dtype), padding=w.shape[-1] // 2) for x, w in both
        ]
    return found


def work(given: argparse.Namespace) -> None:
    """One side: for each name that is read, the fastest call of a turn in ms, and the error."""
    import torch

    import msctx

    if given.work == "late":
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    if given.work in ("ours", "late"):
        msctx.set_context(batch_invariant=True)
    if given.work == "threads":
        msctx.set_context(thread_invariant=True)
    known = problems()
    errors: dict[str, float] = {}
    with torch.no_grad():
        for name in map(str.strip, sys.stdin):
            best, begun = float("inf"), time.perf_counter()
            if name not in errors:
                truth = known[name][0](torch.float64)
                errors[name] = max(float((run(torch.float32) - truth).abs().max() / truth.abs().max()) for run in known[name])
            while time.perf_counter() - begun < given.seconds / TURNS:
                for run in known[name]:
                    start = time.perf_counter()
                    run(torch.float32)
                    best = min(best, time.perf_counter() - start)
            print(json.dumps([best * 1e3, errors[name]]), flush=True)


def group(threads: int, given: argparse.Namespace) -> dict[str, tuple[float, float, float, float]]:
    """Problem → torch's time over that under the option, and torch's over itself; the errors of torch and under the option."""

    def begun(side: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--work", side, "--threads", str(threads), "--seconds", str(given.seconds)]
        idle = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait must not take the others' processors
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=idle)

    running = {side: begun(side) for side in SIDES}
    found = {}
    for name in problems():
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        errors: dict[str, float] = {}
        for turn in range(TURNS + 1):
            for side in SIDES if turn % 2 else reversed(SIDES):
                asking, answers = running[side].stdin, running[side].stdout
                assert asking is not None
                assert answers is not None
                print(name, file=asking, flush=True)
                ms, errors[side] = json.loads(answers.readline())
                times[side].append(ms)
        best = {side: min(each[1:]) for side, each in times.items()}  # the first turn warms up
        late = (("late", LATE),) if name.startswith("linear") else ()
        for side, more in (("ours", ""), ("threads", THREADS), *late):
            found[name + more] = best["torch"] / best[side], best["torch"] / best["again"], errors["torch"], errors[side]
    for process in running.values():
        assert process.stdin
        process.stdin.close()
        process.wait()
    return found


def collect(given: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    result = contest.begun(rows=rows)
    for number in range(given.processes):
        for threads in given.threads:
            for name, (speed, again, *errors) in group(threads, given).items():
                of_problem = rows.setdefault(name, {"errors": errors})
                row = of_problem.setdefault(str(threads), {"each": [], "again": []})
                row["each"].append(speed)
                row["again"].append(again)
        result["processes"] = number + 1
        contest.keep(given.out, result)
    return result


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each problem and number of threads, of one machine."""
    (result,) = results
    rows = []
    for name, row in result["rows"].items():
        for threads in (key for key in row if key != "errors"):
            found = {"ratio": figures.of(row[threads]["each"]), "again": figures.of(row[threads]["again"])}
            rows.append({"problem": name, "threads": int(threads), **found, "errors": row["errors"]})
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each problem."""
    threads, lines = sorted({row["threads"] for row in of["rows"]}), []
    for name in dict.fromkeys(row["problem"] for row in of["rows"]):
        rows = sorted((row for row in of["rows"] if row["problem"] == name), key=lambda row: row["threads"])
        again = figures.of([end for row in rows for end in (row["again"]["low"], row["again"]["high"])])
        shown = [figures.text(row["ratio"], row["again"], of["processes"]) for row in rows]
        lines.append([name, *shown, figures.ends(again), ", ".join(f"{error:.0e}" for error in rows[0]["errors"])])
    heads = [*map(summary.threads, threads), "A/A", "error: torch, ours"]
    head = ["torch's time over that with `batch_invariant=True`", *heads]
    told = f"{of['processes']} or more processes for each side. {figures.legend(True, of['processes'])}"
    return {"invariance": [*summary.markdown(head, lines), "", f"{summary.described(of)}; {told}"]}


def main() -> None:
    summary.do(contest.arguments(__doc__, [], [1]).parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
