"""conv_algo_rules and matmul_algo_rules: which calls, by module or by problem, run which algorithm; their one canonical text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from msctx.errors import nearest
from msctx.options import registry
from msctx.options.kinds import BadValue, ChoiceKind, TextKind, show

DIRECTIONS = ("fprop", "dgrad", "wgrad")
"""Of a convolution."""
PRODUCT = "matmul"
REQUESTED = (*DIRECTIONS, PRODUCT)
"""The directions that have algorithms, in the order of the native core."""
PRODUCT_FIELDS = ("module", "input", "weight", "dtype", "layout")
ALONG = ("stride", "padding", "dilation", "output_padding")
"""The fields that choices() shows as one number where it holds along each axis."""
SIZES = ("input", "weight", *ALONG, "groups")
FIELDS = ("module", *SIZES, "transposed", "dtype", "layout", "dims")
"""The fields of a problem that a condition can name, as choices() shows them; ``dims`` counts the axes of an image."""
_NAMES = """
    float32 float64 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu bool
    uint8 uint16 uint32 uint64 int8 int16 int32 int64 complex32 complex64 complex128 qint8 quint8 qint32
"""
DTYPES = tuple(_NAMES.split())
"""Of calls that reach msctx's hooks, those that it leaves to PyTorch included."""
VALUES = {"transposed": ("true", "false"), "dtype": DTYPES, "dims": ("1", "2", "3")}
"""The fields of which all values are known; those of the layout depend on what is computed."""


def option_of(direction: str) -> str:
    """The option that names an algorithm for all calls."""
    return "matmul_algo" if direction == PRODUCT else f"conv_{direction}_algo"


RULES = {"conv_algo_rules": tuple(map(option_of, DIRECTIONS)), "matmul_algo_rules": (option_of(PRODUCT),)}
"""An option of rules → the options whose algorithms they name for single calls."""


@cache
def _algorithms(direction: str) -> ChoiceKind:
    kind = registry.option_of(option_of(direction)).kind
    assert isinstance(kind, ChoiceKind)
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


@dataclass(frozen=True)
class _Of:
    """The directions and fields of one option of rules."""

    directions: tuple[str, ...]
    fields: tuple[str, ...]
    layouts: tuple[str, ...]
    allowed: str


CONVOLUTIONS = _Of(
    DIRECTIONS,
    FIELDS,
    ("channels_first", "channels_last", "strided", "packed"),
    "conditions → algorithms: a module path (layer1.*) or fields of a problem (weight=64x3x7x7 stride=2), each with * and ?, and "
    "for it one algorithm or {fprop: …, dgrad: …, wgrad: …}; as text: 'layer1.*: winograd; weight=64x3x7x7: fprop=gemm'",
)
PRODUCTS = _Of(
    (PRODUCT,),
    PRODUCT_FIELDS,
    ("NN", "NT", "TN", "TT", "packed"),
    "conditions → an algorithm: a module path (encoder.*) or fields of a problem (input=512x768 layout=NT), each with * and ?; as "
    "text: 'encoder.*: bf16x6; input=*x4096: strict'",
)


class RulesKind(TextKind):
    """``layer1.*: winograd; weight=64x3x7x7 stride=2: fprop=gemm, wgrad=algo_1``, or the same as a mapping."""

    def __init__(self, about: _Of = CONVOLUTIONS) -> None:
        super().__init__(allowed=about.allowed)
        self.about = about

    def read(self, value: Any) -> str:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif (text := super().read(value)).lstrip().startswith("{"):  # as in a file, on a command line
            pairs = list(_mapping(text).items())
        else:
            pairs = [_halves(part) for part in text.split(";") if part.strip()]
        if not pairs:
            raise BadValue("there are no rules in it")
        return "; ".join(
            str(ConvRule(self._conditions(where), tuple(self._requested(algorithms)))) for where, algorithms in pairs
        )

    def schema(self) -> dict[str, Any]:
        each = {
            d: {"description": f"The algorithm of {d} there.", "enum": [*_algorithms(d).choices, *_algorithms(d).aliases]}
            for d in self.about.directions
        }
        names = sorted({name for kind in each.values() for name in kind["enum"]})
        algorithms = {"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1}
        mapping = {"type": "object", "additionalProperties": {"anyOf": [{"enum": names}, algorithms]}, "minProperties": 1}
        return {"anyOf": [{"type": "string", "pattern": r"\S\s*:\s*\S"}, mapping]}

    def _conditions(self, where: Any) -> tuple[tuple[str, str], ...]:
        if not isinstance(where, str) or not where.strip() or any(sign in where for sign in ":;"):
            raise BadValue(f"{show(where)} is not a condition")
        return tuple(self._condition(word) for word in where.split())

    def _condition(self, word: str) -> tuple[str, str]:
        """Its pattern as choices() shows the value, where it is one."""
        field, sign, pattern = word.partition("=")
        if not sign:
            return "module", word
        if not field or (field in self.about.fields and not pattern):
            raise BadValue(f"{show(word)} has no {'pattern' if field else 'field'}: write field=pattern without spaces")
        if field not in self.about.fields:
            hint = nearest(field, self.about.fields)
            raise BadValue(f"{show(field)} is no field of a problem", allowed=", ".join(self.about.fields), suggestion=hint)
        pattern = pattern.lower() if field == "transposed" else pattern
        if any(sign in pattern for sign in "*?["):
            return field, pattern
        values = self.about.layouts if field == "layout" else VALUES.get(field, (pattern,))
        if pattern not in values:
            hint = next((value for value in values if pattern.rpartition(".")[2] == value), nearest(pattern, values))
            raise BadValue(f"{show(pattern)} is no {field} of a problem", allowed=", ".join(values), suggestion=hint)
        if field in SIZES and not re.fullmatch(r"\d+(x\d+)*", pattern):
            allowed = "numbers with x between them, * and ?: 2, 64x3x*"
            raise BadValue(f"{show(pattern)} is no {field} of a problem", allowed=allowed)
        along = {*pattern.split("x")}
        return field, along.pop() if field in ALONG and len(along) == 1 else pattern

    def _requested(self, algorithms: Any) -> list[tuple[str, str]]:
        """An algorithm for each direction that is named; a name alone is meant for each direction that has it."""
        kinds = {d: _algorithms(d) for d in self.about.directions}
        if isinstance(algorithms, str):
            words = [word.strip() for word in algorithms.split(",")]
            if len(words) > 1 or "=" in words[0]:
                algorithms = dict(word.partition("=")[::2] for word in words)
            else:
                name = words[0]
                algorithms = {d: name for d, kind in kinds.items() if name in (*kind.choices, *kind.aliases)}
                if not algorithms:
                    names = list(dict.fromkeys(name for kind in kinds.values() for name in kind.choices))
                    raise BadValue(
                        f"{show(name)} is not an algorithm", allowed=", ".join(names), suggestion=nearest(name, names)
                    )
        if not isinstance(algorithms, Mapping) or not algorithms:
            raise BadValue(f"{show(algorithms)} names no algorithms")
        found = {}
        for direction, name in algorithms.items():
            if direction not in kinds:
                hint = nearest(str(direction), kinds)
                raise BadValue(f"{show(direction)} is not a direction", allowed=", ".join(kinds), suggestion=hint)
            try:
                found[direction] = kinds[direction].parse(name)
            except BadValue as error:
                raise BadValue(f"{direction}: {error.text}", allowed=error.allowed, suggestion=error.suggestion) from None
        return [(direction, found[direction]) for direction in kinds if direction in found]


def _mapping(text: str) -> dict[Any, Any]:
    import yaml

    with suppress(yaml.YAMLError):
        if isinstance(found := yaml.safe_load(text), dict):
            return found
    raise BadValue(f"{show(text)} is not a mapping")


def _halves(part: str) -> tuple[str, str]:
    where, sign, algorithms = part.partition(":")
    if not sign or not where.strip() or not algorithms.strip():
        raise BadValue(f"{show(part.strip())} is not 'condition: algorithm'")
    return where, algorithms
