"""The result of `msctx verify`, as a sentence, as facts and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

TEXTS = {
    "operator": "its inputs agree and its outputs differ",
    "random": "the runs drew different random numbers: set seed (experiment.seed=0)",
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
