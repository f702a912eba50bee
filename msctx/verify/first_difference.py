"""Compares two runs operator by operator, until they differ: what differs; the result as a sentence, as facts and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from msctx.context import explain
from msctx.errors import EntryError, EntryFailed
from msctx.observers.operator_events import Row, dtype_of
from msctx.options.algorithm_policy import RULES, rules_of
from msctx.plan import Plan
from msctx.run.experiment_and_entry import read
from msctx.verify.run_processes import Process, Side, running

Watch = Callable[[str], object]
UNREAD = "not every tensor was compared: the collector reads dense ones that have values and are not quantized"
Call = tuple[str, str, int]
"""An operator, its module, and how many of these ran before it in the step."""


def verify(file: str | None, against: str, sides: Sequence[Side], steps: int | None, watch: Watch) -> Result:
    """Compare the first *steps* steps, or all; *watch* is called with a line on the progress.

    Raises:
        EntryFailed: the entry raised, in both runs alike.
        EntryError: nothing was compared.
    """
    is_compiled = len(sides) == 1
    result = Result(against, ("eager", "compiled") if is_compiled else [side.name for side in sides])
    result.unit = "calls of modules" if is_compiled else "operators"
    experiments = [read(file, side.words, need_entry=True) for side in sides]
    plans = [explain(experiment.settings) for experiment in experiments]
    for row in (row for plan in plans for row in (*plan.failing, *plan.incomplete)):  # the runs warn of them where nobody looks
        result.note(str(row))
    one, other = plans[0], plans[-1]
    apart = [name for name in {**one.written, **other.written} if one.written.get(name) != other.written.get(name)]
    with running(file, sides, {"compiled": True} if is_compiled else {"switches": apart}) as runs:
        call = _compared(runs, result, steps, watch)
        is_same = bool(apart) and _have_same(runs, apart, plans, result)
    if call is not None and result.finding is not None:
        watch("one more pair of runs, for the lines and the values")
        _look(file, sides, result.finding, call)
    if result.finding is None and not result.operators:
        result.notes.insert(0, f"the entry's own process had no {result.unit}")
    if result.finding is None and (not result.operators or (is_same and experiments[0].args == experiments[-1].args)):
        raise EntryError("; ".join(["nothing was compared", *result.notes]))
    return result


def _have_same(runs: Sequence[Process], apart: Sequence[str], plans: Sequence[Plan], result: Result) -> bool:
    """Whether each option that was to set switches *apart* had them alike in both runs, or did nothing; notes what it had or did."""
    idle = [text for run in runs for text in run.idle]
    for text in idle:
        result.note(text)
    rules = {row.spelling: len(rules_of(row.value)) for plan in plans for row in plan.rows if row.option in RULES}
    is_same, given = True, [{row.spelling: row.value for row in plan.rows} for plan in plans]
    options = {option for plan in plans for name in apart for option in plan.sources.get(name, ())}
    for option in sorted(one for one in options if given[0].get(one) != given[-1].get(one)):
        places = [place for place, name in enumerate(apart) if any(option in plan.sources.get(name, ()) for plan in plans)]
        mine, its = ([[values[place] for place in places] for values in run.values] for run in runs)
        are_alike = all(one in its for one in mine) and all(one in mine for one in its)
        if both := [one for one in mine if one in its]:
            had = f"{'all' if are_alike else 'some'} operators had {apart[places[0]]}={both[0][0]} in both runs"
            result.note(f"{option}: {had}; does the program set it itself?")
        did_nothing = sum(text.startswith((f"{option}=", f"{option}: no ")) for text in idle) >= rules.get(option, 1)
        is_same = is_same and (are_alike or did_nothing)
    return is_same


def _compared(runs: Sequence[Process], result: Result, steps: int | None, watch: Watch) -> Call | None:
    """Complete the result; the operator at which two runs differ."""
    met: Counter[tuple[str, str]] = Counter()
    while steps is None or result.steps < steps:
        messages = [run.receive() for run in runs]
        one, other = messages[0], messages[-1]
        row = one.get("row") or other.get("row") or {}
        place = {name: row.get(name, "") for name in PLACE}
        call = place["operator"], place["module"], met[place["operator"], place["module"]]
        if one["does"] != other["does"]:
            texts = [f"{name} {message['does']}" for name, message in zip(result.names, messages, strict=True)]
            result.finding = Finding("diverged", result.steps, reason=", ".join(texts), **place)
            return call if row else None
        match one:
            case {"row": _}:
                if (found := difference(row, other["row"])) is not None:
                    result.finding = Finding(found[0], result.steps, inputs=found[1], **place)
                    return call
                met[call[:2]] += 1
                result.operators += not row["outputs"] or any(digest is not None for _, _, digest in row["outputs"])
                result.note(UNREAD * any(digest is None for _, _, digest in row["outputs"]))
            case {"does": "ends the step"}:
                result.steps += 1
                met.clear()
                watch(result.amount)
            case {"note": note}:
                result.note(note)
            case {"finding": found}:
                result.finding = Finding("compiled", result.steps, **found)
                return None
            case {"error": error}:
                raise EntryFailed(error)  # in both runs
            case _:
                return None
    return None


def _look(file: str | None, sides: Sequence[Side], finding: Finding, call: Call) -> None:
    """Complete a finding with one more pair of runs, up to the operator."""
    with running(file, sides, {"step": finding.step, "call": call}) as runs:
        details = [(run.folder, message["detail"]) for run in runs if "detail" in (message := run.receive())]
        if details:
            finding.source = details[0][1]["called"]
            finding.forward = details[0][1]["line"] if finding.direction == "backward" else ""
            if finding.kind == "random" and details[0][1]["attributes"].get("generator"):
                finding.kind = "generator"
        if len(details) < 2 or finding.kind == "diverged":
            return
        (mine, row), (its, other), values = *details, dict[str, str]()
        for side in ("inputs", "outputs") if finding.kind == "input" else ("outputs",):
            for number, (a, b) in enumerate(zip(row[side], other[side], strict=False)):
                if a["file"] and b["file"]:
                    first, second = (torch.from_numpy(np.load(path)) for path in (mine / a["file"], its / b["file"]))
                    values[f"{side[:-1]} {a['argument'] or number}"] = differing(first, second)
        others = other["attributes"]
        apart = {n: f"{v} and {others.get(n)}" for n, v in row["attributes"].items() if v != others.get(n)}
        if apart and finding.kind == "operator":
            finding.kind, finding.inputs = "input", [*apart]
        finding.values = {name: text for name, text in (values | apart).items() if text}


TEXTS = {
    "operator": "its input tensors agree and its outputs differ",
    "random": "the runs drew different random numbers: set seed=0",
    "generator": "a torch.Generator of the program is not seeded: call generator.manual_seed",
    "input": "{} differs, and no operator before it computed that: a parameter, data, a number of the program, random numbers of "
    "Python or NumPy, or uninitialised memory",
    "compiled": "compiled and eager code differ by more than rounding",
    "diverged": "the runs diverge",
}
"""The kinds of differences."""


@dataclass
class Finding:
    """The first difference, and its place."""

    kind: str
    step: int
    operator: str = ""
    module: str = ""
    direction: str = ""
    node: str = ""
    """In a backward pass: the node of the graph that called it."""
    source: str = ""
    """The line that called it."""
    forward: str = ""
    """In a backward pass: the line that called the operator of the forward pass."""
    inputs: Sequence[str] = ()
    """The inputs that differ."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What differs (inputs, outputs, arguments) → by how much."""
    reason: str = ""

    @property
    def sentence(self) -> str:
        where = f"{self.operator} in {f'module {self.module}' if self.module else 'no module'}" * bool(self.operator)
        direction = self.direction + " pass" * (self.direction in ("forward", "backward")) + f" ({self.node})" * bool(self.node)
        place = ", ".join(filter(None, [where, direction, f"step {self.step}", self.source]))
        reason = f"; {self.reason}" * bool(self.reason)
        return f"{place}: {TEXTS[self.kind].format(', '.join(self.inputs))}{reason}"


@dataclass
class Result:
    against: str
    names: Sequence[str]
    steps: int = 0
    operators: int = 0
    """Operators that agree, or what *unit* counts."""
    unit: str = "operators"
    finding: Finding | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        if self.finding is not None:
            return f"{self.names[0]} and {self.names[1]} differ: {self.finding.sentence}"
        return f"equal: {self.names[0]} and {self.names[1]} agree in {self.amount}"

    @property
    def amount(self) -> str:
        return f"{self.steps} step{'s' * (self.steps != 1)}, {self.operators} {self.unit}"

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def facts(self) -> dict[str, str]:
        """Names and texts, for people."""
        shown: dict[str, str] = {}
        if (found := self.finding) is not None:
            names = ("operator", "module", "direction", "source", "forward")
            shown = {name: getattr(found, name) for name in names} | {"agree before it": self.amount, **found.values}
        shown |= {f"note {number}": text for number, text in enumerate(self.notes, 1)}
        return {name: text for name, text in shown.items() if text}

    def as_json(self) -> dict[str, Any]:
        return {"equal": self.finding is None, "sentence": self.sentence, **asdict(self)}


Ran = dict[str, Any]
"""Its :data:`PLACE`, ``overload``, and its ``inputs`` and ``outputs``: argument, dtype and shape, and digest of each."""
PLACE = ("operator", "module", "direction", "node")
SCRATCH_OUTPUTS = {"aten::mkldnn_rnn_layer": 3, "aten::_cudnn_rnn": 4, "aten::miopen_rnn": 4, "aten::cudnn_batch_norm": 3}
SCRATCH_INPUTS = ("workspace", "reserve", "reserveSpace")
"""Workspaces of libraries, which may write only a part of them: the same results leave different bits there."""


def ran(row: Row) -> Ran:
    """From a row of the collector."""
    scratch = SCRATCH_OUTPUTS.get(row["operator"])
    inputs = [_tensor(one, is_scratch=one["argument"] in SCRATCH_INPUTS) for one in row["inputs"]]
    outputs = [_tensor(one, is_scratch=number == scratch) for number, one in enumerate(row["outputs"])]
    return {**{name: row.get(name, "") for name in (*PLACE, "overload")}, "inputs": inputs, "outputs": outputs}


def _tensor(found: Row, *, is_scratch: bool) -> list[Any]:
    """The digest of a tensor that the collector cannot read is ``None``."""
    content = f"{dtype_of(found)}[{found['shape'].replace('x', ', ')}]"
    return [found["argument"], content, 0 if is_scratch else found.get("digest")]


def difference(one: Ran, other: Ran) -> tuple[str, list[str]] | None:
    """The kind, and the inputs that differ; ``None``: the outputs agree.

    ``operator``: equal inputs and different outputs. ``random``: the same, from a random generator. ``input``: an input differs.
    Inputs count only if the outputs differ: memory that is about to be overwritten may hold anything.
    """
    if one["outputs"] == other["outputs"]:
        return None
    is_random = _is_random(one)
    pairs = zip(one["inputs"], other["inputs"], strict=False)
    inputs = [f"{a[0]} {a[1]}".lstrip() for a, b in pairs if a != b and not (is_random and a[0] == "self")]
    return "input" if inputs else "random" if is_random else "operator", inputs


def _is_random(row: Ran) -> bool:
    """Whether the operator draws from one of torch's generators."""
    space, _, name = row["operator"].partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if name else None
    overload = getattr(packet, row["overload"] or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ())


def differing(one: torch.Tensor, other: torch.Tensor, tolerance: float = 0.0) -> str:
    """``64 / 80 (80.0%) elements, by 0.5 at index (0, 1)``; ``""``: they agree."""
    try:
        torch.testing.assert_close(torch.atleast_1d(other), torch.atleast_1d(one), rtol=0, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        facts = [line.partition(": ")[2] for line in str(error).splitlines() if ": " in line]
        return f"{facts[0]} elements, by {facts[1]}" if len(facts) > 1 else str(error).splitlines()[0]
    return ""
