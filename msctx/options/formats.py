"""What the files and texts hold that options name: one format each, described as data and checked completely.

The keys of some are options of their own (``env_config_path.rdr.mode``); of these only the form is checked here, their values
where every option's are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msctx.errors import Diagnostic, Mark, nearest
from msctx.options import operators
from msctx.options.documents import Format, Parsed, Path, Source, dotted, in_order, parse_ini, parse_json, pieces
from msctx.options.flags import GraphKernelFlags
from msctx.options.grammars import DigitsKind, MegabytesKind, NameOrTypeKind
from msctx.options.kinds import INVALID, BadValue, ChoiceKind, Kind, TextKind, show
from msctx.options.operators import OperatorKind

# --- how a format is described ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anything:
    """What is checked elsewhere."""


@dataclass(frozen=True)
class Each:
    """A list."""

    item: Shape


@dataclass(frozen=True)
class Names:
    """Keys of the user's own, all of one kind and with the same sort of value."""

    value: Shape
    key: Kind | None = None


@dataclass(frozen=True)
class Keys:
    """A closed set of keys.

    Attributes:
        also: another spelling of a key → the key.
        needed: keys that must stand there.
        always: dictionaries that the data has in any case.
        open: other keys are options, and checked elsewhere.
    """

    keys: Mapping[str, Shape]
    also: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    open: bool = False


Shape = Anything | Each | Names | Keys | Kind


class _Check:
    """Walks through a document along its shape; collects what is wrong, and returns the canonical data."""

    def __init__(self, parsed: Parsed) -> None:
        self.data, self.place, self.problems = parsed.data, parsed.mark, [*parsed.problems]
        self.written: dict[Path, Path] = {}

    def mark(self, path: Path) -> Mark | None:
        """The place of a canonical path, in a document that may spell it otherwise."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.written:
                return self.place((*self.written[path[:end]], *path[end:]))
        return self.place(path)

    def report(self, path: Path, text: str, *, allowed: str = "", suggestion: Any = "", at_key: bool = False) -> None:
        mark = self.mark((*path, "") if at_key else path)
        hint = json.dumps(suggestion) if isinstance(suggestion, bool) else str(suggestion)
        self.problems.append(Diagnostic(dotted(path), text, allowed=allowed, suggestion=hint, mark=mark))

    def value(self, shape: Shape, value: Any, path: Path) -> Any:
        match shape:
            case _ if value is INVALID or isinstance(shape, Anything):
                return value
            case Kind():
                return self._scalar(shape, value, path)
            case Each(item) if isinstance(value, list):
                parts = [self.value(item, part, (*path, i)) for i, part in enumerate(value)]
                return [part for part in parts if part is not INVALID]
            case Each():
                hint = f'["{value}"]' if isinstance(value, str) and len(value) < 40 else ""
                self.report(path, f"{show(value)} is not a list", allowed='["a", "b"]', suggestion=hint)
            case Names(inner, key) if isinstance(value, dict):
                if key:
                    for name in value:
                        self._key(key, name, (*path, name))
                return _readable({name: self.value(inner, part, (*path, name)) for name, part in value.items()})
            case Keys() if isinstance(value, dict):
                return self._keys(shape, value, path)
            case _:
                self.report(path, f"{show(value)} is not a dictionary", allowed='{"key": value}')
        return INVALID

    def _scalar(self, kind: Kind, value: Any, path: Path) -> Any:
        try:
            return kind.parse(value)
        except BadValue as bad:
            self.report(path, bad.text, allowed=bad.allowed, suggestion=bad.suggestion)
            return INVALID

    def _key(self, kind: Kind, name: str, path: Path) -> None:
        try:
            kind.parse(name)
        except BadValue as bad:
            self.report(path, bad.text, allowed=bad.allowed, suggestion=bad.suggestion, at_key=True)

    def _keys(self, shape: Keys, value: dict[str, Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, part in value.items():
            name = shape.also.get(key, key)
            if name not in shape.keys and not shape.open:
                hint = nearest(key, [*shape.keys, *shape.also])
                allowed = ", ".join(shape.keys)
                self.report((*path, key), "there is no such key", allowed=allowed, suggestion=hint, at_key=True)
            elif name in found:
                self.report((*path, key), f"{name} and {key} are one key; it is set twice", at_key=True)
            else:
                found[name] = self.value(shape.keys.get(name, Anything()), part, (*path, key))
                if name != key:
                    self.written[(*path, name)] = (*path, key)
        for name in shape.needed:
            if name not in found:
                self.report(path, f"{name} is missing")
        return {**{name: {} for name in shape.always}, **_readable(found)}


def _readable(data: dict[str, Any]) -> dict[str, Any]:
    """Without the values that are reported already."""
    return {key: value for key, value in data.items() if value is not INVALID}


CrossCheck = Callable[[_Check, Any], None]
"""What a shape cannot express: how parts of a document go together. It runs where all parts are right."""


@dataclass(frozen=True)
class Described:
    """A format that is read in one of the common ways, and checked against a shape."""

    read: Callable[[str, str], Parsed]
    shape: Shape
    rule: CrossCheck | None = None
    is_file: bool = True

    def parse(self, text: str, file: str) -> Parsed:
        parsed = self.read(text, file)
        if parsed.problems and not parsed.data:  # not even its form is right
            return parsed
        check = _Check(parsed)
        data = check.value(self.shape, parsed.data, ())
        if self.rule and not check.problems:
            self.rule(check, data)
        return Parsed({} if data is INVALID else data, check.mark, in_order(check.problems))


# --- values -----------------------------------------------------------------------------------------------------------


def _one_of(words: str) -> ChoiceKind:
    return ChoiceKind(tuple(words.split()))


ON_OFF = ChoiceKind(("on", "off"), {True: "on", False: "off"})
NAME = TextKind("the name of an operator")
TYPE = TextKind("the type of an operator")
OPERATOR = OperatorKind()


# --- rules between parts ----------------------------------------------------------------------------------------------


def _moved_once(check: _Check, data: dict[str, dict[str, list[str]]]) -> None:
    """An operator can leave one list and join another; it cannot join two, nor join the list that it leaves."""
    moves: dict[str, list[tuple[str, str, str]]] = {}
    for colour, lists in data.items():
        for move, names in lists.items():
            for number, name in enumerate(names):
                before = [m for key in _rivals(name) for m in moves.get(key, ())]
                clash = next((m for m in before if m[0] == colour or m[1] == move == "to-add"), None)
                if clash:
                    check.report((colour, move, number), f"{name} stands in {dotted(clash[:2])} already" + _as(name, clash[2]))
                for key in _meanings(name):
                    moves.setdefault(key, []).append((colour, move, name))


def _one_way(check: _Check, data: dict[str, dict[str, str]]) -> None:
    """An operator goes by several names; all of them must have the same value."""
    modes = data["ByOpType"]
    for name, other in _contrary(modes):
        text = f"{name} and {other} are one operator: {modes[name]} and {modes[other]} exclude each other"
        check.report(("ByOpType", name), text)


def _contrary(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names of one operator with different values: the later and the earlier one."""
    said: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for name, value in data.items():
        others = dict.fromkeys(said[key] for key in _rivals(name) if key in said)
        found += [(name, other) for other in others if data[other] != value][:1]
        said |= dict.fromkeys(_meanings(name), name)
    return found


def _meanings(name: str) -> list[str]:
    """What a name applies to: itself, and PyTorch's operators, which several types of CANN's may share."""
    sign = "CANN's " if name in operators.CANN else ""
    return [name, *(f"{sign}{op}" for op in operators.resolve(name) or ())]


def _rivals(name: str) -> list[str]:
    """What must not have a value already: the name itself; PyTorch's operators by their own names, and these by CANN's types."""
    ops = operators.resolve(name) or ()
    return [name, *ops, *(() if name in operators.CANN else (f"CANN's {op}" for op in ops))]


def _as(name: str, other: str) -> str:
    return f" as {other}" if other != name else ""


def _no_o0_with_oom(check: _Check, data: dict[str, list[str]]) -> None:
    if {"ccec_O0", "oom"} <= {*data["op_debug_config"]}:
        check.report(("op_debug_config",), "ccec_O0 and oom exclude each other", suggestion="leave one of the two out")


def _tasks_need_training(check: _Check, data: dict[str, str]) -> None:
    if data.get("task_trace") == "on" and data.get("training_trace") != "on":
        check.report(("task_trace",), "on needs training_trace", suggestion='"training_trace": "on" must stand beside it')


# --- the formats ------------------------------------------------------------------------------------------------------

_MOVES = Keys({"to-add": Each(OPERATOR), "to-remove": Each(OPERATOR)})
_MODE = _one_of(
    "high_precision high_performance support_out_of_bound_index enable_float_32_execution enable_hi_float_32_execution "
    "keep_fp16 super_performance"
)

ENV_CONFIG: Format = Described(
    parse_json,
    Keys({"sys": Keys({}, also={"mem_Reuse": "mem_reuse"}, open=True), "rdr": Names(Anything())}, open=True),
)
SPEED_UP: Format = Described(parse_json, Names(Anything()))
OP_PRECISION_MODE: Format = Described(
    partial(parse_ini, first="ByOpType"),
    Keys({"ByOpType": Names(_MODE, OPERATOR), "ByNodeName": Names(_MODE)}, always=("ByOpType", "ByNodeName")),
    _one_way,
)
MIXLIST: Format = Described(
    partial(parse_json, comments=True), Keys({f"{c}-list": _MOVES for c in ("black", "white", "gray")}), _moved_once
)
OP_DEBUG: Format = Described(
    partial(parse_ini, flat=True, lists=("op_debug_config", "op_debug_list")),
    Keys(
        {
            "op_debug_config": Each(_one_of("oom dump_cce dump_loc ccec_O0 ccec_g check_flag")),
            "op_debug_list": Each(NameOrTypeKind()),
        },
        needed=("op_debug_config",),
    ),
    _no_o0_with_oom,
)
FUSION_SWITCH: Format = Described(
    parse_json,
    Keys({"Switch": Keys({"GraphFusion": Names(ON_OFF), "UBFusion": Names(ON_OFF)})}, needed=("Switch",)),
)
AOE: Format = Described(
    parse_json,
    Keys(
        {
            "tune_ops_name": Each(NAME),
            "tune_ops_type": Each(TYPE),
            "tune_optimization_level": _one_of("O1 O2"),
            "feature": Each(_one_of("deeper_opat nonhomo_split")),
        }
    ),
)
OP_CACHE: Format = Described(
    parse_ini,
    Keys(
        {
            "op_compiler_cache": Keys(
                {
                    "max_op_cache_size": DigitsKind(-1, 2**31 - 2, without=(0,)),
                    "remain_cache_size_ratio": DigitsKind(1, 100),
                    # CANN itself writes these two into the file
                    "adk_version": TextKind(),
                    "ops_version": TextKind(),
                },
                needed=("max_op_cache_size", "remain_cache_size_ratio"),  # CANN ignores the file unless both are there
            )
        },
        needed=("op_compiler_cache",),
    ),
)
PROFILING: Format = Described(
    parse_json,
    Keys(
        {
            "output": TextKind("a path"),
            "storage_limit": MegabytesKind(),
            "training_trace": ON_OFF,
            "task_trace": ChoiceKind(("on", "off", "l0", "l1"), ON_OFF.aliases),
            "hccl": ON_OFF,
            "aicpu": ON_OFF,
            "msproftx": ON_OFF,
            "fp_point": TextKind("the name of an operator, or nothing for the first", empty=True),
            "bp_point": TextKind("the name of an operator, or nothing for the last", empty=True),
            "aic_metrics": _one_of(
                "ArithmeticUtilization PipeUtilization Memory MemoryL0 MemoryUB ResourceConflictRatio L2Cache"
            ),
        },
        also={"task_time": "task_trace"},
    ),
    _tasks_need_training,
    is_file=False,
)


# --- dtypes of operators ----------------------------------------------------------------------------------------------


class _Dtypes:
    """The dtypes of single operators, one to a line, by name or by type."""

    is_file = True
    LINE = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"
    LABELS = {"InputDtype": "input", "OutputDtype": "output"}
    WORDS = "float16 float32 bfloat16 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool complex64 complex128"
    DTYPE = ChoiceKind(tuple(WORDS.split()), {"float": "float32", "double": "float64"})

    def parse(self, text: str, file: str) -> Parsed:
        source = Source(text, file)
        data: dict[str, dict[str, Any]] = {"ByOpType": {}, "ByNodeName": {}}
        for line, start in source.lines():
            head, sign, rest = line.partition("::")
            section = "ByNodeName"
            if is_type := head.strip().lower() == "optype":
                section = "ByOpType"
                head, sign, rest = rest.partition(":")
            name, at = head.strip(), start + len(line) - len(rest)
            path = (section, name)
            if not sign or not name:
                text = f"the line does not begin with {'OpType::Type:' if is_type else 'name::'}"
                source.report((), (start, start + len(line)), text, allowed=self.LINE)
            elif source.add_key(path, start, at):
                source.values[path] = at, start + len(line)
                if is_type:
                    self._check_type(source, path, name, at - len(sign) - len(name))
                data[section][name] = self._dtypes(source, path, rest, at)
        for name, other in _contrary(data["ByOpType"]):
            path = ("ByOpType", name)
            source.report(path, source.values[path], f"{name} and {other} are one operator, and have other dtypes")
        return source.parsed(data)

    @staticmethod
    def _check_type(source: Source, path: Path, name: str, start: int) -> None:
        try:
            OPERATOR.parse(name)
        except BadValue as bad:
            span = (start, start + len(name))
            source.report(path, span, bad.text, allowed=bad.allowed, suggestion=str(bad.suggestion))

    def _dtypes(self, source: Source, path: Path, text: str, start: int) -> dict[str, list[str]]:
        """Read ``InputDtype:…,OutputDtype:…``, which begins at offset *start*."""
        found: dict[str, list[str]] = {}
        labels = list(re.finditer(r"([^\s,:]*)\s*:", text))
        if not labels or text[: labels[0].start()].strip():
            source.report(path, (start, start + len(text)), "neither InputDtype: nor OutputDtype: follows", allowed=self.LINE)
            return found
        for label, following in zip(labels, [*labels[1:], None], strict=True):
            end = following.start() if following else len(text)
            span = start + label.start(), start + label.end(1)
            key = self.LABELS.get(label[1])
            if key is None:
                hint = nearest(label[1], self.LABELS)
                source.report(path, span, f"{show(label[1])} is unknown", allowed=", ".join(self.LABELS), suggestion=hint)
            elif source.add_key((*path, key), *span):
                listed = text[label.end() : end].rstrip()
                listed = listed.removesuffix(",") if following else listed  # the comma before the next label
                source.values[(*path, key)] = start + label.end(), start + label.end() + len(listed)
                found[key] = self._listed(source, (*path, key), listed, start + label.end())
        return found

    def _listed(self, source: Source, path: Path, text: str, start: int) -> list[str]:
        found = []
        for number, (word, at) in enumerate(pieces(text, start, ",")):
            source.values[(*path, number)] = at, at + len(word)
            try:
                found.append(self.DTYPE.parse(word))
            except BadValue as bad:
                what = f"{show(word)} is not a dtype" if word else "a dtype is missing"
                hint = str(bad.suggestion) if word else ""
                source.report((*path, number), (at, at + len(word)), what, allowed=bad.allowed, suggestion=hint)
        return found


CUSTOMIZE_DTYPES: Format = _Dtypes()

GRAPH_KERNEL_FLAGS: Format = GraphKernelFlags()
