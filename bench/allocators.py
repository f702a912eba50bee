"""Training steps by the allocator of the process: glibc's time over that of each other, a process for each and round, in turns.

A process has the median of its steps, as their page faults differ; glibc runs twice (A/A), msctx under a cap. What is not installed
(Debian's libtcmalloc-minimal4 and libjemalloc2) has no column.

    python bench/allocators.py --processes 5 --seconds 20 --out RAW.json
    python bench/allocators.py --summary RAW.json > bench/results/NAME-allocators.json
    python bench/allocators.py --docs bench/results/NAME-allocators.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from ctypes.util import find_library
from typing import Any

import contest
import figures
import networks
import summary
from models import TRAINING_BATCH, step_of

import msctx

KEEPS = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
FILES = {"tcmalloc": find_library("tcmalloc_minimal"), "jemalloc": find_library("jemalloc")}
SIDES = ("glibc", "again", "msctx", *(name for name, file in FILES.items() if file))
NETWORKS = ("ResNet-50", "GPT-2")


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The steps of a network in this process. The first two are not counted."""
    name, side = given.work.split()
    times: list[float] = []
    with msctx.context(max_device_memory="1TB") if side == "msctx" else nullcontext():
        step, inputs = step_of(networks.made(name), True), [networks.inputs(name, TRAINING_BATCH) for _ in range(3)]
        while len(times) < 5 or sum(times) < given.seconds:
            start = time.perf_counter()
            step(inputs[len(times) % 3])
            times.append(time.perf_counter() - start)
    yield {"network": name, "side": side, "ms": statistics.median(times[2:]) * 1e3}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each network and number of threads: glibc's ms, and its time over that of each other in the same round."""
    rows = []
    for (network, threads), found in summary.by(summary.every(results), "network", "threads").items():
        ms = {side: [row["ms"] for row in of] for (side,), of in summary.by(found, "side").items()}
        ratios = {side: figures.of([a / b for a, b in zip(ms["glibc"], each, strict=True)]) for side, each in ms.items()}
        rows.append({"network": network, "threads": threads, **ratios, "glibc": figures.of(ms["glibc"])})
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    others, cells = [side for side in ("msctx", *FILES) if side in of["rows"][0]], []
    for row in of["rows"]:
        shown = [figures.text(row[side], row["again"], of["processes"]) for side in others]
        cells.append([row["network"], row["threads"], f"{row['glibc']['median']:.0f}", figures.ends(row["again"]), *shown])
    last = f"{summary.described(of)}; batch {TRAINING_BATCH}; processes: {of['processes']}. {figures.legend(of['processes'])}"
    last += "".join(f" {name} was not installed." for name in FILES if name not in others)
    return {"allocators": summary.table(("training step", "threads", "glibc, ms", "A/A", *others), cells, last)}


def main() -> None:
    given = contest.arguments(__doc__, NETWORKS).parse_args()
    works = [f"{network} {side}" for network in NETWORKS for side in SIDES]
    preloaded = {side: {"LD_PRELOAD": file, "MALLOC_CONF": KEEPS} for side, file in FILES.items() if file}
    given.variables = {work: preloaded.get(work.split()[1], {}) for work in works}
    summary.do(given, works, work, reduced, tables)


if __name__ == "__main__":
    main()
