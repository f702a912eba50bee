"""What observers cost: a training step's CPU time under each over that without, on one thread, in turns in one process.

The first contender is the step without an observer again (A/A); torch's own tools come last, and msProbe's statistics of the calls of
APIs (L1) where mindstudio-probe is installed. A turn is the faster of two steps under an observer and of two without, one after the
other, since the machine's speed drifts; a figure is the median over the rounds of a process; of several processes the table shows the
median and the range.

The times are taken with a heap that keeps what is freed. With glibc's defaults a step has between none and some 30,000 page faults,
with an observer as without, and their time hides what an observer costs.

    python bench/observers.py --processes 3 --out RAW.json
    python bench/observers.py --summary RAW.json > bench/results/NAME-observers.json
    python bench/observers.py --docs bench/results/NAME-observers.json
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import contest
import figures
import networks
import summary
import torch

import msctx
from msctx.observers import operator_events

Scope = Callable[[], AbstractContextManager[Any]]
Step = Callable[[], None]
ROUNDS = 5
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's ``malloc.h``."""


class Forgets(operator_events.Reader):
    """Asks, and drops what it gets: the cost of collecting alone."""

    def __init__(self, **requested: int) -> None:
        self.settings, self._requested = requested, requested

    @property
    def requested(self) -> Mapping[str, int]:
        return self._requested


@contextmanager
def collecting(**requested: int) -> Any:
    (reader := Forgets(**requested)).begin()
    yield
    reader.end()


@contextmanager
def debug_mode() -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    with DebugMode(), DebugMode.log_tensor_hashes(hash_inputs=True):
        yield


def msprobe(folder: Path) -> Callable[[], AbstractContextManager[Any]]:
    from msprobe.pytorch import PrecisionDebugger

    statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": str(folder / "msprobe"), "rank": [], "step": [], "level": "L1"}
    (folder / "msprobe.json").write_text(json.dumps({**config, "statistics": statistics}))
    debugger = PrecisionDebugger(config_path=str(folder / "msprobe.json"))

    @contextmanager
    def collecting() -> Any:
        debugger.start()
        debugger.service.api_register.register_all_api()
        yield
        debugger.stop()
        debugger.step()
        debugger.service.api_register.restore_all_api()  # stop() leaves torch's functions wrapped

    return collecting


def contenders(folder: Path) -> dict[str, Scope]:
    (folder / "env.json").write_text(json.dumps({"rdr": {"enable": True, "path": str(folder / "recorder")}}))
    dump = {"enable_dump": True, "dump_path": str(folder / "dump"), "dump_mode": "all", "dump_data": "stats"}
    found: dict[str, Scope] = {
        "without, again (A/A)": nullcontext,
        "recorder": lambda: msctx.context(env_config_path=str(folder / "env.json")),
        "watchdog": lambda: msctx.context(op_timeout=900),
        "overflow": lambda: msctx.context(session={"enable_dump_debug": True, "dump_path": str(folder / "overflow")}),
        "digests of results": lambda: collecting(outputs=1, digests=1),
        "digests of all tensors": lambda: collecting(inputs=1, outputs=1, digests=1),
        "statistics of results": lambda: collecting(outputs=1, statistics=1),
        "statistics of all tensors": lambda: collecting(inputs=1, outputs=1, statistics=1),
        "both of all tensors": lambda: collecting(inputs=1, outputs=1, statistics=1, digests=1),
        "dump of statistics of all tensors": lambda: msctx.context(session=dump),
        "torch.autograd.detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
        "torch's DebugMode with hashes": debug_mode,
    }
    if importlib.util.find_spec("msprobe"):
        found["msProbe's statistics (L1)"] = msprobe(folder)
    return found


def step_of(model: torch.nn.Module, x: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def steps() -> dict[str, Step]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return {
        "ResNet-50, batch 4, 128 x 128": step_of(networks.NETWORKS["ResNet-50"](), torch.randn(4, 3, 128, 128)),
        "transformer, 4 layers of 256, batch 8 x 128": step_of(torch.nn.TransformerEncoder(layer, 4), torch.randn(8, 128, 256)),
    }


def heap_keeps_what_is_freed() -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def in_turns(step: Step, scopes: dict[str, Scope]) -> dict[str, float]:
    """Of each scope, the median over the rounds: the time of the faster of two steps under it, over that under none beside it."""
    found: dict[str, list[float]] = {name: [] for name in scopes}

    def timed() -> float:
        begun = time.process_time()
        step()
        return time.process_time() - begun

    def least(scope: Scope) -> float:
        with scope():
            return min(timed(), timed())

    for turn in range(ROUNDS + 1):
        for name, scope in scopes.items():
            if turn % 2:
                plain, own = least(nullcontext), least(scope)
            else:
                own, plain = least(scope), least(nullcontext)
            found[name] += [own / plain] * (turn > 0)  # the first round warms up
    return {name: statistics.median(each) for name, each in found.items()}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All steps."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        others = contenders(Path(folder))
        heap_keeps_what_is_freed()
        yield {"ratios": {model: in_turns(step, others) for model, step in steps().items()}}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each observer."""
    processes = summary.every(results)
    first = processes[0]["ratios"]
    rows = [
        {"observer": name, "ratios": {model: figures.of([one["ratios"][model][name] for one in processes]) for model in first}}
        for name in next(iter(first.values()))
    ]
    return summary.head(results) | {"processes": len(processes), "rows": rows}


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each observer."""
    lines = [[row["observer"], *(figures.span(ratio, ".3f") for ratio in row["ratios"].values())] for row in of["rows"]]
    last = f"{summary.described(of)}; one thread; processes: {of['processes']}. In brackets: the range over processes."
    head = ["a step's time over that without", *of["rows"][0]["ratios"]]
    return {f"observers-{of['machine']['isa']}": summary.table(head, lines, last)}


def main() -> None:
    summary.do(contest.parser(__doc__, processes=3).parse_args(), ["steps"], work, reduced, tables)


if __name__ == "__main__":
    main()
