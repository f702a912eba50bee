"""What agreement, records and replica checks take at 10^4 ranks, computed from costs that are measured here.

A request of the store costs a fixed time and some for each byte: both are measured against torch's TCPStore on the loopback, asked
by two processes at once. Which requests a rank makes, and how large they are, is taken from msctx's own code, run against a store
that writes them down, after as many other ranks as there are. The store answers one request after the other, so the ranks together
wait for the sum. That this holds is shown by the requests of 1,024 ranks that agree, whose time is measured as well.

    python bench/scale.py --out bench/results/NAME-scale.json
    python bench/scale.py --docs bench/results/NAME-scale.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import agreement as simulated
import contest
import networks
import torch
from torch.distributed import HashStore, TCPStore

from msctx.context import agreement
from msctx.native import distributed
from msctx.observers import last_steps, replicas
from msctx.run import launch
from msctx.run.record import Record

RANKS = (1_024, 10_000)
PER_NODE = 8
SIZES = {32: 4_000, 65_536: 200}
"""Bytes of a value → how many requests are timed."""
ASKERS, TURNS = 2, 5
CONNECTIONS = 20
"""Of each asker; the median counts, for some of them may wait for a name server."""
RECORDS = 1_000
EVERY = 50
"""Steps from one check of replicas to the next."""
LAYERS = 96
"""Of the second model that is checked: the size of digests depends on how many tensors there are, and not on theirs."""

REQUESTS: dict[str, Callable[[Any, str, str], object]] = {
    "compare_set": lambda store, key, text: store.compare_set(key, "", text),
    "set": lambda store, key, text: store.set(key, text),
    "append": lambda store, key, text: store.append(key, text),
    "get": lambda store, key, text: store.get(key),
    "check": lambda store, key, text: store.check([key]),
    "delete_key": lambda store, key, text: store.delete_key(key),
    "rank": lambda store, key, text: [
        store.compare_set(key, "", text),
        store.append(f"{key}/all", "1000 "),
        store.compare_set(key, "", text),
    ],
}
"""The last is what a rank asks that agrees with the first: to check that its requests take what they take one by one."""
SINGLE = [*REQUESTS][:-1]
CONNECT = "connect"
AGREED = 1_256
"""Bytes of what a rank puts into the store under `reproducible`."""
SAME_KEY = ("get", "check", "compare_set", "rank")
"""Asked of a key that is there, as ranks do that come after the first."""


# --- costs ------------------------------------------------------------------------------------------------------------


def asker(port: int, number: int) -> None:
    """Makes requests as they are named on stdin; prints when it began and ended."""
    kept = []

    def connected() -> TCPStore:
        return TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))

    store = connected()
    print("ready", flush=True)
    for line in sys.stdin:
        name, size, count, turn = line.split()
        text = "x" * int(size)
        began = time.time()
        if name == CONNECT:
            times = []
            for _ in range(int(count)):
                before = time.time()
                kept.append(connected())
                times.append(time.time() - before)
            print(json.dumps([0.0, statistics.median(times) * int(count)]), flush=True)
            continue
        request, is_same = REQUESTS[name], name in SAME_KEY
        for one in range(int(count)):
            request(store, size if is_same else f"{size}/{number}/{turn}/{one}", text)
        store.check(["none"])  # some requests have no answer; now the store has done all of them
        print(json.dumps([began, time.time()]), flush=True)


def timed(askers: list[subprocess.Popen[str]], name: str, size: int, count: int, turn: int) -> float:
    """Seconds of the store for each of the requests that all askers make at once."""
    for process in askers:
        assert process.stdin is not None
        process.stdin.write(f"{name} {size} {count} {turn}\n")
        process.stdin.flush()
    times = [json.loads(process.stdout.readline()) for process in askers if process.stdout is not None]
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / (count * len(askers))


def costs() -> dict[str, Any]:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for size in (*SIZES, AGREED):
        store.set(f"{size}", "x" * size)
    askers = simulated.asking([sys.executable, __file__, "--asker", str(store.port)], ASKERS)
    found: dict[str, Any] = {name: {size: [] for size in SIZES} for name in SINGLE} | {"rank": []}
    for turn in range(TURNS):
        for size, count in SIZES.items():
            for name in SINGLE:  # what was set is deleted last
                found[name][size].append(timed(askers, name, size, count, turn))
        found["rank"].append(timed(askers, "rank", AGREED, RANKS[0] // ASKERS, turn) * RANKS[0])
    found[CONNECT] = [timed(askers, CONNECT, 0, CONNECTIONS, turn) for turn in range(TURNS)]
    for process in askers:
        process.communicate()
    return found


def cost_of(costs: dict[str, Any], name: str, size: int) -> float:
    """Seconds of a request with so many bytes. A connection's is an upper bound: half of what two processes wait for theirs."""
    if name == CONNECT:
        return float(min(costs[name]))
    small, large = sorted(map(int, costs[name]))
    least, most = (min(costs[name][key]) for key in map(str, (small, large)))
    return float(least + max(0.0, most - least) * max(0, size - small) / (large - small))


# --- requests ---------------------------------------------------------------------------------------------------------


class Written:
    """A store that writes down what is asked of it, with the bytes of each request or of its answer."""

    def __init__(self, store: Any) -> None:
        self._store, self.asked = store, list[tuple[str, int]]()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def written(*args: Any) -> Any:
            found = call(*args)
            values = [one for one in (*args[1:], found) if isinstance(one, str | bytes)]
            self.asked.append((name, max(map(len, values), default=0)))
            return found

        return written


@contextmanager
def as_rank(rank: int, store: Any) -> Iterator[None]:
    with mock.patch.multiple(distributed, rank=lambda: rank, store=lambda: store):
        yield


def agreeing(ranks: int, differing: bool) -> list[tuple[str, int]]:
    """Of the last rank's first context; *differing*: all of them differ from the first."""
    store, mine = HashStore(), simulated.values()
    simulated.ask(store, "of", 0, {**mine, "torch.num_threads": (-1, "elsewhere")} if differing else mine)
    same = f":{agreement._same(mine)}" if differing else ""
    store.append("of/all", "".join(f"{rank}{same} " for rank in range(1, ranks - 1)))
    simulated.ask(written := Written(store), "of", ranks - 1, mine)
    return written.asked


def checking(ranks: int, digests: dict[str, str]) -> list[tuple[str, int]]:
    """Of the last rank at a check of equal replicas."""
    store, everybody = HashStore(), [*range(ranks)]
    with as_rank(0, store):
        replicas._exchange("of", 1, everybody, digests)
    with as_rank(ranks - 1, written := Written(store)):
        replicas._exchange("of", 1, everybody, digests)
    return written.asked


def stepping(ranks: int) -> list[tuple[str, int]]:
    with as_rank(ranks - 1, written := Written(HashStore())):
        last_steps._leave(ranks - 1, 1_000_000)
    return written.asked


def waiting(ranks: int) -> list[tuple[str, int]]:
    """Of the last rank, where one did not come."""
    store = HashStore()
    store.append(last_steps.waiting(), "".join(f"{rank} " for rank in range(1, ranks - 1)))
    store.set(last_steps.step_of(0), "1000000 00:00:00")
    with as_rank(ranks - 1, written := Written(store)):
        last_steps._late(ranks - 1, [*range(ranks)], True, 0.0)
    return written.asked


def models() -> dict[str, dict[str, str]]:
    """Name → digests."""
    layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 1, 8), LAYERS, enable_nested_tensor=False)
    found = {"ResNet-50": networks.resnet50(), f"a transformer of {LAYERS} layers": layers}
    for model in found.values():
        for parameter in model.parameters():  # new ones are equal in many layers, and so would be their digests
            torch.nn.init.normal_(parameter)
    return {name: replicas._digests(model) for name, model in found.items()}


def requests() -> list[dict[str, Any]]:
    """What ranks do, how long all of them may take, and the requests of one of them at each number of ranks."""
    step = "each second, on each rank that ended a step"
    wait = last_steps.SECONDS - last_steps.GRACE
    rows: list[tuple[str, str, float, Callable[[int], list[tuple[str, int]]]]] = [
        ("agreement in a process group, all agree", "once", agreement.SECONDS, lambda ranks: agreeing(ranks, False)),
        ("agreement in a process group, all differ", "once", agreement.SECONDS, lambda ranks: agreeing(ranks, True)),
        (
            "agreement before there is one, all agree",
            "once",
            agreement.SECONDS,
            lambda ranks: [(CONNECT, 0), *agreeing(ranks, False)],
        ),
        ("`hccl_timeout`, steps", step, 1.0, stepping),
        ("`hccl_timeout`, a wait was too long", "then", wait, waiting),
    ]
    for name, digests in models().items():
        what = f"`replica_check` of {name} ({len(digests):,} tensors)"
        rows.append((what, "each check", replicas.SECONDS, lambda ranks, digests=digests: checking(ranks, digests)))
    return [
        {"what": what, "when": when, "limit": limit, "requests": {ranks: of(ranks) for ranks in RANKS}}
        for what, when, limit, of in rows
    ]


# --- records ----------------------------------------------------------------------------------------------------------


def records() -> dict[str, Any]:
    """The files of a rank of `msctx run --nproc`; what it takes to write them again, and an agent to gather the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "entry.py").write_text("def main(run):\n    return {'loss': 0.5}\n", encoding="utf-8")
        (folder / "e.yaml").write_text(
            "context: {deterministic: 'ON'}\nexperiment: {entry: 'entry.py:main'}\n", encoding="utf-8"
        )
        command = [sys.executable, "-m", "msctx", "run", "e.yaml", "--nproc", "2", "--out", "out"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        files = {path.name: path.read_text(encoding="utf-8") for path in (folder / "out" / "rank_1").iterdir()}
        began = time.perf_counter()
        for rank in range(RECORDS):
            record = Record.create(str(folder / "many" / f"rank_{rank}"), "", "")
            for file, text in files.items():
                record.text(file, text)
        written = time.perf_counter() - began
        (seen := folder / "seen").write_text(str(folder / "many" / "rank_0"), encoding="utf-8")
        began = time.perf_counter()
        rows = launch._gathered(seen)["ranks"]
        gathered = time.perf_counter() - began
        assert len(rows) == RECORDS
    return {
        "files": len(files),
        "bytes": sum(map(len, files.values())),
        "write": written / RECORDS,
        "gather": gathered / RECORDS,
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    found = {
        "machine": contest.machine(),
        "costs": costs(),
        "requests": requests(),
        "records": records(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "load": os.getloadavg()[0],
    }
    kept: dict[str, Any] = json.loads(json.dumps(found))
    return kept


def seconds(found: dict[str, Any], row: dict[str, Any], ranks: int) -> float:
    """For all ranks, as if each read what the last one reads."""
    return ranks * sum(cost_of(found["costs"], name, size) for name, size in row["requests"][str(ranks)])


def most(found: dict[str, Any], row: dict[str, Any]) -> int:
    """With how many ranks it takes as long as it may: requests grow in number with the ranks, and some in size."""
    (few, a), (many, b) = ((ranks, seconds(found, row, ranks) / ranks) for ranks in RANKS)
    slope = max(0.0, (b - a) / (many - few))
    base = a - slope * few
    if slope * row["limit"] < 1e-6 * base**2:
        return int(row["limit"] / base)
    return int((math.sqrt(base**2 + 4 * slope * row["limit"]) - base) / (2 * slope))


def figure(number: float) -> str:
    """Two digits, as the costs bear."""
    return f"{float(f'{number:.2g}'):,.10g}"


def table(found: dict[str, Any]) -> list[str]:
    costs, of = found["costs"], found["machine"]
    head = ("what", "when", "requests of a rank", "bytes of these", *(f"{ranks:,} ranks" for ranks in RANKS), "stops at")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in found["requests"]:
        asked = row["requests"][str(RANKS[-1])]
        cells = [row["what"], row["when"], str(len(asked)), f"{sum(size for _, size in asked):,}"]
        cells += [f"{figure(seconds(found, row, ranks))} s" for ranks in RANKS]
        lines.append(f"| {' | '.join(cells)} | {figure(most(found, row))} ranks |")
    ranks, kept = RANKS[-1], found["records"]
    nodes = ranks // PER_NODE
    computed, took = seconds(found, found["requests"][0], RANKS[0]), min(costs["rank"])
    names = {name: [1e6 * cost_of(costs, name, size) for size in map(int, costs[name])] for name in SINGLE}
    shown = ", ".join(f"`{name}` {least:.0f} and {large:.0f} µs" for name, (least, large) in names.items())
    return [
        *lines,
        "",
        f"Costs of a request with {' and with '.join(f'{size:,}' for size in SIZES)} bytes: {shown}. The column of bytes is that of "
        f"{ranks:,} ranks. A connection, which agreement opens before there is a process group, as in `msctx run --nproc`, takes at "
        f"most {figure(1e6 * cost_of(costs, CONNECT, 0))} µs of the store; its process needs an open file for each rank, of which "
        f"this machine allows {found['open_files']:,}.",
        "",
        f"Check: the requests of {RANKS[0]:,} ranks that agree, made one after the other, took the store {1e3 * took:.0f} ms; "
        f"computed: {1e3 * computed:.0f} ms. What ranks do themselves, each for itself, is not counted.",
        "",
        f"Records of `msctx run --nproc`: {kept['files']} files of {kept['bytes'] / 1024:.1f} KiB in all for each rank; of {ranks:,} "
        f"ranks {ranks * kept['files']:,} files, {ranks * kept['bytes'] / 1e6:.0f} MB. On this machine's own disk a rank writes them "
        f"in {1e3 * kept['write']:.1f} ms, and an agent gathers the results of {ranks:,} ranks in "
        f"{figure(kept['gather'] * ranks)} s. The agent of each node does that: with {PER_NODE} ranks on each, {nodes:,} nodes open "
        f"{nodes * ranks / 1e6:.1f} million files.",
        "",
        f"{of['cpu']} ({of['isa']}), {of['cores']} cores, busy with other work (load {found['load']:.0f}), torch {of['torch']}; "
        f"the fastest of {TURNS} turns, files of one.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--asker", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.asker:
        asker(*given.asker)
    elif given.docs:
        contest.into_docs("scale", table(json.loads(given.docs.read_text(encoding="utf-8"))))
    else:
        found = measured()
        print("\n".join(table(found)))
        contest.keep(given.out, found)


if __name__ == "__main__":
    main()
