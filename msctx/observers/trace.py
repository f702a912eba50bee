"""Reads a trace of torch.profiler: what each step consists of, and which algorithm each operator ran.

The native core runs each algorithm inside a range such as ``msctx::winograd fprop``, so a call of an operator is known to have run
the algorithms of the ranges in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
MARK = "msctx.step#"
"""A range without length, which the recorder leaves where a step ends."""
ALGORITHM = "msctx::"
PHASES = ("data", "forward", "backward", "optimizer")
_OF_TORCH = ("Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.", "FSDP::", "Torch-Compiled Region", ALGORITHM)
"""How ranges begin that torch itself, or the native core, records."""
_OF_COMMUNICATION = ("c10d::", "nccl:", "gloo:", "mpi:", "record_param_comms")
_TRACK = 10**9
"""The number of a thread that does not exist, for the ranges of steps: those of users may begin and end anywhere."""


@dataclass(slots=True)
class Operator:
    """The calls of an operator with some shapes in one step; milliseconds of the host."""

    calls: int = 0
    total: float = 0.0
    own: float = 0.0
    """Without the operators inside it."""
    algorithms: Counter[str] = field(default_factory=Counter)

    @property
    def algorithm(self) -> str:
        """All that ran, and how often where there were several."""
        if len(self.algorithms) < 2:
            return "".join(self.algorithms)
        return "; ".join(f"{name} x{count}" for name, count in self.algorithms.items())


@dataclass(slots=True)
class Step:
    """Microseconds in the clock of the trace."""

    index: int | None
    """``None``: steps are not asked for, it is all that was recorded."""
    begin: float
    end: float
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, begin and end of each stretch."""
    operators: dict[tuple[str, str], Operator] = field(default_factory=dict)
    """By name and shapes."""

    def milliseconds(self, phase: str) -> float | None:
        found = [end - begin for name, begin, end in self.phases if name == phase]
        return sum(found) / 1e3 if found else None


class Trace:
    """One trace, as JSON has it, with the *options* of the recorder."""

    def __init__(self, content: dict[str, Any], options: Mapping[str, Any], thread: int, first: int, *, full: bool) -> None:
        """*thread* is the system's number of the one that trained, *first* the index of the step in which recording began; *full*:
        what follows the last step that ended is part of it."""
        self.content, self._options, self._thread = content, options, thread
        events: list[Event] = content["traceEvents"]
        host = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
        host.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
        nested = [*_nested(host)]
        self.steps = self._bounded(nested, first, full) if options["steps"] else [_whole(host)]
        self.was_cut = any(event.get("args", {}).get("finished") is False for event in host)
        """Whether a range was open at the end."""
        self.names = {event["name"] for event in host}
        self.unmatched = [p for p in (options["fp_point"], options["bp_point"]) if p and not any(_is(e, p) for e in host)]
        self._place(nested)
        self.steps = [step for step in self.steps if step.operators]
        if options["steps"]:
            for step in self.steps:
                self._clip(step, host)
        tracks = [*self._tracks()]
        self.content["traceEvents"] = [*filter(self._is_kept, events), *tracks]
        if not options["operators"]:
            for step in self.steps:
                step.operators.clear()

    def _bounded(self, nested: list[tuple[Event, tuple[Event, ...]]], first: int, full: bool) -> list[Step]:
        ends = []
        for event, around in nested:
            if event["name"].startswith(MARK):
                optimizer = next((e for e in around if e["name"].startswith("Optimizer.step")), None)
                ends.append(event["ts"] if optimizer is None else _end(optimizer))
        whole = _whole([event for event, _ in nested])
        last = max([whole.end, *ends])
        bounds = [whole.begin, *sorted(ends)[: -1 if full else None], last]
        return [Step(first + place, *pair) for place, pair in enumerate(pairwise(bounds))]

    def _place(self, nested: list[tuple[Event, tuple[Event, ...]]]) -> None:
        """Operators and stretches into their steps."""
        begins = [step.begin for step in self.steps]
        for event, around in sorted(nested, key=lambda found: found[0]["ts"]):  # of all threads together
            name, step = event["name"], self.steps[max(0, bisect_right(begins, event["ts"]) - 1)]
            above = next((e for e in reversed(around) if e["cat"] == "cpu_op"), None)
            if name.startswith(ALGORITHM):
                if above is not None:
                    _operator(step, above).algorithms[name.removeprefix(ALGORITHM)] += 1
                continue
            if event["cat"] == "cpu_op":
                found = _operator(step, event)
                found.calls += 1
                found.total += event["dur"] / 1e3
                found.own += event["dur"] / 1e3
                if above is not None:
                    _operator(step, above).own -= event["dur"] / 1e3
            phase = _phase(event)
            if phase in PHASES and not any(map(_phase, around)) and (event["tid"] == self._thread or phase == "backward"):
                _lengthen(step.phases, phase, event)

    def _clip(self, step: Step, host: list[Event]) -> None:
        """Begin forward, and end backward, where the user wants it."""
        inside = [event for event in host if step.begin <= event["ts"] < step.end]
        first = min((e["ts"] for e in inside if _is(e, self._options["fp_point"])), default=step.begin)
        last = max((_end(e) for e in inside if _is(e, self._options["bp_point"])), default=step.end)
        limits = {"forward": (first, step.end), "backward": (step.begin, last)}
        clipped = [
            (name, max(b, limits.get(name, (b, e))[0]), min(e, limits.get(name, (b, e))[1])) for name, b, e in step.phases
        ]
        step.phases = [(name, begin, end) for name, begin, end in clipped if begin < end]

    def _is_kept(self, event: Event) -> bool:
        name, category = str(event.get("name", "")), event.get("cat")
        if name.startswith(MARK) or (name.startswith(_OF_COMMUNICATION) and not self._options["communication"]):
            return False
        if category == "user_annotation":
            is_module = self._options["modules"] is not None and name.partition("/")[0] == "Default"
            return is_module or bool(self._options["ranges"]) or name.startswith(_OF_TORCH)
        return bool(self._options["operators"]) or event.get("ph") in ("M", "i")

    def _tracks(self) -> Iterator[Event]:
        if not self._options["steps"] or not self.steps:
            return
        process = next((e["pid"] for e in self.content["traceEvents"] if e.get("tid") == self._thread), 0)
        track = {"pid": process, "tid": _TRACK}
        yield {"ph": "M", "name": "thread_name", "ts": 0, "args": {"name": "steps"}, **track}
        yield {"ph": "M", "name": "thread_sort_index", "ts": 0, "args": {"sort_index": -1}, **track}
        for step in self.steps:
            for name, begin, end in ((f"ProfilerStep#{step.index}", step.begin, step.end), *step.phases):
                yield {"ph": "X", "cat": "user_annotation", "name": name, "ts": begin, "dur": end - begin, "args": {}, **track}


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _whole(host: list[Event]) -> Step:
    return Step(None, min((e["ts"] for e in host), default=0.0), max(map(_end, host), default=0.0))


def _nested(host: list[Event]) -> Iterator[tuple[Event, tuple[Event, ...]]]:
    """Each event, and those of its thread that are around it, the outermost first."""
    around: list[Event] = []
    for event in host:
        while around and (around[-1]["tid"] != event["tid"] or _end(around[-1]) <= event["ts"]):
            around.pop()
        yield event, tuple(around)
        around.append(event)


def _phase(event: Event) -> str:
    """What an event of the host makes of its time; ``""``: nothing, those inside it do."""
    name = event["name"]
    if name.startswith("Optimizer.step"):
        return "optimizer"
    if name.startswith("Optimizer."):
        return "other"
    if name.startswith("enumerate(DataLoader)"):
        return "data"
    if event["cat"] == "cpu_op":
        return "backward" if name.startswith("autograd::engine::evaluate_function") else "forward"
    return ""


def _lengthen(phases: list[tuple[str, float, float]], phase: str, event: Event) -> None:
    """The stretch goes on, or another begins."""
    if phases and phases[-1][0] == phase:
        phases[-1] = (phase, phases[-1][1], max(phases[-1][2], _end(event)))
    else:
        phases.append((phase, event["ts"], _end(event)))


def _operator(step: Step, event: Event) -> Operator:
    shapes = " ".join(str(shape).replace(" ", "") for shape in event.get("args", {}).get("Input Dims", ()) if shape)
    return step.operators.setdefault((event["name"], shapes), Operator())


def _is(event: Event, point: str) -> bool:
    name = event["name"]
    return bool(point) and (name == point or (event["cat"] == "cpu_op" and name.rpartition("::")[2] == point))
