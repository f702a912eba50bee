"""How contenders are timed here: in turns, each judged by its fastest run; in several processes, of which the median counts."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import peak
import torch
from rich.console import Console
from rich.progress import track

from msctx.native import core

ROOT = Path(__file__).parents[1]
HOPELESS = 2.5
"""How many times slower than the fastest of its side a contender is in two warm-up runs when it is run no more."""
BEHIND = 1.3
"""The same, after each round."""
LONG = 8.0
"""Seconds after which no third round begins."""
SHORT = 20.0
"""Milliseconds below which a turn is of three runs, else of two."""


@dataclass(frozen=True)
class Contender:
    side: str
    """Whose it is: the fastest of a side is what counts."""
    name: str
    scope: Callable[[], AbstractContextManager[Any]]
    """Entered around each turn, outside the time."""
    run: Callable[[int], Any]
    """Gets another number in each turn: inputs change."""
    before: Callable[[], Any] = lambda: None
    """Called before each run, outside the time."""


@dataclass(frozen=True)
class Group:
    """What is measured together: problems, and what the context requests."""

    name: str
    title: str
    problems: tuple[Any, ...]
    options: dict[str, Any]
    data: str = "normal"

    @property
    def is_tuned(self) -> bool:
        return "performance" in self.options.values()


def fastest(contenders: Iterable[Contender], seconds: float) -> dict[str, dict[str, float]]:
    """Side → name → the fastest run in ms."""

    def timed(contender: Contender, number: int, runs: int = 1) -> float:
        """The fastest of some runs: to enter a scope empties caches, which is not what is measured."""
        best = math.inf
        with contender.scope():
            for i in range(runs):
                contender.before()
                start = time.perf_counter()
                contender.run(number * runs + i)
                best = min(best, (time.perf_counter() - start) * 1e3)
        return best

    first: dict[Contender, float] = {}
    for one in contenders:
        try:
            first[one] = timed(one, 0)
        except Exception as error:
            print(f"{one.side}, {one.name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    best: dict[str, dict[str, float]] = {}
    for one, took in first.items():
        best.setdefault(one.side, {})[one.name] = min(took, timed(one, 1))

    def near(some: Iterable[Contender], limit: float) -> list[Contender]:
        return [one for one in some if best[one.side][one.name] <= limit * min(best[one.side].values())]

    taking_part = near(first, HOPELESS)
    runs = {one: 3 if best[one.side][one.name] < SHORT else 2 for one in taking_part}
    began, number = time.perf_counter(), 1
    while number < 3 or (number < 101 and time.perf_counter() - began < min(seconds, LONG)):
        for one in taking_part if number % 2 else reversed(taking_part):
            best[one.side][one.name] = min(best[one.side][one.name], timed(one, number, runs[one]))
        taking_part = near(taking_part, BEHIND)
        number += 1
    return best


def beside_peak(contenders: Iterable[Contender], seconds: float, multiply_adds: int) -> dict[str, Any]:
    """The fastest, the processor's own loop among them, and how many of its loops make so many multiply-adds."""
    ms = fastest([*contenders, Contender("peak", "loop", nullcontext, lambda _: peak.multiply_adds())], seconds)
    return {"ms": ms} | ({"loops": multiply_adds / peak.multiply_adds()} if "peak" in ms else {})


def ours(context: Any, run: Callable[[], Any], problem: str, *, is_tuned: bool) -> tuple[Any, Any, list[str]]:
    """What a run under the context results in, the rows of what ran, and that in words; tuned, it has to be measured."""
    with context as ctx:
        result = run()
    rows = ctx.choices()
    for row in rows if is_tuned else ():
        if row.reasons[0] != "measured in this process":
            sys.exit(f"{problem}: {row.reasons[0]}")
    return result, rows, sorted({f"{row.ran} ({row.math})" for row in rows})


def quickest(ms: dict[str, float]) -> str:
    """The name of what took the least time."""
    return min(ms, key=ms.__getitem__)


def error_of(found: Any, truth: Any) -> float:
    """The largest |error|, in units of the largest result."""
    return float((found - truth).abs().max() / truth.abs().max())


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": cpu, "isa": core.load().c.msctx_isa_in_use(), "cores": os.cpu_count(), "torch": torch.__version__}


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def whole_numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def parser(doc: str | None, processes: int = 5) -> argparse.ArgumentParser:
    """Options of every script; *doc* is the script's, whose first line says what it measures."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--processes", type=int, default=processes)
    made.add_argument("--out", type=Path, metavar="FILE", help="where the raw result is kept; written after each process")
    made.add_argument("--summary", type=Path, nargs="+", metavar="RAW", help="only print the summary of raw results")
    made.add_argument("--docs", type=Path, nargs="+", metavar="FILE", help="write tables of summaries into the documentation")
    made.add_argument("--work", default="", help=argparse.SUPPRESS)
    made.add_argument("--on-threads", type=int, default=1, help=argparse.SUPPRESS)
    made.set_defaults(threads=[1], only="", variables={})
    made.add_argument("--without-errors", action="store_true", help=argparse.SUPPRESS)
    return made


def arguments(doc: str | None, names: Iterable[str], batches: list[int] | None = None) -> argparse.ArgumentParser:
    """Options of scripts that measure named groups; *batches*: the sizes unless others are given."""
    made = parser(doc)
    made.add_argument("--threads", type=whole_numbers, default=[1], metavar="N,N")
    if batches:
        made.add_argument("--batches", type=whole_numbers, default=batches, metavar="N,N")
    made.add_argument("--seconds", type=float, default=0.5, help="for one problem in one process")
    made.add_argument("--only", default="", metavar="NAME,NAME", help=", ".join(names))
    return made


def collected(given: argparse.Namespace, works: Iterable[str]) -> dict[str, Any]:
    """The raw result of all processes: each work that ``--only`` leaves, in turn for each number of threads. Errors are the same in
    each process, and computing in float64 is slow: only the first process does."""
    result: dict[str, Any] = {"machine": machine(), "date": f"{date.today()}", "commit": commit(), "processes": 0, "rows": []}
    left = [work for work in works if not given.only or work.partition(" ")[0] in given.only.split(",")]
    jobs = [(number, threads, work) for number in range(given.processes) for threads in given.threads for work in left]
    for number, threads, work in track(jobs, "measuring", console=Console(stderr=True)):
        words = ["--work", work, "--on-threads", str(threads), *["--without-errors"] * (number > 0)]
        result["rows"] += ({"threads": threads} | row for row in process(*sys.argv, *words, **given.variables.get(work, {})))
        result["processes"] = number + 1
        keep(given.out, result)
    return result


def process(*words: str, **variables: str) -> Iterator[dict[str, Any]]:
    """What a script printed in a process of its own, a line of JSON each."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=os.environ | variables) as running:
        yield from (json.loads(line) for line in running.stdout or () if line.startswith("{"))  # libraries print, too
    if running.returncode:
        sys.exit(f"{' '.join(words)} ended with exit code {running.returncode}")


def keep(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
