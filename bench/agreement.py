"""What it takes many ranks to agree: each asks the store of the process group what the first one has.

The ranks are simulated, the store is real: torch's TCPStore on the loopback, asked by two processes, each of which is half of the
ranks, one after the other. So the time of all of them is an upper bound of what the last one waits. Beside it: how long the digests
of a model take that `replica_check` compares, and what a whole check costs two real ranks that train ResNet-50 by gloo, with its
requests of the store: in processor time, since what else the machine does at the time counts less there. And what an entry costs a
process alone and the same process as one of two ranks.

    python bench/agreement.py --out bench/results/NAME-agreement.json
    python bench/agreement.py --checks bench/results/NAME-agreement.json   # the checks alone, into what is there
    python bench/agreement.py --entries bench/results/NAME-agreement.json  # the entries alone
    python bench/agreement.py --docs bench/results/NAME-agreement.json
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import contest
import networks
import torch
import torch.distributed as dist
from torch.distributed import TCPStore
from torch.nn.parallel import DistributedDataParallel

import msctx
from msctx.context import agreement
from msctx.native import distributed
from msctx.observers import replicas

RANKS = (8, 64, 1024)
ASKERS = 2
TURNS = 5
TRAINING = 2
"""Ranks that train."""
CHECK_TURNS, STEPS, BATCH, SIZE = 10, 2, 4, 64
EVERY = 50
"""Steps from one check to the next, as in the issue; the checks that are measured are in each step."""
CHECKED: dict[str, dict[str, Any]] = {"none": {}, "each step": {"replica_check": 1}, "none, again": {}}

ENTRIES, ENTRY_TURNS = 1000, 7


def values() -> dict[str, Any]:
    """What a rank puts into the store."""
    return agreement._in_force(msctx.explain("reproducible"))


def ask(store: TCPStore, of: str, rank: int, found: dict[str, Any]) -> None:
    """All that a rank asks."""
    mine = json.dumps(found, sort_keys=True)
    first, _ = agreement.ask(store, of, rank, mine, agreement._same(found), "one place", decides=True)
    if first:
        distributed.collect(store, of, rank, mine, first[0])


def asker(port: int, of: str, ranks: list[int], differing: int) -> None:
    """These ranks, one after the other; prints when the first began and the last had ended."""
    mine = values()
    other = {**mine, "torch.num_threads": (-1, "elsewhere")}
    store = TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))
    print("ready", flush=True)
    input()
    began = time.time()
    for rank in ranks:
        ask(store, of, rank, other if rank == differing else mine)
    print(json.dumps([began, time.time()]), flush=True)


def asking(command: list[str], count: int) -> list[subprocess.Popen[str]]:
    """So many processes that have printed that they are ready; each gets its number as a last word."""
    running = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return running


def seconds(store: TCPStore, size: int, turn: int, differing: int) -> float:
    """From the first rank's question to the last one's answer. Rank *differing* has something else; 0 was there before the others,
    so that all of them differ from the first."""
    of = f"{size}/{turn}/{differing}"
    if differing == 0:
        ask(store, of, 0, {**values(), "torch.num_threads": (-1, "elsewhere")})
    command = [sys.executable, __file__, "--asker", str(store.port), of, str(size), str(differing)]
    running = asking(command, ASKERS)
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
        replicas._digests(model)
        times.append(time.perf_counter() - began)
    return {"parameters": sum(p.numel() for p in model.parameters()), "seconds": statistics.median(times)}


def trains(number: int, port: int, out: str) -> None:
    """A rank: the processor time of a step, in turns with and without checks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=number, world_size=TRAINING)
    torch.manual_seed(0)
    model = DistributedDataParallel(networks.resnet50())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, 3, SIZE, SIZE)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    seconds: dict[str, list[float]] = {name: [] for name in CHECKED}
    for turn in range(CHECK_TURNS):
        for name, options in [*CHECKED.items()][:: 1 if turn % 2 else -1]:
            with msctx.context(**options).watch(model):
                step()
                dist.barrier()
                began = time.process_time()
                for _ in range(STEPS):
                    step()
                seconds[name].append((time.process_time() - began) / STEPS)
    if not number:  # it has the store
        found = {"seconds": seconds, "parameters": sum(p.numel() for p in model.parameters())}
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)


def checks() -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/found.json"
        torch.multiprocessing.start_processes(trains, (port, out), nprocs=TRAINING, start_method="spawn")
        found: dict[str, Any] = json.loads(Path(out).read_text(encoding="utf-8"))
    return found


def of_checks(found: dict[str, Any]) -> str:
    seconds = found["seconds"]

    def more(name: str) -> tuple[float, float, float]:
        """Percent of a step, as if there were a check every EVERY steps: the quarter, the median, three quarters."""
        shares = [100 * (with_ / without - 1) / EVERY for with_, without in zip(seconds[name], seconds["none"], strict=True)]
        low, middle, high = statistics.quantiles(shares, n=4)
        return low, middle, high

    def shown(low: float, middle: float, high: float) -> str:
        return f"{middle:.2f} % ({low:.2f} to {high:.2f})"

    return (
        f"A whole check with its requests of the store, on {TRAINING} ranks that train ResNet-50 by gloo "
        f"({found['parameters'] / 1e6:.1f} million weights, batch {BATCH}, {SIZE} x {SIZE}): with `replica_check={EVERY}` "
        f"{shown(*more('each step'))} of a step of {1e3 * statistics.median(seconds['none']):.0f} ms; nothing beside nothing: "
        f"{shown(*more('none, again'))}. That is processor time of rank 0, which has the store, of a check in each step, divided by "
        f"{EVERY}; medians and the middle half of {CHECK_TURNS} turns."
    )


def enters(number: int, folder: str) -> None:
    """A process that is alone and one of two ranks, in turns: the processor time of entries, and of the first one as a rank."""
    torch.set_num_threads(1)

    def entries(count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.process_time()
            with msctx.context(deterministic="ON"):
                pass
            times.append(time.process_time() - began)
        return times

    found: dict[str, list[float]] = {"alone": [], "rank": [], "first": []}
    entries(ENTRIES)
    for turn in range(ENTRY_TURNS):
        found["alone"].append(statistics.median(entries(ENTRIES)))
        dist.init_process_group("gloo", init_method=f"file://{folder}/{turn}", rank=number, world_size=TRAINING)
        dist.barrier()
        found["first"] += entries(1)
        found["rank"].append(statistics.median(entries(ENTRIES)))
        dist.barrier()
        dist.destroy_process_group()
    if not number:
        Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")


def entries() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(enters, (folder,), nprocs=TRAINING, start_method="spawn")
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return {"machine": contest.machine(), **found}


def of_entries(found: dict[str, Any]) -> str:
    """As ratios of the same minute: what else the machine does changes both times."""
    ratios = [rank / alone for rank, alone in zip(found["rank"], found["alone"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    of = found["machine"]
    first = f"{1e3 * statistics.median(found['first']):.1f} ms"
    return (
        f'An entry of `deterministic="ON"` costs one of {TRAINING} ranks {middle:.2f} ({low:.2f} to {high:.2f}) times the '
        f"processor time that it costs the same process alone; the first one, which compares, takes {first}. "
        f"{of['cpu']} ({of['isa']}), {of['cores']} cores, busy with other work, torch {of['torch']}: "
        f"the median and the middle half of {ENTRY_TURNS} turns, of {ENTRIES:,} entries each."
    )


def measured() -> dict[str, Any]:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    rows = []
    for size in RANKS:
        rows.append(
            {"ranks": size}
            | {
                name: [seconds(store, size, turn, rank) for turn in range(TURNS)]
                for name, rank in (("equal", -1), ("differing", size - 1), ("first", 0))
            }
        )
    return {
        "machine": contest.machine(),
        "bytes": len(distributed.packed(json.dumps(values(), sort_keys=True))),
        "rows": rows,
        "digests": digests(),
        "checks": checks(),
        "entries": entries(),
    }


def table(found: dict[str, Any]) -> list[str]:
    def figure(times: list[float]) -> str:
        return f"{1e3 * statistics.median(times):.1f} ms ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})"

    columns = {"equal": "all agree", "differing": "the last one differs", "first": "the first one differs"}
    lines = [f"| ranks | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {row['ranks']:,} | {' | '.join(figure(row[name]) for name in columns)} |" for row in found["rows"]]
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
        of_checks(found["checks"]),
        "",
        of_entries(found["entries"]),
        "",
        f"{of['cpu']}, {of['cores']} cores, torch {of['torch']}; medians of {TURNS} turns.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--checks", type=Path)
    parser.add_argument("--entries", type=Path)
    parser.add_argument("--asker", nargs=5)
    given = parser.parse_args()
    if given.asker:
        port, of, size, differing, number = given.asker
        asker(int(port), of, [*range(int(number), int(size), ASKERS)], int(differing))
    elif given.checks:
        found = json.loads(given.checks.read_text()) | {"checks": checks()}
        print(of_checks(found["checks"]))
        contest.keep(given.checks, found)
    elif given.entries:
        found = json.loads(given.entries.read_text()) | {"entries": entries()}
        print(of_entries(found["entries"]))
        contest.keep(given.entries, found)
    elif given.docs:
        contest.into_docs("agreement", table(json.loads(given.docs.read_text())))
    else:
        found = measured()
        print("\n".join(table(found)))
        if given.out:
            contest.keep(given.out, found)


if __name__ == "__main__":
    main()
