"""What `msctx verify` found, as a sentence and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from msctx.verify import match, rows

MODULE, ENDED = "module", "ended"
"""More kinds of differences: of a module, where a certificate does not hold operators; that one run ends before the other."""


@dataclass
class Finding:
    """The first difference, and where it is."""

    kind: str
    step: int
    operator: str = ""
    module: str = ""
    direction: str = ""
    node: str = ""
    """Of a backward pass: the function of the graph that ran it."""
    occurrence: int = 0
    """How many operators of this name ran in the module and step before it."""
    source: str = ""
    forward: str = ""
    """Of a backward pass: the operator of the forward pass, and where it was called."""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    """The tensors that differ."""
    values: list[dict[str, Any]] = field(default_factory=list)
    """By how much they differ, in one more pair of runs."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that are no tensors and differ → their two values."""
    algorithms: Sequence[str] = ()
    only_in: str = ""
    """The run that has it, where the other has not."""
    reason: str = ""

    @property
    def place(self) -> str:
        where = f"module {self.module}" if self.module else "no module"
        direction = {
            "forward": "forward pass",
            "optimizer": "optimizer",
            "backward": "backward pass" + f" ({self.node})" * bool(self.node),
        }
        parts = [f"{self.operator} in {where}", direction.get(self.direction, self.direction), f"step {self.step}"]
        return ", ".join(filter(None, [*parts, self.source]))

    @property
    def sentence(self) -> str:
        given, made = ", ".join(self.inputs), ", ".join(self.outputs)
        tensor = f"{self.module}.{made}".lstrip(".")
        match self.kind:
            case match.OPERATOR if self.arguments:
                shown = ", ".join(f"{name}: {a} and {b}" for name, (a, b) in self.arguments.items())
                return f"{self.place}: it was called with the same tensors and other arguments ({shown})"
            case match.OPERATOR if self.direction == "optimizer" and not self.values:
                return f"{self.place}: the same tensors go in, and others come out ({made}); numbers may differ (learning rate)"
            case match.OPERATOR:
                ran = f"; {' and '.join(self.algorithms)} ran" if len({*self.algorithms}) > 1 else ""
                return f"{self.place}: its inputs agree and its outputs differ ({made}){ran}"
            case match.RANDOM:
                return f"{self.place}: the runs drew different random numbers: set seed (experiment.seed=0)"
            case match.INPUT:
                return (
                    f"{self.place}: {given} differs, and no operator that ran before made it: data, a number that the program "
                    "computed, random numbers of Python or NumPy, or memory that nobody wrote"
                )
            case rows.PARAMETER if self.direction == "forward":
                return f"parameter or buffer {tensor} differs when the model is called for the first time, step {self.step}"
            case rows.PARAMETER:
                return f"parameter {tensor} differs before step {self.step} of the optimizer, which did not make it differ"
            case rows.GRADIENT:
                return (
                    f"the gradient of {tensor} differs when step {self.step} of the optimizer begins: it was not reduced over the "
                    "ranks, or a rank changed it after that"
                )
            case "compiled" if self.values:
                return f"{self.place}: its inputs agree and its outputs differ by more than rounding; {self.reason}"
            case "compiled":
                return f"{self.place}: {self.reason}, and the eager code does not"
            case match.PARTED:
                only = f" only {self.only_in} runs it" if self.only_in else " the runs go on with different tensors"
                return f"the runs part here: {self.place}:{only}"
            case "module":
                return f"module {self.module or '(none)'}, {self.direction}, step {self.step}: what ran in it differs"
            case _:
                return f"the runs part at step {self.step}: {self.reason}"


@dataclass
class Result:
    against: str
    names: tuple[str, str]
    steps: int = 0
    """That agree."""
    operators: int = 0
    """That were compared, or what *unit* counts."""
    unit: str = "operators"
    finding: Finding | None = None
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of a certificate: what was set otherwise, or another version → both values."""
    candidates: list[dict[str, Any]] | None = None
    """For ``deterministic_except``: operator, module, and microseconds of a step without and with deterministic=ON, where it runs."""

    @property
    def sentence(self) -> str:
        if self.candidates is not None:
            return f"{len(self.candidates) or 'no'} candidate{'s' * (len(self.candidates) != 1)} for deterministic_except"
        if self.finding is None:
            steps = f"{self.steps} step{'s' * (self.steps != 1)}"
            return f"equal: {self.names[0]} and {self.names[1]} agree in {steps}, {self.operators} {self.unit}"
        return f"{self.names[0]} and {self.names[1]} differ: {self.finding.sentence}"

    def as_json(self) -> dict[str, Any]:
        found = asdict(self) | {"equal": self.finding is None, "sentence": self.sentence}
        return {name: found[name] for name in ("equal", "sentence", *(n for n in found if n not in ("equal", "sentence")))}
