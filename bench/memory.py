"""The time of a step with torch's own CPU allocator over the time with another one.

The others are msctx's (memory_optimize_level=O0) and, preloaded in place of malloc, jemalloc and tcmalloc, as they are and told
never to give memory back; those that are not installed are left out. Each has a process of its own, and they take turns; a turn
is judged by its fastest step, beside the same turn of torch's own. A figure is the median over turns and rounds. What a step
spends in the system (on new pages, almost all of it) is the most that an allocator can spare.

    python bench/memory.py --threads 1,2 --out bench/results/NAME.json
    python bench/memory.py --docs bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import ctypes.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import contest
import figures
from networks import NETWORKS, encoder

POOL = "msctx"
PLAIN, AGAIN = "torch", "A/A"
PRELOADED: dict[str, tuple[str, dict[str, str]]] = {
    "jemalloc": ("jemalloc", {}),
    "jemalloc, never returns": ("jemalloc", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"}),
    "tcmalloc": ("tcmalloc_minimal", {}),
    "tcmalloc, never returns": ("tcmalloc_minimal", {"TCMALLOC_RELEASE_RATE": "0"}),
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
    """A turn for each line that comes: prints the fastest step in ms, the part of steps spent in the system, new pages of a step."""
    import torch

    import msctx

    torch.manual_seed(0)
    step = SUBJECTS[given.work]()
    with (
        msctx.context(memory_optimize_level="O0") if given.without_errors else nullcontext()
    ):  # kept blocks stay: they are what is measured
        step()
        for _ in sys.stdin:
            times, used, began = [], [usage()], time.perf_counter()
            while len(times) < 2 or (time.perf_counter() - began < given.seconds and len(times) < 50):
                start = time.perf_counter()
                step()
                times.append((time.perf_counter() - start) * 1e3)
                used.append(usage())
            system, user, _ = (last - first for first, last in zip(used[0], used[-1], strict=True))
            faults = statistics.median(after[2] - before[2] for before, after in itertools.pairwise(used))
            print(json.dumps({"ms": min(times), "system": system / (system + user), "faults": faults}), flush=True)


def usage() -> tuple[float, float, int]:
    """Of this process so far: seconds in the system, seconds in its own code (of all threads), pages touched for the first time."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_stime, found.ru_utime, found.ru_minflt


def started(contender: str, subject: str, threads: int, given: argparse.Namespace) -> subprocess.Popen[str]:
    variables = dict(os.environ)
    if contender in PRELOADED:
        library, more = PRELOADED[contender]
        variables |= {"LD_PRELOAD": str(ctypes.util.find_library(library)), **more}
    command = [sys.executable, __file__, "--work", subject, "--threads", str(threads), "--seconds", str(given.seconds)]
    command += ["--without-errors"] if contender == POOL else []
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def turns(contenders: list[str], subject: str, threads: int, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """A process for each contender, one of which runs at a time: each has its own allocator, and all the machine's moods."""
    processes = {contender: started(contender, subject, threads, given) for contender in contenders}
    found: dict[str, list[dict[str, float]]] = {contender: [] for contender in contenders}
    for number in range(given.turns):
        for contender in contenders if number % 2 else contenders[::-1]:
            process = processes[contender]
            assert process.stdin
            assert process.stdout
            print(file=process.stdin, flush=True)
            found[contender].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    return {
        contender: {
            **{key: statistics.median(turn[key] for turn in own) for key in own[0]},
            "ratio": statistics.median(plain["ms"] / turn["ms"] for plain, turn in zip(found[PLAIN], own, strict=True)),
        }
        for contender, own in found.items()
    }


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
                found.setdefault((subject, threads), []).append(turns(contenders, subject, threads, given))
        result |= {"processes": number + 1, "subjects": [summary(s, t, rounds) for (s, t), rounds in found.items()]}
        contest.keep(given.out, result)
    return result


def summary(subject: str, threads: int, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    return {
        "subject": subject,
        "threads": threads,
        "ms": statistics.median(r[PLAIN]["ms"] for r in rounds),
        "ratios": {c: statistics.median(r[c]["ratio"] for r in rounds) for c in rounds[0] if c != PLAIN},
        "each": {c: [r[c]["ratio"] for r in rounds] for c in rounds[0] if c != PLAIN},
        **{key: {c: statistics.median(r[c][key] for r in rounds) for c in rounds[0]} for key in ("faults", "system")},
    }


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each subject; a cell is empty where a contender has not run."""
    subjects = [row for result in results for row in result["subjects"]]
    contenders = [c for c in (POOL, *PRELOADED, AGAIN) if any(c in row["ratios"] for row in subjects)]
    lines = [
        "| step | threads | PyTorch, ms | in the system | page faults | " + " | ".join(contenders) + " |",
        "|---" * (len(contenders) + 5) + "|",
    ]
    for row in subjects:
        each = row.get("each", {})
        controls = each.get(AGAIN) or [ratio for c, ratio in row["ratios"].items() if c == AGAIN]
        found = {c: figures.of_processes(ratio, each.get(c), controls * (c != AGAIN)) for c, ratio in row["ratios"].items()}
        cells = [found.get(c, "") for c in contenders]
        system = f"{row['system'][PLAIN]:.1%} → {row['system'][POOL]:.1%}"
        pages = f"{row['faults'][PLAIN]:.0f} → {row['faults'][POOL]:.0f}"
        head = f"| {row['subject']} | {row['threads']} | {row['ms']:.0f} | {system} | {pages} | "
        lines.append(head + " | ".join(cells) + " |")
    rounds = min(result["processes"] for result in results)
    told = figures.legend(all("each" in row for row in subjects), rounds)
    return [*lines, "", f"{contest.described(results)}; {rounds} or more rounds of processes. {told}"]


def main() -> None:
    parser = contest.arguments(__doc__, SUBJECTS, [1])
    parser.add_argument("--against", default="", metavar="WORDS", help="only those others whose names have these words")
    parser.add_argument("--turns", type=int, default=9)
    contest.do(parser.parse_args(), "memory-speed", work, collect, table)


if __name__ == "__main__":
    main()
