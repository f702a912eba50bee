"""Convolutions and products: rules for single calls with their one canonical text, and the policy of a device as one value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from msctx.options import registry
from msctx.options.kinds import BadValue, Choice, Size, TextKind, show
from msctx.shipped import KERNEL_SOURCES

DIRECTIONS = ("fprop", "dgrad", "wgrad")
"""Of a convolution."""
PRODUCT = "matmul"
REQUESTED = (*DIRECTIONS, PRODUCT)
"""The directions that have algorithms, in the order of the native core."""
ALONG = ("stride", "padding", "dilation", "output_padding")
"""The fields that choices() shows as one number where it holds along each axis."""
SIZES = ("input", "weight", *ALONG, "groups")
FIELDS = ("module", *SIZES, "transposed", "dtype", "layout", "dims")
"""The fields of a problem that a condition can name, as choices() shows them; ``dims`` counts the axes of an image."""


def option_of(direction: str) -> str:
    """The option that names an algorithm for all calls."""
    return "matmul_algo" if direction == PRODUCT else f"conv_{direction}_algo"


RULES = {"conv_algo_rules": tuple(map(option_of, DIRECTIONS)), "matmul_algo_rules": (option_of(PRODUCT),)}
"""An option of rules → the options whose algorithms they name for single calls."""


@cache
def _algorithms(direction: str) -> Choice:
    kind = registry.option_of(option_of(direction)).kind
    assert isinstance(kind, Choice)
    return kind


@dataclass(frozen=True)
class ConvRule:
    """Every one of *conditions* (field, pattern with * and ?) must hold; *requested* has an algorithm for some directions."""

    conditions: tuple[tuple[str, str], ...]
    requested: tuple[tuple[str, str], ...]

    @property
    def is_of_products(self) -> bool:
        return self.requested[0][0] == PRODUCT

    def __str__(self) -> str:
        """The rule in its canonical text; a single module pattern stands without ``module=``."""
        where = " ".join(f"{field}={pattern}" for field, pattern in self.conditions)
        if len(self.conditions) == 1 and self.conditions[0][0] == "module":
            where = self.conditions[0][1]
        return f"{where}: " + ", ".join(f"{direction}={name}" for direction, name in self.requested)


FEW_CHANNELS = (("dims", "2"), ("input", "*x[1-4]x*x*"))
"""Images of at most four channels: N x C x H x W."""


def rules_of(text: str) -> tuple[ConvRule, ...]:
    """The rules that a canonical text holds, first to last: the first that matches decides."""

    def pairs(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
        return tuple((field, value) if sign else ("module", field) for field, sign, value in (w.partition("=") for w in words))

    rules = (part.split(": ", 1) for part in text.split("; ") if part)
    return tuple(ConvRule(pairs(where.split()), pairs(algorithms.split(", "))) for where, algorithms in rules)


def requested_by(named: Mapping[str, str | None], *texts: str | None) -> dict[tuple[str, str], str]:
    """(direction, algorithm) → the option, or else the rules, that name it.

    Args:
        named: direction → the algorithm that its option names.
        texts: the rules' canonical texts.
    """
    found = {(d, name): f"{option_of(d)}={name}" for d, name in named.items() if name}
    for d, name in (pair for text in texts if text for rule in rules_of(text) for pair in rule.requested):
        found.setdefault((d, name), f"{d}={name} of {'matmul' if d == PRODUCT else 'conv'}_algo_rules")
    return found


class RulesKind(TextKind):
    """``layer1.*: winograd; weight=64x3x7x7 stride=2: fprop=gemm, wgrad=algo_1``, or the same as a mapping."""

    def __init__(self, allowed: str, directions: tuple[str, ...], fields: tuple[str, ...]) -> None:
        super().__init__(allowed, check=self._rules)
        self._directions, self._fields = directions, fields

    def _text(self, value: Any) -> str:
        if isinstance(value, Mapping):
            value = "; ".join(f"{where}: {_joined(algorithms)}" for where, algorithms in value.items())
        return super()._text(value)

    def _rules(self, text: str) -> str:
        rules = [self._rule(part.strip()) for part in text.split(";") if part.strip()]
        if not rules:
            raise BadValue("there are no rules in it")
        return "; ".join(map(str, rules))

    def schema(self) -> dict[str, Any]:
        each = {
            d: {"description": f"The algorithm of {d} there.", "enum": [*_algorithms(d).choices, *dict(_algorithms(d).aliases)]}
            for d in self._directions
        }
        names = sorted({name for kind in each.values() for name in kind["enum"]})
        algorithms = {"additionalProperties": False, "minProperties": 1, "properties": each, "type": "object"}
        mapping = {"additionalProperties": {"anyOf": [{"enum": names}, algorithms]}, "minProperties": 1, "type": "object"}
        return {"anyOf": [{"pattern": r"\S\s*:\s*\S", "type": "string"}, mapping]}

    def _rule(self, text: str) -> ConvRule:
        if not (found := re.fullmatch(r"((?!\{)[^:]*[^:\s])\s*:\s*([^:{}]+)", text)):
            raise BadValue(f"{show(text)} is not 'condition: algorithm'")
        conditions = tuple(self._condition(word) for word in found[1].split())
        words = [word.strip() for word in found[2].split(",")]
        if len(words) == 1 and "=" not in words[0]:  # meant for each direction that has it
            kinds = {d: _algorithms(d) for d in self._directions}
            able = [d for d, kind in kinds.items() if words[0] in (*kind.choices, *dict(kind.aliases))]
            if not able:
                names = dict.fromkeys(name for kind in kinds.values() for name in kind.choices)
                Choice([*names]).parse(words[0], within=text)
            words = [f"{d}={words[0]}" for d in able]
        requested = {}
        for direction, _, name in (word.partition("=") for word in words):
            direction = Choice(self._directions).parse(direction.strip(), within=text)
            requested[direction] = _algorithms(direction).parse(name.strip(), within=text)
        return ConvRule(conditions, tuple((d, requested[d]) for d in self._directions if d in requested))

    def _condition(self, word: str) -> tuple[str, str]:
        """Its pattern as choices() shows the value, where it is one."""
        field, sign, pattern = word.partition("=")
        if not sign:
            return "module", word
        Choice(self._fields).parse(field, within=word)
        pattern = pattern.lower() if field == "transposed" else pattern
        if any(sign in pattern for sign in "*?["):
            return field, pattern
        if not re.fullmatch(r"\d+(x\d+)*" if field in SIZES else ".+", pattern):
            allowed = "numbers with x between them, * and ?: 2, 64x3x*" * (field in SIZES)
            raise BadValue(f"{show(pattern)} is no {field} of a problem", allowed=allowed)
        along = {*pattern.split("x")}
        return field, along.pop() if field in ALONG and len(along) == 1 else pattern


def _joined(algorithms: Any) -> str:
    return ", ".join(f"{d}={name}" for d, name in algorithms.items()) if isinstance(algorithms, Mapping) else str(algorithms)


CONVOLUTION_RULES = RulesKind(
    "conditions → algorithms: a module path (layer1.*) or fields of a problem (weight=64x3x7x7 stride=2), each with * and ?, and "
    "for it one algorithm or {fprop: …, dgrad: …, wgrad: …}; as text: 'layer1.*: winograd; weight=64x3x7x7: fprop=gemm'",
    DIRECTIONS,
    FIELDS,
)
PRODUCT_RULES = RulesKind(
    "conditions → an algorithm: a module path (encoder.*) or fields of a problem (input=512x768 layout=NT), each with * and ?; as "
    "text: 'encoder.*: bf16x6; input=*x4096: strict'",
    (PRODUCT,),
    ("module", "input", "weight", "dtype", "layout"),
)


RECORDED = "torch"
"""What a policy that records problems requests where nothing else is requested: torch's own path."""


@dataclass(frozen=True)
class ConvPolicy:
    """Each field has the name and the values of its option; ``Policy`` in kernels/common/policy.h reads it by name."""

    conv_fprop_algo: str | None = None
    conv_dgrad_algo: str | None = None
    conv_wgrad_algo: str | None = None
    matmul_algo: str | None = None
    conv_algo_rules: str | None = None
    matmul_algo_rules: str | None = None
    conv_workspace_limit: int | None = None
    conv_max_error: float | None = None
    matmul_max_error: float | None = None
    fallback: str = "warn"
    tuning_file: str | None = None
    work_path: str | None = None  # the folder in which problems are recorded, to be measured later; ``None``: they are not
    deterministic: bool = False
    thread_invariant: bool = False
    batch_invariant: bool = False
    torch_keeps_products: bool = False  # no option: MKL's strict mode keeps the bits of torch's own products
    conv_allow_tf32: bool = False
    matmul_allow_tf32: bool = False
    allow_fp32_emulation: bool = True
    frozen_weights: bool = False

    @property
    def algorithms(self) -> dict[str, str | None]:
        """Direction → the algorithm that its option names."""
        return {direction: getattr(self, option_of(direction)) for direction in REQUESTED}

    @property
    def rules(self) -> tuple[ConvRule, ...]:
        return tuple(rule for text in (self.conv_algo_rules, self.matmul_algo_rules) if text for rule in rules_of(text))

    @property
    def measures(self) -> bool:
        """Whether some call may run the fastest algorithm by measurement."""
        requested = requested_by(self.algorithms, self.conv_algo_rules, self.matmul_algo_rules)
        return any(name == "performance" for _, name in requested)

    def as_dict(self) -> dict[str, Any]:
        """The fields that are not as by default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_dict().items())


@cache
def able(ability: str, *, with_amx: bool = True) -> frozenset[tuple[str, ...]]:
    """(direction, algorithm) of those on a CPU that have an ability for some problems; with *with_amx*, on one with AMX.

    A plan needs no compiler, so it cannot ask the built library: tests/kernels/test_dispatch.py writes the file from that.
    """
    rows = json.loads((KERNEL_SOURCES / "abilities.json").read_bytes())[ability]
    names = [*rows["everywhere"], *(rows["with AMX"] if with_amx else ())]
    return frozenset(tuple(name.split()) for name in names)


def plain(value: Any) -> Any:
    """A value of a switch as plain data."""
    if isinstance(value, ConvPolicy):
        return value.as_dict()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, Size):
        return int(value)
    return {f.name: plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value
