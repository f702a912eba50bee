"""How contenders are timed here: in turns, each judged by its fastest run; in several processes, of which the median counts."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOPELESS = 2.5
"""How many times slower than the fastest of its side a contender is in two warm-up runs when it is run no more."""
LONG = 8.0
"""Seconds after which no further round begins, even if there were but two."""


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

    everyone = list(contenders)
    first = {one: timed(one, 0) for one in everyone}
    began = time.perf_counter()
    warm = {one: min(first[one], timed(one, 1)) for one in everyone}
    limit = {side: HOPELESS * min(t for one, t in warm.items() if one.side == side) for side in {one.side for one in everyone}}
    taking_part = [one for one in everyone if warm[one] <= limit[one.side]]
    best: dict[str, dict[str, float]] = {}
    for one in taking_part:
        best.setdefault(one.side, {})[one.name] = warm[one]
    runs = {one: 3 if warm[one] < SHORT else 2 for one in everyone}
    number = 1
    while number < 3 or time.perf_counter() - began < seconds:
        if number > 100 or time.perf_counter() - began > LONG:
            break
        for one in taking_part if number % 2 else reversed(taking_part):
            best[one.side][one.name] = min(best[one.side][one.name], timed(one, number, runs[one]))
        number += 1
    return best


def ours(context: Any, run: Callable[[], Any], problem: str, *, is_tuned: bool) -> tuple[Any, Any, list[str]]:
    """What a run under the context results in, the rows of what ran, and that in words; tuned, it has to be measured."""
    with context as ctx:
        result = run()
    rows = ctx.choices()
    for row in rows if is_tuned else ():
        if row.reasons[0] != "measured in this process":
            sys.exit(f"{problem}: {row.reasons[0]}")
    return result, rows, sorted({f"{row.ran} ({row.math})" for row in rows})


def ratio(ms: dict[str, dict[str, float]], ours: str = "ours", theirs: str = "torch") -> float:
    return min(ms[theirs].values()) / min(ms[ours].values())


def lower_bound(values: list[float], rounds: int = 2000) -> float:
    """The 5 % quantile of the median over bootstrap samples (Efron 1979)."""
    choose = random.Random(0)
    return sorted(statistics.median(choose.choices(values, k=len(values))) for _ in range(rounds))[rounds // 20]


def geomean(values: Iterable[float]) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found))


def machine() -> dict[str, Any]:
    import torch

    from msctx.native import core

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    fp16 = bool(getattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)())
    return {"cpu": cpu, "isa": core.load().isa(), "amx_fp16": fp16, "cores": os.cpu_count(), "torch": torch.__version__}


def described(results: list[dict[str, Any]]) -> str:
    """The one machine on which all was measured."""
    found = {
        f"{m['cpu']} ({'with' if m['amx_fp16'] else 'without'} AMX-FP16), {m['cores']} cores, torch {m['torch']}"
        for m in (result["machine"] for result in results)
    }
    if len(found) > 1:
        sys.exit(f"a table is of one machine, these are results of several: {'; '.join(sorted(found))}")
    return found.pop()


def last_line(results: list[dict[str, Any]], of: str = "processes") -> str:
    """What stands under a table."""
    return f"{described(results)}; {min(result['processes'] for result in results)} or more {of}."


def read(files: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def whole_numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def arguments(doc: str | None, names: Iterable[str], batches: list[int]) -> argparse.ArgumentParser:
    """What all these scripts can be told; *doc* is a script's own, whose first line says what it measures."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--threads", type=whole_numbers, default=[1], metavar="N,N")
    parser.add_argument("--batches", type=whole_numbers, default=batches, metavar="N,N")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for one problem in one process")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the result is kept; written after each process")
    parser.add_argument(
        "--docs",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="write the table of results into the documentation; measures nothing",
    )
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--without-errors", action="store_true", help=argparse.SUPPRESS)
    return parser


def asked(names: Iterable[str], given: argparse.Namespace) -> list[str]:
    """Those of *names* that ``--only`` leaves."""
    return [name for name in names if not given.only or name in given.only.split(",")]


def do(
    given: argparse.Namespace,
    table_name: str,
    work: Callable[[argparse.Namespace], None],
    collect: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[list[dict[str, Any]]], list[str]],
) -> None:
    """One of three things: be a process that measures, write a table of results into the documentation, or measure and print it."""
    if given.work:
        import torch

        torch.set_num_threads(given.threads[0])
        work(given)
    elif given.docs:
        into_docs(table_name, table(read(given.docs)))
    else:
        print("\n".join(table([collect(given)])))


def lines_of(
    script: str, work: str, threads: int, given: argparse.Namespace, with_errors: bool = True
) -> Iterator[dict[str, Any]]:
    """What a process of its own printed, a line of JSON each. Errors are the same in each process, and products in float64 slow."""
    command = [sys.executable, script, "--work", work, "--threads", str(threads), "--seconds", str(given.seconds)]
    command += ["--batches", ",".join(map(str, given.batches))]
    command += [] if with_errors else ["--without-errors"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            yield json.loads(line)
    if running.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {running.returncode}")


def keep(path: Path | None, result: dict[str, Any]) -> None:
    """Who is killed meanwhile leaves what was there before."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def into_docs(name: str, lines: Iterable[str]) -> None:
    """Puts lines between the markers of a name, wherever these stand; the first marker says by which command."""
    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if found := re.search(rf"<!-- {name}: .*? -->\n.*?<!-- /{name} -->", text, re.DOTALL):
            table = "\n".join([f"<!-- {name}: {command} -->", *lines, f"<!-- /{name} -->"])
            page.write_text(text[: found.start()] + table + text[found.end() :], encoding="utf-8")
            return
    sys.exit(f"no page has a place for this table: add the lines <!-- {name}: --> and <!-- /{name} -->")
