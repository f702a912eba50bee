"""The options whose text has a grammar of its own: steps, shapes, engines … checked part by part, and written one way only.

With them stand the kinds of single values inside the files that options name (:mod:`msctx.options.formats`).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from msctx.errors import nearest
from msctx.options.kinds import BadValue, IntKind, Kind, TextKind, show

_ = r"\s*"
_NUMBER = "[0-9]{1,18}"
"""A whole number that fits 64 bits."""
_SIZE = "0{0,9}[1-9][0-9]{0,17}"


@dataclass(frozen=True)
class PartsKind(TextKind):
    """Parts joined by a separator; a list of them is taken too, and so is one number where a part may be one.

    Subclasses define what a part is, and what applies to all of them together.
    """

    comma_list: bool = True
    PART = ""
    """What a part looks like, as a pattern."""
    MOST = 0
    """How many parts there may be; 0 means any number."""
    NUMBERS = False
    """Whether one part may be a plain number."""

    def parse(self, value: Any) -> str:
        if self.NUMBERS and type(value) is int:
            value = [value]
        if not isinstance(value, str | list | tuple):  # TextKind would propose a number as a text of digits
            raise BadValue(f"{show(value)} is not text", allowed=self.allowed)
        try:
            text = super().parse(value)
        except BadValue:
            raise
        except ValueError:  # Python refuses to write out numbers of thousands of digits
            raise BadValue(f"{show(value)} is out of range", allowed=self.allowed) from None
        written = [part.strip() for part in text.split(self.separator)]
        if not all(written):
            hint = self.separator.join(filter(None, written))
            raise BadValue(f"a part of {show(text)} is empty", allowed=self.allowed, suggestion=hint)
        if self.MOST and len(written) > self.MOST:
            raise BadValue(f"{len(written)} parts are too many", allowed=self.allowed)
        parts = [self.part(part) for part in written]
        self.together(parts)
        return self.separator.join(parts)

    def part(self, text: str) -> str:
        """The canonical form of one part, or :class:`BadValue`."""
        raise NotImplementedError

    def together(self, parts: list[str]) -> None:
        """Raise :class:`BadValue` where canonical parts do not go together."""

    def wrong(self, text: str, suggestion: str = "", allowed: str = "") -> NoReturn:
        raise BadValue(text, allowed=allowed or self.allowed, suggestion=suggestion)

    def once(self, names: list[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if name in seen:
                self.wrong(f"{show(name)} stands twice")
            seen.add(name)

    def schema(self) -> dict[str, Any]:
        separator = re.escape(self.separator)
        more = f"{{0,{self.MOST - 1}}}" if self.MOST else "*"
        pattern = f"^{_}{self.PART}{_}({separator}{_}{self.PART}{_}){more}$"
        item: dict[str, Any] = {"type": "string", "pattern": pattern}  # an item may itself be several parts
        number = {"minimum": 0, "maximum": 10**18 - 1}
        if self.NUMBERS:
            item = {"type": ["string", "integer"], "pattern": pattern, **number}
        forms = [{"type": "string", "pattern": pattern}, {"type": "array", "items": item, "minItems": 1}]
        return {"anyOf": [*forms, {"type": "integer", **number}] if self.NUMBERS else forms}


class DumpStepKind(PartsKind):
    """Steps and ranges of steps: ``0|3-5|10``."""

    PART = rf"{_NUMBER}({_}-{_}{_NUMBER})?"
    MOST = 100
    NUMBERS = True

    def __init__(self) -> None:
        super().__init__(
            allowed="at most 100 steps and ranges a-b (a below b), separated by |, such as 0|3-5|10",
            separator="|",
        )

    def part(self, text: str) -> str:
        match = re.fullmatch(rf"({_NUMBER})(?:{_}-{_}({_NUMBER}))?", text)
        if not match:
            self.wrong(f"{show(text)} is neither a step nor a range of steps")
        first, last = int(match[1]), int(match[2]) if match[2] else None
        if last is not None and first >= last:
            fixed = f"{last}-{first}" if last < first else str(first)
            self.wrong(f"the range {show(text)} does not end after it begins", fixed)
        return str(first) if last is None else f"{first}-{last}"


class InputShapeKind(PartsKind):
    """The shape of each input: ``data:1,-1;mask:0``; -1 is a size that dynamic_dims lists, 0 alone a scalar."""

    PART = rf"[^;\s][^;]*:{_}(0{{1,18}}|(-1|{_SIZE})({_},{_}(-1|{_SIZE}))*)"

    def __init__(self) -> None:
        super().__init__(
            allowed="name:d1,d2 for each input, separated by ;: sizes from 1 on, -1 for one of dynamic_dims, 0 alone for a scalar",
            separator=";",
        )

    def part(self, text: str) -> str:
        name, sign, listed = (p.strip() for p in text.rpartition(":"))
        if not sign or not name:
            self.wrong(f"{show(text)} is not name:sizes")
        sizes = [size.strip() for size in listed.split(",")]
        for size in sizes:
            if not re.fullmatch(rf"-1|0{{1,18}}|{_SIZE}", size):
                self.wrong(f"{show(size)} in {show(text)} is not a size")
            if int(size) == 0 and len(sizes) > 1:
                self.wrong(f"the size 0 in {show(text)} must stand alone: it means a scalar")
        return f"{name}:{','.join(str(int(size)) for size in sizes)}"

    def together(self, parts: list[str]) -> None:
        self.once([part.rpartition(":")[0] for part in parts])


class DynamicDimsKind(PartsKind):
    """Gears, in each one size per -1 of input_shape: ``20,20;40,40``."""

    PART = rf"{_SIZE}({_},{_}{_SIZE})*"
    MOST = 100
    NUMBERS = True

    def __init__(self) -> None:
        super().__init__(
            allowed="2 to 100 gears separated by ;, each with the same number of sizes from 1 on, such as 20,20;40,40",
            separator=";",
        )

    def part(self, text: str) -> str:
        sizes = [size.strip() for size in text.split(",")]
        for size in sizes:
            if not re.fullmatch(_SIZE, size):
                self.wrong(f"{show(size)} in the gear {show(text)} is not a size")
        return ",".join(str(int(size)) for size in sizes)

    def together(self, parts: list[str]) -> None:
        if len(parts) < 2:
            self.wrong(f"{show(parts[0])} is a single gear; one shape alone is not dynamic")
        for part in parts:
            if part.count(",") != parts[0].count(","):
                self.wrong(f"the gear {show(part)} has not as many sizes as {show(parts[0])}")

    def schema(self) -> dict[str, Any]:
        text, listed, _number = super().schema()["anyOf"]
        text = {**text, "pattern": text["pattern"].replace("{0,99}", "{1,99}")}
        return {"anyOf": [text, {**listed, "items": {**listed["items"], "minimum": 1}}]}


class StreamParallelKind(PartsKind):
    """How many operators each engine may run at a time: ``DNN_VM_AICPU:2,AIcoreEngine:4``."""

    ENGINES = ("DNN_VM_AICPU", "AIcoreEngine")
    PART = rf"({'|'.join(ENGINES)}){_}:{_}{_SIZE}"

    def __init__(self) -> None:
        super().__init__(allowed="DNN_VM_AICPU:n and AIcoreEngine:n, separated by a comma, with n from 1 on")

    def part(self, text: str) -> str:
        engine, sign, number = (p.strip() for p in text.partition(":"))
        if engine not in self.ENGINES:
            near = next((e for e in self.ENGINES if e.lower() == engine.lower()), nearest(engine, self.ENGINES))
            self.wrong(f"{show(engine)} is not an engine", near, ", ".join(self.ENGINES))
        if not sign:
            self.wrong(f"{show(text)} is not engine:number", f"{engine}:1")
        if not re.fullmatch(_SIZE, number):
            self.wrong(f"{show(number)} in {show(text)} is not a number from 1 on")
        return f"{engine}:{int(number)}"

    def together(self, parts: list[str]) -> None:
        self.once([part.partition(":")[0] for part in parts])


class DeviceListKind(PartsKind):
    """Numbers of devices: ``0,1``."""

    PART = _NUMBER
    NUMBERS = True

    def __init__(self) -> None:
        super().__init__(allowed="numbers of devices from 0 on, separated by commas, none twice")

    def part(self, text: str) -> str:
        if not re.fullmatch(_NUMBER, text):
            self.wrong(f"{show(text)} is not the number of a device")
        return str(int(text))

    def together(self, parts: list[str]) -> None:
        self.once(parts)


class AccelerateTrainModeKind(TextKind):
    """How training in low precision begins and when it ends: ``fast|step|0.9``."""

    SPEEDS = ("fast", "fast1")
    RATIOS = {"step": (0.2, 0.9, 0.9), "loss": (1.01, 1.5, 1.05)}
    """What ends the phase → lowest, highest and default ratio."""

    def __init__(self) -> None:
        super().__init__(
            allowed="fast|step|0.9: fast or fast1, then step with 0.2 to 0.9 (default 0.9) or loss with 1.01 to 1.5 (default 1.05)",
            separator="|",
        )

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise BadValue(f"{show(value)} is not text", allowed=self.allowed)
        text = super().parse(value)
        fields = [field.strip() for field in text.split("|")]
        if not 2 <= len(fields) <= 3:
            raise BadValue(f"{show(text)} has not two or three fields", allowed=self.allowed)
        for field, words in zip(fields, (self.SPEEDS, self.RATIOS), strict=False):
            if field not in words:
                hint = nearest(field.lower(), words)
                raise BadValue(f"{show(field)} in {show(text)} is unknown", allowed=", ".join(words), suggestion=hint)
        speed, end, *rest = fields
        low, high, default = self.RATIOS[end]
        if not rest:
            return f"{speed}|{end}|{default}"
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", rest[0]) or not low <= float(rest[0]) <= high:
            text = f"{show(rest[0])} is not a ratio for {end}"
            raise BadValue(text, allowed=f"{low} to {high}", suggestion=f"{speed}|{end}|{default}")
        return f"{speed}|{end}|{float(rest[0])}"

    def schema(self) -> dict[str, Any]:
        ratio = rf"({_}\|{_}[0-9]+(\.[0-9]+)?)?"
        return {"type": "string", "pattern": rf"^{_}(fast|fast1){_}\|{_}(step|loss){ratio}{_}$"}


_DIM = rf"(-1|{_NUMBER}({_}~{_}{_NUMBER})?)"
_SHAPE = rf"\[{_}({_DIM}({_},{_}{_DIM})*)?{_}\]"


class ShapeRangeKind(PartsKind):
    """The shapes that inputs may take: ``getnext:[128,3~5,-1],[64];data:[]``."""

    GROUPS = ("getnext", "data")
    PART = rf"({'|'.join(GROUPS)}){_}:{_}{_SHAPE}({_},{_}{_SHAPE})*"

    def __init__(self) -> None:
        super().__init__(
            allowed="getnext:[…],[…];data:[…] with a size, a range a~b (a not above b) or -1 for each dimension; [] is a scalar",
            separator=";",
        )

    def part(self, text: str) -> str:
        group, sign, listed = (p.strip() for p in text.partition(":"))
        if not sign:
            self.wrong(f"{show(text)} is not group:shapes")
        if group not in self.GROUPS:
            self.wrong(f"{show(group)} is not a group of inputs", nearest(group.lower(), self.GROUPS), ", ".join(self.GROUPS))
        shapes = re.findall(r"\[([^\[\]]*)\]", listed)
        if not re.fullmatch(rf"\[[^\[\]]*\]({_},{_}\[[^\[\]]*\])*", listed):
            self.wrong(f"{show(listed)} is not a list of shapes in brackets, separated by commas")
        return f"{group}:{','.join(f'[{self._shape(shape)}]' for shape in shapes)}"

    def _shape(self, text: str) -> str:
        return ",".join(self._dimension(dim.strip(), text) for dim in text.split(",")) if text.strip() else ""

    def _dimension(self, text: str, shape: str) -> str:
        if text == "-1":
            return text
        match = re.fullmatch(rf"({_NUMBER})(?:{_}~{_}({_NUMBER}))?", text)
        if not match:
            self.wrong(f"{show(text)} in [{shape}] is neither a size, a range nor -1")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            self.wrong(f"the range {show(text)} runs backwards", f"{high}~{low}")
        return f"{low}~{high}" if match[2] else str(low)

    def together(self, parts: list[str]) -> None:
        self.once([part.partition(":")[0] for part in parts])


class InOutPairKind(TextKind):
    """One region of a model, by the names of its first and its last operators: ``[['conv1'], ['relu3']]``.

    CANN's own samples write a list of such pairs, of which there may be but one; that is taken too.
    """

    def __init__(self) -> None:
        super().__init__(allowed="one pair of lists with names of operators: [['first', …], ['last', …]]")

    def parse(self, value: Any) -> str:
        pair = self._read(value) if isinstance(value, str) else value
        if _is_list(pair) and len(pair) == 1 and _is_list(pair[0]) and any(map(_is_list, pair[0])):
            pair = pair[0]
        if not _is_list(pair) or not all(map(_is_list, pair)):
            raise BadValue(f"{show(value)} is not a pair of lists", allowed=self.allowed)
        if len(pair) != 2 or any(_is_list(name) for names in pair for name in names):
            raise BadValue(f"{show(value)} is not exactly one pair", allowed=self.allowed)
        for name in (name for names in pair for name in names):
            if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.isprintable():
                raise BadValue(f"{show(name)} is not the name of an operator", allowed=self.allowed)
        if not all(pair):
            raise BadValue(f"a list of {show(value)} names no operator", allowed=self.allowed)
        return str([[str(name) for name in names] for names in pair])

    def _read(self, text: str) -> Any:
        if not text.strip():
            raise BadValue("the text is empty", allowed=self.allowed)
        if not _LISTS.fullmatch(text):  # so that Python is shown nothing but brackets, commas and quoted names
            quoted = _BARE.sub(r"'\g<0>'", text)
            hint = quoted if _LISTS.fullmatch(quoted) else ""
            raise BadValue(f"{show(text)} is not lists of quoted names", allowed=self.allowed, suggestion=hint)
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise BadValue(f"the brackets and commas of {show(text)} do not fit", allowed=self.allowed) from None

    def schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string", "pattern": f"^{_NAME.pattern}$"}, "minItems": 1}
        pair = {"type": "array", "items": names, "minItems": 2, "maxItems": 2}
        text = {"type": "string", "pattern": rf"^\s*\[\s*\[({_LISTS.pattern})\]\s*\]\s*$"}
        wrapped = {"type": "array", "maxItems": 1}
        lists = {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "if": wrapped,
            "then": {"items": pair},
            "else": {"items": names},
        }
        return {"anyOf": [text, lists]}


_NAME = re.compile(r"""[^\s'"\\]+""")
_LISTS = re.compile(rf"""([\[\]\s,]|'{_NAME.pattern}'|"{_NAME.pattern}")*""")
_BARE = re.compile(r"""[^\s'"\\\[\],]+""")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


# --- values inside files, which know nothing but text ------------------------------------------------------------------


@dataclass(frozen=True)
class DigitsKind(IntKind):
    """A whole number in a file that knows nothing but text; never one of *without*."""

    without: tuple[int, ...] = ()

    def parse(self, value: Any) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise BadValue(f"{show(value)} is not a whole number", allowed=self.allowed)
        if int(value) in self.without:
            raise BadValue(f"{value} has no meaning", allowed=f"{self.allowed}, but not {value}")
        return super().parse(int(value))


@dataclass(frozen=True)
class MegabytesKind(Kind):
    """An amount of disk as CANN's profiler has it."""

    allowed: str = '"<n>MB" with n from 200 to 4294967295'

    def parse(self, value: Any) -> str:
        match = re.fullmatch(r"\s*0*([0-9]{1,18})\s*(MB)?\s*", str(value), re.IGNORECASE)
        size = f"{match[1]}MB" if match else ""
        if not match or value != size:
            raise BadValue(f"{show(value)} is not an amount", allowed=self.allowed, suggestion=size)
        if not 200 <= int(match[1]) <= 2**32 - 1:
            raise BadValue(f"{show(value)} is out of range", allowed=self.allowed)
        return size


@dataclass(frozen=True)
class NameOrTypeKind(Kind):
    """An operator by its name, or all of a type as ``OpType::Type``; CANN's own samples also write ``opType::``."""

    allowed: str = "the name of an operator, or OpType::Type"

    def parse(self, value: str) -> str:
        before, sign, name = value.rpartition("::")
        if not name:
            raise BadValue(f"{show(value)} names no operator", allowed=self.allowed)
        if sign and before.lower() != "optype":
            raise BadValue(f"{show(value)} has no meaning", allowed=self.allowed, suggestion=f"OpType::{name}")
        return f"OpType::{name}" if sign else name


DumpStep = Annotated[str, DumpStepKind()]
InputShape = Annotated[str, InputShapeKind()]
DynamicDims = Annotated[str, DynamicDimsKind()]
StreamParallel = Annotated[str, StreamParallelKind()]
DeviceList = Annotated[str, DeviceListKind()]
AccelerateTrainMode = Annotated[str, AccelerateTrainModeKind()]
ShapeRange = Annotated[str, ShapeRangeKind()]
InOutPair = Annotated[str, InOutPairKind()]
