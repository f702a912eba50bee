"""What `deterministic=ON` costs, operator by operator: the candidates for `deterministic_except`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msctx.errors import EntryFailed
from msctx.observers import collector
from msctx.observers.collector import Reader, Row, kind_of
from msctx.verify.reader import StepReader
from msctx.verify.result import Result
from msctx.verify.runs import Side, Subject, running
from msctx.verify.wire import Message

ON, OFF = "deterministic=ON", "deterministic=OFF"
SLOWER, SHARE = 1.25, 0.02
"""How many times its usual time without even the shortest one is, and which share of a step more, of a candidate."""
NO_KERNEL = "does not have a deterministic implementation"
"""Torch's error."""
Times = dict[str, float]
"""Operator and module → microseconds of a step."""


class TimesReader(StepReader):
    """Of each step, how long each operator took in each module."""

    def __init__(self, ended: Callable[[], object]) -> None:
        super().__init__(ended)
        self.forget()

    def forget(self) -> None:
        self._times: defaultdict[str, float] = defaultdict(float)

    @property
    def asked(self) -> Mapping[str, int]:
        return {"outputs": 1}

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._times[_place(row)] += row["took"]

    @property
    def report(self) -> Message:
        return {"times": self._times}


class ErrorReader(Reader):
    """The operators that raised."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.met: list[str] = []

    @property
    def asked(self) -> Mapping[str, int]:
        return {"errors": 1}

    @property
    def folder(self) -> Path:
        return self._folder

    def take(self, rows: list[Row]) -> None:
        self.met += [_place(row) for row in rows]


def _place(row: Row) -> str:
    return f"{kind_of(row)} {row['module']}"


def candidates(subject: Subject, steps: int | None, watch: Callable[[str], object]) -> Result:
    """Run with and without, step by step in turns; again for each operator that has no deterministic kernel, without it.

    Raises:
        EntryFailed: the entry raised something else.
    """
    result = Result("deterministic", (OFF, ON))
    without_kernel: dict[str, str] = {}
    while True:
        excepted = [f"deterministic_except={' '.join(without_kernel.values())}"] if without_kernel else []
        result.steps, result.operators = 0, 0
        times: list[list[Times]] = [[], []]
        with running(subject, [Side(OFF, [OFF]), Side(ON, [ON, *excepted])], [{"kind": "times"}] * 2) as runs:
            for one in runs:
                one.begin()
            reports: list[Message] = []
            while not any("ended" in one for one in reports) and (steps is None or result.steps < steps):
                watch(f"step {result.steps}, without {', '.join(without_kernel.values()) or 'an operator'}")
                reports = [one.go() for one in runs]
                for side, report in zip(times, reports, strict=True):
                    side.append(report["times"])
                result.steps += not any("ended" in one for one in reports)
        ends = [report.get("ended", {"status": "completed"}) for report in reports]
        if ends[0]["status"] == "failed":
            raise EntryFailed(f"the entry raised under {OFF}\n{ends[0]['error']}")
        if ends[1]["status"] != "failed":
            break
        place = ends[1].get("operator")
        if NO_KERNEL not in ends[1]["error"] or not place or place in without_kernel:
            raise EntryFailed(f"the entry raised under {ON}\n{ends[1]['error']}")
        without_kernel[place] = place.partition(" ")[0].removesuffix("_").removesuffix("_backward")
    _report(result, times, without_kernel)
    return result


def _report(result: Result, times: list[list[Times]], without_kernel: Mapping[str, str]) -> None:
    off, on = (_over_steps(side, min) for side in times)
    usual = _over_steps(times[0], statistics.median)
    modules = [_by_module(side) for side in (off, on)]
    total = sum(off.values()), sum(on.values())
    found: list[dict[str, Any]] = [
        {"operator": name, "module": place.partition(" ")[2]} for place, name in without_kernel.items()
    ]
    costs: list[dict[str, Any]] = []
    for place in off.keys() - without_kernel.keys():
        operator, _, module = place.partition(" ")
        now = on.get(place)
        if now is None:  # others stand in its place, in its module
            now = off[place] + modules[1].get(module, 0.0) - modules[0][module]
        if now > SLOWER * usual[place] and now - off[place] > SHARE * total[0]:
            costs.append({"operator": operator, "module": module, "off_us": off[place], "on_us": now})
    result.candidates = found + sorted(costs, key=lambda one: one["off_us"] - one["on_us"])
    result.notes.append(f"a step's operators take {total[0] / 1e3:.3g} ms under {OFF}, {total[1] / 1e3:.3g} ms under {ON}")


def _by_module(times: Times) -> Times:
    found: defaultdict[str, float] = defaultdict(float)
    for place, time in times.items():
        found[place.partition(" ")[2]] += time
    return found


def _over_steps(steps: list[Times], of: Callable[[list[float]], float]) -> Times:
    """Of all steps one time for each."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in steps:
        for place, time in one.items():
            found[place].append(time)
    return {place: of(all_of_it) for place, all_of_it in found.items()}


def put_readers(ended: Callable[[], object], folder: Path) -> tuple[TimesReader, ErrorReader]:
    """Read times, and the operators that raise, in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    times, errors = TimesReader(ended), ErrorReader(folder)
    collector.put("verify", times)
    collector.put("verify.errors", errors)
    return times, errors
