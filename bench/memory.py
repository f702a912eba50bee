"""What the memory pool gives: the time of a step with torch's own CPU allocator over the time with another one.

The others are msctx's pool (memory_optimize_level=O0) and, preloaded in place of malloc, jemalloc, tcmalloc and mimalloc, as
they are and told never to give memory back; those that are not installed are left out. The pool takes turns with torch's own
allocator inside a process, each judged by the fastest run of a turn; the others have processes of their own, which take turns.
A figure is the median over rounds of processes.

    python bench/memory.py --threads 1,2 --out bench/results/NAME.json
    python bench/memory.py --readme bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import contest
from networks import NETWORKS, encoder

POOL = "msctx"
PLAIN, AGAIN = "torch", "A/A"
PRELOADED: dict[str, tuple[str, dict[str, str]]] = {
    "jemalloc": ("jemalloc", {}),
    "jemalloc, never returns": ("jemalloc", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"}),
    "tcmalloc": ("tcmalloc_minimal", {}),
    "tcmalloc, never returns": ("tcmalloc_minimal", {"TCMALLOC_RELEASE_RATE": "0"}),
    "mimalloc": ("mimalloc", {}),
    "mimalloc, never returns": (
        "mimalloc",
        {"MIMALLOC_RESET_DELAY": "-1", "MIMALLOC_PAGE_RESET": "0", "MIMALLOC_LARGE_OS_PAGES": "1"},
    ),
}

Step = Callable[[], Any]


def network(name: str, images: int) -> tuple[Any, Step]:
    """A model, and a step that trains it."""
    import torch

    model = NETWORKS[name]().train()
    x = torch.randn(images, 3, 224, 224)
    return _trained(model, x, lambda y: torch.nn.functional.cross_entropy(y, torch.zeros(images, dtype=torch.long)))


def transformer() -> tuple[Any, Step]:
    """On 16 sequences of 128."""
    import torch

    return _trained(encoder(dropout=0.1), torch.randn(16, 128, 512), lambda y: y.square().mean())


def _trained(model: Any, x: Any, loss: Callable[[Any], Any]) -> tuple[Any, Step]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return model, step


def chain(megabytes: int) -> Step:
    """Eight elementwise operators, each of which makes a tensor."""
    import torch

    x = torch.randn(megabytes << 18)
    return lambda: ((((x + 1) * 0.5).relu() - 0.25).abs() * x + x).clamp(-1, 1)


TRAINED: dict[str, Callable[[], tuple[Any, Step]]] = {
    "ResNet-50, training": lambda: network("resnet50", 4),
    "ConvNeXt-T, training": lambda: network("convnext", 4),
    "transformer, training": transformer,
}
SUBJECTS: dict[str, Callable[[], Step]] = {
    **{name: lambda make=make: make()[1] for name, make in TRAINED.items()},  # type: ignore[misc]
    "chain over 25 MB": lambda: chain(25),
    "chain over 64 MB": lambda: chain(64),
}


def work(given: argparse.Namespace) -> None:
    """Prints the time of a step in ms (the median of the fastest of some turns), and how many pages it touched for the first time.

    With the pool: also the ratio of torch's own to it in the same process, in turns, whose first step is not counted.
    """
    import torch

    import msctx

    with_pool, seconds = given.without_errors, given.seconds
    torch.manual_seed(0)
    step = SUBJECTS[given.work]()

    def turn(scope: AbstractContextManager[Any]) -> tuple[float, float]:
        times, faults, began = [], [], time.perf_counter()
        with scope:
            step()
            while len(times) < 2 or (time.perf_counter() - began < seconds / 4 and len(times) < 50):
                before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
                step()
                times.append((time.perf_counter() - start) * 1e3)
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return min(times), statistics.median(faults)

    turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    began = time.perf_counter()
    while len(turns[False]) < 3 or time.perf_counter() - began < seconds:
        for pooled in (False, True) if with_pool else (False,):
            turns[pooled].append(turn(msctx.context(memory_optimize_level="O0") if pooled else nullcontext()))
    ms, faults = (statistics.median(each) for each in zip(*turns[with_pool], strict=True))
    found = {"ms": ms, "faults": faults}
    if with_pool:
        found["ratio"] = statistics.median(
            plain / ours for (plain, _), (ours, _) in zip(turns[False], turns[True], strict=True)
        )
    print(json.dumps(found), flush=True)


def run(contender: str, subject: str, threads: int, given: argparse.Namespace) -> dict[str, float]:
    variables = dict(os.environ)
    if contender in PRELOADED:
        library, more = PRELOADED[contender]
        variables |= {"LD_PRELOAD": str(ctypes.util.find_library(library)), **more}
    command = [sys.executable, __file__, "--work", subject, "--threads", str(threads), "--seconds", str(given.seconds)]
    command += ["--without-errors"] if contender == POOL else []
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def named(subjects: Iterable[str], given: argparse.Namespace) -> list[str]:
    """Those in whose names one of the words of ``--only`` is."""
    return [name for name in subjects if not given.only or any(word in name for word in given.only.split(","))]


def collect(given: argparse.Namespace) -> dict[str, Any]:
    others = [c for c, (library, _) in PRELOADED.items() if ctypes.util.find_library(library) and given.against in c]
    contenders = [PLAIN, AGAIN, POOL, *others]
    subjects = named(SUBJECTS, given)
    found: dict[tuple[str, int], list[dict[str, dict[str, float]]]] = {}
    result: dict[str, Any] = {"machine": contest.machine(), "processes": 0, "subjects": []}
    for number in range(given.processes):
        for threads in given.threads:
            for subject in subjects:
                order = contenders if number % 2 else contenders[::-1]
                found.setdefault((subject, threads), []).append({c: run(c, subject, threads, given) for c in order})
        result |= {"processes": number + 1, "subjects": [summary(s, t, rounds) for (s, t), rounds in found.items()]}
        contest.keep(given.out, result)
    return result


def summary(subject: str, threads: int, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    return {
        "subject": subject,
        "threads": threads,
        "ms": statistics.median(r[PLAIN]["ms"] for r in rounds),
        "ratios": {c: statistics.median(_ratio(r, c) for r in rounds) for c in rounds[0] if c != PLAIN},
        "faults": {c: statistics.median(r[c]["faults"] for r in rounds) for c in rounds[0]},
    }


def _ratio(found: dict[str, dict[str, float]], contender: str) -> float:
    return found[contender].get("ratio", found[PLAIN]["ms"] / found[contender]["ms"])


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each subject; a cell is empty where a contender has not run."""
    subjects = [row for result in results for row in result["subjects"]]
    contenders = [c for c in (POOL, *PRELOADED, AGAIN) if any(c in row["ratios"] for row in subjects)]
    lines = [
        "| step | threads | torch, ms | new pages | " + " | ".join(contenders) + " |",
        "|---" * (len(contenders) + 4) + "|",
    ]
    for row in subjects:
        found = {c: f"{ratio:.2f}" for c, ratio in row["ratios"].items()}
        cells = [f"**{found[c]}**" if c == POOL and c in found else found.get(c, "") for c in contenders]
        pages = f"{row['faults'][PLAIN]:.0f} → {row['faults'][POOL]:.0f}"
        lines.append(f"| {row['subject']} | {row['threads']} | {row['ms']:.0f} | {pages} | " + " | ".join(cells) + " |")
    return [*lines, "", contest.last_line(results, "rounds of processes")]


def main() -> None:
    parser = contest.arguments(__doc__, SUBJECTS, [1])
    parser.add_argument("--against", default="", metavar="WORDS", help="only those others whose names have these words")
    contest.do(parser.parse_args(), "memory-speed", work, collect, table)


if __name__ == "__main__":
    main()
