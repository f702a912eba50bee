"""What it takes many ranks to agree: each asks the store of the process group what the first one has.

The ranks are simulated, the store is real: torch's TCPStore on the loopback, asked by two processes, each of which is half of the
ranks, one after the other. So the time of all of them is an upper bound of what the last one waits. Beside it: how long the digests
of a model take that `replica_check` compares.

    python bench/agreement.py --out bench/results/NAME-agreement.json
    python bench/agreement.py --docs bench/results/NAME-agreement.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import contest
import torch
from torch.distributed import TCPStore

import msctx
from msctx.context import agreement
from msctx.native import distributed
from msctx.observers import replicas

RANKS = (8, 64, 1024)
ASKERS = 2
TURNS = 5


def text() -> str:
    """What a rank puts into the store."""
    return json.dumps(agreement._in_force(msctx.explain("reproducible")), sort_keys=True)


def asker(port: int, of: str, ranks: list[int], size: int, differs: bool) -> None:
    """These ranks, one after the other; prints when the first began and the last had ended."""
    mine = text()
    store = TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))
    print("ready", flush=True)
    input()
    began = time.time()
    for rank in ranks:
        own = mine.replace('"as found"', f'"{rank}"') if differs and rank == size - 1 else mine
        agreement.ask(store, of, rank, size, own, "one place", decides=True)
    print(json.dumps([began, time.time()]), flush=True)


def seconds(store: TCPStore, size: int, turn: int, differs: bool) -> float:
    """From the first rank's question to the last one's answer; *differs*: the last rank has something else, and reads all others'."""
    of = f"{size}/{turn}/{differs}"
    command = [sys.executable, __file__, "--asker", str(store.port), of, str(size), str(int(differs))]
    running = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(ASKERS)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    times = [json.loads(process.communicate()[0]) for process in running]
    return max(end for _, end in times) - min(begin for begin, _ in times)


def digests() -> dict[str, Any]:
    """Of the weights of a network with as many as ResNet-50."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1600, 1600) for _ in range(10)))
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        replicas._digests(model, "")
        times.append(time.perf_counter() - began)
    return {"parameters": sum(p.numel() for p in model.parameters()), "seconds": statistics.median(times)}


def measured() -> dict[str, Any]:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    rows = []
    for size in RANKS:
        equal, differing = ([seconds(store, size, turn, differs) for turn in range(TURNS)] for differs in (False, True))
        rows.append({"ranks": size, "equal": equal, "differing": differing})
    return {"machine": contest.machine(), "bytes": len(distributed.packed(text())), "rows": rows, "digests": digests()}


def table(found: dict[str, Any]) -> list[str]:
    def figure(times: list[float]) -> str:
        return f"{1e3 * statistics.median(times):.1f} ms ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})"

    lines = ["| ranks | all agree | one differs, and collects |", "|---|---|---|"]
    lines += [f"| {row['ranks']:,} | {figure(row['equal'])} | {figure(row['differing'])} |" for row in found["rows"]]
    last, digest = found["rows"][-1], found["digests"]
    each = 1e6 * statistics.median(last["equal"]) / last["ranks"]
    millions, of = digest["parameters"] / 1e6, found["machine"]
    return [
        *lines,
        "",
        f"{each:.0f} µs for each rank; 10,000 ranks that ask at once would wait for {each / 100:.1f} s by that. Each puts "
        f"{found['bytes'] / 1024:.1f} KiB into the store. The digests of {millions:.1f} million float32 weights take "
        f"{1e3 * digest['seconds']:.1f} ms, with `replica_check=50` {1e3 * digest['seconds'] / 50:.2f} ms a step.",
        "",
        f"{of['cpu']}, {of['cores']} cores, torch {of['torch']}; medians of {TURNS} turns.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--asker", nargs=5)
    given = parser.parse_args()
    if given.asker:
        port, of, size, differs, number = given.asker
        asker(int(port), of, [*range(int(number), int(size), ASKERS)], int(size), differs == "1")
    elif given.docs:
        contest.into_docs("agreement", table(json.loads(given.docs.read_text())))
    else:
        found = measured()
        print("\n".join(table(found)))
        if given.out:
            contest.keep(given.out, found)


if __name__ == "__main__":
    main()
