"""Options with a grammar (steps, shapes, engines …), as patterns with one check across the parts."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from msctx.options.kinds import BadValue, Kind, TextKind, refusal, show

_ = r"\s*"
_NUMBER = "(0|[1-9][0-9]{0,17})"
"""A whole number that fits 64 bits."""
_SIZE = "[1-9][0-9]{0,17}"


class PartsKind(TextKind):
    """Parts joined by a separator; a list of them is taken too. Blanks around signs mean nothing.

    Args:
        part: the pattern of a part, without blanks; each sign of it stands alone between two spaces.
        least, most: how many parts there may be; 0: any number.
        numbers: whether one part may be a plain number, and whether there may be a number in place of the text.
        repeats: whether a part, or what stands before its colon, may stand twice.
        check: raises for what else is wrong with parts that fit the pattern.
    """

    def __init__(
        self,
        allowed: str,
        part: str,
        separator: str = ",",
        *,
        least: int = 1,
        most: int = 0,
        numbers: bool = False,
        repeats: bool = False,
        check: Callable[[list[str]], object] = len,
    ) -> None:
        super().__init__(allowed, separator, check=self._parts)
        self._part, self._least, self._most, self._numbers, self._repeats = part, least, most, numbers, repeats
        self._check_parts = check
        pattern = f"{_}{part.replace(' ', _)}{_}"
        text = f"^{pattern}({re.escape(separator)}{pattern}){{{least - 1},{most - 1 if most else ''}}}$"
        listed = {"items": {"type": ["string", "integer"] if numbers else "string"}, "minItems": 1, "type": "array"}
        forms = [{"pattern": text, "type": "string"}, listed]
        number = {"maximum": 10**18 - 1, "minimum": 0, "type": "integer"}
        self.form = {"anyOf": [*forms, number] if numbers and least == 1 else forms}

    def _text(self, value: Any) -> str:
        return super()._text([value] if self._numbers and type(value) is int else value)

    def _parts(self, text: str) -> str:
        parts = [re.sub(rf"{_}([^\w\s]){_}", r"\1", part.strip()) for part in text.split(self.separator)]
        if not all(parts):
            raise BadValue("a part of it is empty", suggestion=self.separator.join(filter(None, parts)))
        if not self._least <= len(parts) <= (self._most or len(parts)):
            raise BadValue(f"there are too {'few' if len(parts) < self._least else 'many'} parts ({len(parts)})")
        if wrong := [part for part in parts if not re.fullmatch(self._part.replace(" ", ""), part)]:
            raise refusal(wrong[0])
        names = [part.rpartition(":")[0] or part for part in parts]
        if not self._repeats and (twice := [name for name in names if names.count(name) > 1]):
            raise BadValue(f"{show(twice[0])} is given twice")
        self._check_parts(parts)
        return self.separator.join(parts)


def _ascending(parts: list[str]) -> None:
    for low, sign, high in re.findall(r"(\d+)([-~])(\d+)", " ".join(parts)):
        if int(low) + (sign == "-") > int(high):
            hint = low if low == high else f"{high}{sign}{low}"
            raise BadValue(f"the range '{low}{sign}{high}' does not ascend", suggestion=hint)


def _alone_or_ascending(parts: list[str]) -> None:
    if "all" in parts[1:] or parts[0] == "all" != parts[-1]:
        raise refusal("all")
    _ascending(parts)


def _as_many_sizes(gears: list[str]) -> None:
    for gear in gears:
        if gear.count(",") != gears[0].count(","):
            raise BadValue(f"the gear {show(gear)} has not as many sizes as {show(gears[0])}")


_EXPRESSION = "name-regex("
_LAYER = re.compile(r"name-regex\(.*?\)(?!\S)|\S+( \(root\)(/\S+|(?!\S)))?")
"""``Net (root)``, as reports call a model itself, is one name."""


def layers_in(text: str) -> list[str]:
    """The names and expressions of layers to dump; an expression may hold blanks, but none after a closing parenthesis."""
    return [match[0] for match in _LAYER.finditer(text)]


def expression_in(layer: str) -> str | None:
    """``(a b)`` of ``name-regex((a b))``."""
    return layer[len(_EXPRESSION) : -1] if layer.startswith(_EXPRESSION) else None


def _layers(text: str) -> str:
    for layer in layers_in(text):
        expression = expression_in(layer)
        fault = "" if expression is None or layer.endswith(")") else "the closing parenthesis is missing"
        try:
            re.compile(expression or "")
        except re.error as error:
            fault = fault or str(error)
        if fault:
            raise BadValue(f"{layer} holds no regular expression: {fault}")
    return text


SCOPE_PASSES = ("ScopeLayerNormPass", "ScopeClipBoxesPass")
"""The passes that replace patterns of operators where an option names them."""
_SOME_STEPS = "at most 100 steps and ranges a-b (a below b), separated by |, such as 0|3-5|10"
_STEP = f"{_NUMBER}( - {_NUMBER})?"
DumpStep = PartsKind(_SOME_STEPS, _STEP, "|", most=100, numbers=True, repeats=True, check=_ascending)
DumpIteration = PartsKind(
    f'"all", or {_SOME_STEPS}', f"({_STEP}|all)", "|", most=100, numbers=True, repeats=True, check=_alone_or_ascending
)
DumpLayer = TextKind("names of operators or modules, or name-regex(...), separated by blanks", " ", check=_layers)
InputShape = PartsKind(
    "name:d1,d2 for each input, separated by ;: sizes from 1 on, -1 for one of dynamic_dims, a single 0 for a scalar",
    rf"[^;\s][^;]* : (0|(-1|{_SIZE})( , (-1|{_SIZE}))*)",
    ";",
)
DynamicDims = PartsKind(
    "2 to 100 gears separated by ;, each with the same number of sizes from 1 on, such as 20,20;40,40",
    f"{_SIZE}( , {_SIZE})*",
    ";",
    least=2,
    most=100,
    numbers=True,
    repeats=True,
    check=_as_many_sizes,
)
StreamParallel = PartsKind(
    "DNN_VM_AICPU:n and AIcoreEngine:n, separated by a comma, with n from 1 on", f"(DNN_VM_AICPU|AIcoreEngine) : {_SIZE}"
)
ScopePasses = PartsKind(f"names of passes separated by commas: {', '.join(SCOPE_PASSES)}", f"({'|'.join(SCOPE_PASSES)})")
DeviceList = PartsKind("numbers of devices from 0 on, separated by commas, none twice", _NUMBER, numbers=True)
_DIM = f"(-1|{_NUMBER}( ~ {_NUMBER})?)"
_SHAPE = rf"\[ ({_DIM}( , {_DIM})*)? \]"
ShapeRange = PartsKind(
    "getnext:[…],[…];data:[…] with a size, a range a~b (a not above b) or -1 for each dimension; [] is a scalar",
    f"(getnext|data) : {_SHAPE}( , {_SHAPE})*",
    ";",
    check=_ascending,
)


def gears_of(input_shape: str, dynamic_dims: str) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]:
    """For each gear, the shape of each input: input_shape, whose -1 are the gear's sizes in order."""

    def gear(sizes: Iterator[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, _, shape in (part.rpartition(":") for part in input_shape.split(";")):
            found = tuple(int(next(sizes)) if size == "-1" else int(size) for size in shape.split(","))
            yield name, () if found == (0,) else found  # 0: a scalar

    return tuple(tuple(gear(iter(one.split(",")))) for one in dynamic_dims.split(";"))


def ranges_of(text: str) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Of each input the least and greatest size of each dimension; (-1, -1): any."""

    def ends(size: str) -> tuple[int, int]:
        low, _, high = size.partition("~")
        return int(low), int(high or low)

    shapes = [shape for group in text.split(";") for shape in re.findall(r"\[(.*?)\]", group)]
    return tuple(tuple(ends(size) for size in shape.split(",") if size) for shape in shapes)


class _Word(Kind):
    """A text that no separator divides."""

    is_text = True


_MODE = rf"{_}(fast1?){_}\|{_}(step|loss){_}(\|{_}([0-9]{{1,18}}(\.[0-9]{{1,18}})?){_})?"
_RATIOS = {"step": (0.2, 0.9, 0.9), "loss": (1.01, 1.5, 1.05)}
"""The end of the phase of low precision → lowest, highest and default ratio."""


def _train_mode(value: Any) -> str:
    if not isinstance(value, str) or not (match := re.fullmatch(_MODE, value)):
        raise refusal(value)
    speed, end, _, ratio, _ = match.groups()
    low, high, default = _RATIOS[end]
    if not low <= float(ratio or default) <= high:
        raise refusal(value, suggestion=f"{speed}|{end}|{default}")
    return f"{speed}|{end}|{float(ratio or default)}"


AccelerateTrainMode = _Word(
    "fast|step|0.9: fast or fast1, then step with 0.2 to 0.9 (default 0.9) or loss with 1.01 to 1.5 (default 1.05)",
    _train_mode,
    {"pattern": f"^{_MODE}$", "type": "string"},
)

_NAME = r"""^[^\s'"\\]+$"""
_NAMES = {"items": {"pattern": _NAME, "type": "string"}, "minItems": 1, "type": "array"}
_PAIR = {"items": _NAMES, "maxItems": 2, "minItems": 2, "type": "array"}
_PAIRS = [
    {"pattern": r"^\s*\[.*\]\s*$", "type": "string"},
    _PAIR,
    {"items": _PAIR, "maxItems": 1, "minItems": 1, "type": "array"},
]


def _pair(value: Any) -> str:
    """CANN's own samples write a list of pairs, of which there may be but one; that is taken too."""
    text = ""
    with suppress(Exception):  # a value may be anything
        pair = literal_eval(value.strip()) if isinstance(value, str) else value
        first, last = pair = pair[0] if len(pair) == 1 else pair
        if type(pair) is type(first) is type(last) is list and all(re.search(_NAME, name) for name in first + last):
            text = str(pair) if first and last else ""
    if not text or "\\" in text:  # which stands for what cannot be printed
        raise refusal(value)
    return text


InOutPair = _Word("one pair of lists with names of operators: [['first', …], ['last', …]]", _pair, {"anyOf": _PAIRS})
"""One region of a model, by the names of its first and its last operators."""
