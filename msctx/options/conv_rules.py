"""conv_algo_rules and matmul_algo_rules: which calls, by module or by problem, run which algorithm; their one canonical text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msctx.errors import nearest
from msctx.locks import imported
from msctx.options import gpu
from msctx.options.kinds import BadValue, ChoiceKind, TextKind, show

DIRECTIONS = ("fprop", "dgrad", "wgrad")
"""Of a convolution."""
PRODUCT = "matmul"
ASKED = (*DIRECTIONS, PRODUCT)
"""What algorithms are asked for, in the order of the native core."""
PRODUCT_FIELDS = ("module", "input", "weight", "dtype", "layout")
FIELDS = (
    "module",
    "input",
    "weight",
    "stride",
    "padding",
    "dilation",
    "output_padding",
    "groups",
    "transposed",
    "dtype",
    "layout",
    "dims",
)
"""What of a problem a condition can name: the text that choices() shows, and how many axes an image has."""


ALONG = ("stride", "padding", "dilation", "output_padding")
"""Those that choices() shows as one number where it holds along each axis."""
SIZES = ("input", "weight", *ALONG, "groups")
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


def _algorithms(direction: str) -> ChoiceKind:
    kind = next(option for option in gpu.OPTIONS if option.name == option_of(direction)).kind
    assert isinstance(kind, ChoiceKind)
    return kind


_ALGORITHMS = {direction: _algorithms(direction) for direction in ASKED}


@dataclass(frozen=True)
class ConvRule:
    """Every one of *conditions* (field, pattern with * and ?) must hold; *asked* has an algorithm for some directions."""

    conditions: tuple[tuple[str, str], ...]
    asked: tuple[tuple[str, str], ...]

    @property
    def is_of_products(self) -> bool:
        return self.asked[0][0] == PRODUCT

    def __str__(self) -> str:
        """The rule in its canonical text; a single module pattern stands without ``module=``."""
        where = " ".join(f"{field}={pattern}" for field, pattern in self.conditions)
        if len(self.conditions) == 1 and self.conditions[0][0] == "module":
            where = self.conditions[0][1]
        return f"{where}: " + ", ".join(f"{direction}={name}" for direction, name in self.asked)


FEW_CHANNELS = (("dims", "2"), ("input", "*x[1-4]x*x*"))
"""Images of at most four channels: N x C x H x W."""


def rules_of(text: str) -> tuple[ConvRule, ...]:
    """The rules that a canonical text holds, first to last: the first that matches decides."""
    pairs = (part.split(": ", 1) for part in text.split("; ") if part)
    return tuple(_rule(where, algorithms, _ALL) for where, algorithms in pairs)


def asked_by(named: Mapping[str, str | None], *texts: str | None) -> dict[tuple[str, str], str]:
    """All that options and rules ask for together: (direction, algorithm) → who asks for it, an option first.

    Args:
        named: direction → the algorithm that its option names.
        texts: the rules' canonical texts.
    """
    found = {(d, name): f"{option_of(d)}={name}" for d, name in named.items() if name}
    for d, name in (pair for text in texts if text for rule in rules_of(text) for pair in rule.asked):
        found.setdefault((d, name), f"{d}={name} of {'matmul' if d == PRODUCT else 'conv'}_algo_rules")
    return found


@dataclass(frozen=True)
class _Of:
    """What rules are about."""

    directions: tuple[str, ...]
    fields: tuple[str, ...]
    layouts: tuple[str, ...]
    allowed: str


_LAYOUTS, _LETTERS = ("channels_first", "channels_last", "strided", "packed"), ("NN", "NT", "TN", "TT", "packed")
_ALL = _Of(ASKED, FIELDS, (*_LAYOUTS, *_LETTERS), "")


CONVOLUTIONS = _Of(
    DIRECTIONS,
    FIELDS,
    _LAYOUTS,
    "conditions → algorithms: a module path (layer1.*) or fields of a problem (weight=64x3x7x7 stride=2), each with * and ?, and "
    "for it one algorithm or {fprop: …, dgrad: …, wgrad: …}; as text: 'layer1.*: winograd; weight=64x3x7x7: fprop=gemm'",
)
PRODUCTS = _Of(
    (PRODUCT,),
    PRODUCT_FIELDS,
    _LETTERS,
    "conditions → an algorithm: a module path (encoder.*) or fields of a problem (input=512x768 layout=NT), each with * and ?; as "
    "text: 'encoder.*: bf16x6; input=*x4096: strict'",
)


class RulesKind(TextKind):
    """``layer1.*: winograd; weight=64x3x7x7 stride=2: fprop=gemm, wgrad=algo_1``, or the same as a mapping."""

    def __init__(self, about: _Of = CONVOLUTIONS) -> None:
        super().__init__(allowed=about.allowed)
        self.about = about

    def parse(self, value: Any) -> str:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        else:
            text = super().parse(value)
            written = _mapping(text, self.allowed) if text.lstrip().startswith("{") else None
            pairs = (
                list(written.items()) if written else [_halves(part, self.allowed) for part in text.split(";") if part.strip()]
            )
        if not pairs:
            raise BadValue("there are no rules in it", allowed=self.allowed)
        return "; ".join(str(_rule(where, algorithms, self.about)) for where, algorithms in pairs)

    def schema(self) -> dict[str, Any]:
        each = {
            d: {"description": f"The algorithm of {d} there.", "enum": [*kind.choices, *kind.aliases]}
            for d in self.about.directions
            if (kind := _ALGORITHMS[d])
        }
        names = sorted({name for kind in each.values() for name in kind["enum"]})
        algorithms = {"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1}
        mapping = {"type": "object", "additionalProperties": {"anyOf": [{"enum": names}, algorithms]}, "minProperties": 1}
        return {"anyOf": [{"type": "string", "pattern": r"\S\s*:\s*\S"}, mapping]}


def _mapping(text: str, allowed: str) -> dict[Any, Any]:
    """What is written as in a file, on a command line."""
    imported("yaml")
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise BadValue(f"{show(text)} is not a mapping", allowed=allowed)
    return found


def _halves(part: str, allowed: str) -> tuple[str, str]:
    where, sign, algorithms = part.partition(":")
    if not sign or not where.strip() or not algorithms.strip():
        raise BadValue(f"{show(part.strip())} is not 'condition: algorithm'", allowed=allowed)
    return where, algorithms


def _rule(where: Any, algorithms: Any, about: _Of) -> ConvRule:
    if not isinstance(where, str) or not where.strip() or any(sign in where for sign in ":;"):
        raise BadValue(f"{show(where)} is not a condition", allowed=about.allowed)
    return ConvRule(tuple(_condition(word, about) for word in where.split()), tuple(_asked(algorithms, about)))


def _condition(word: str, about: _Of) -> tuple[str, str]:
    field, sign, pattern = word.partition("=")
    if field == "transposed":  # as choices() shows it
        pattern = pattern.lower()
    if not sign:
        return "module", word
    if not field:
        raise BadValue(f"{show(word)} has no field: write field=pattern without spaces", allowed=about.allowed)
    if field not in about.fields:
        allowed, hint = ", ".join(about.fields), nearest(field, about.fields)
        raise BadValue(f"{show(field)} is no field of a problem", allowed=allowed, suggestion=hint)
    if not pattern:
        raise BadValue(f"{show(word)} has no pattern: write field=pattern without spaces", allowed=about.allowed)
    return field, _pattern(field, pattern, about)


def _pattern(field: str, pattern: str, about: _Of) -> str:
    """As choices() shows the value, where it is one."""
    if any(sign in pattern for sign in "*?["):
        return pattern
    values = about.layouts if field == "layout" else VALUES.get(field)
    if values and pattern not in values:
        hint = next((value for value in values if pattern.rpartition(".")[2] == value), nearest(pattern, values))
        raise BadValue(f"{show(pattern)} is no {field} of a problem", allowed=", ".join(values), suggestion=hint)
    if field in SIZES and not re.fullmatch(r"\d+(x\d+)*", pattern):
        raise BadValue(f"{show(pattern)} is no {field} of a problem", allowed="numbers with x between them, * and ?: 2, 64x3x*")
    along = {*pattern.split("x")}
    return along.pop() if field in ALONG and len(along) == 1 else pattern


def _asked(algorithms: Any, about: _Of) -> list[tuple[str, str]]:
    """An algorithm for each direction that is named; a name alone is meant for each direction that has it."""
    directions = about.directions
    kinds = {d: _ALGORITHMS[d] for d in directions}
    if isinstance(algorithms, str):
        words = [word.strip() for word in algorithms.split(",")]
        if len(words) == 1 and "=" not in words[0]:
            found = [(d, kind.parse(words[0])) for d, kind in kinds.items() if words[0] in (*kind.choices, *kind.aliases)]
            if not found:
                names = list(dict.fromkeys(name for kind in kinds.values() for name in kind.choices))
                raise BadValue(
                    f"{show(words[0])} is not an algorithm", allowed=", ".join(names), suggestion=nearest(words[0], names)
                )
            return found
        algorithms = dict(word.partition("=")[::2] for word in words)
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise BadValue(f"{show(algorithms)} names no algorithms", allowed=about.allowed)
    for direction, name in algorithms.items():
        if direction not in directions:
            hint = nearest(str(direction), directions)
            raise BadValue(f"{show(direction)} is not a direction", allowed=", ".join(directions), suggestion=hint)
        try:
            kinds[direction].parse(name)
        except BadValue as error:
            raise BadValue(f"{direction}: {error.text}", allowed=error.allowed, suggestion=error.suggestion) from None
    return [(d, kinds[d].parse(algorithms[d])) for d in directions if d in algorithms]
