"""The formats of the files and texts that options name: a reader and a type each.

The keys of some are options of their own (``env_config_path.rdr.mode``); of these only the form is checked here; their values are
checked like those of any option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msctx.errors import Diagnostic
from msctx.options.grammars import DumpIteration, DumpLayer
from msctx.options.kinds import (
    AnyText,
    BadValue,
    Bool,
    Choice,
    DictOf,
    Fields,
    Int,
    Kind,
    ListOf,
    Text,
    TextKind,
    check,
    refusal,
    show,
    where,
)
from msctx.options.precision_policy import Operator
from msctx.options.values_with_places import Document, read_file
from msctx.options.yaml_json_ini import parse_ini, parse_json


@dataclass(frozen=True)
class Format:
    """How a file, or (not *is_file*) a text, that an option holds is read and checked.

    *rule* is what a type cannot express: how parts of a document go together. It is asked where all parts are right.
    """

    read: Callable[[str, str], Document]
    kind: Kind
    rule: Callable[[Any], Iterator[BadValue]] | None = None
    is_file: bool = True

    def parse(self, text: str, file: str) -> Document:
        """Read the content; never raises for what is in it. *file* is how places name it."""
        found = self.read(text, file)
        if found.problems and not found.data:  # not even its form is right
            return found
        data, wrong = check(self.kind, found.data, marks=found.mark)
        if self.rule and not (wrong or found.problems):
            wrong = [bad.at(marks=found.mark) for bad in self.rule(data)]
        found.data = {} if data is None else data
        found.problems += wrong
        return found.in_order()


def _one_of(words: str) -> Choice:
    return Choice(words.split())


# --- lines ------------------------------------------------------------------------------------------------------------


_OPERATOR = re.compile(r"optype\s*::\s*(?P<ByOpType>[^:]*[^:\s])\s*:|(?!optype\s*::)(?P<ByNodeName>.*?\S)\s*::", re.IGNORECASE)
_LABEL = re.compile(r"([^\s,:]*)\s*:\s*([^:]*?)\s*(?=,[^,:]*:|$)")
"""A label and its list; a comma may stand before the next label."""


def parse_dtypes(text: str, file: str) -> Document:
    """Read the dtypes of operators, one operator to a line: ``{ByOpType or ByNodeName: {name: {label: [dtypes]}}}``."""
    document = Document(text, file)
    allowed = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"
    for start, end in document.lines():
        head = _OPERATOR.match(document.text, start, end)
        labels = [*_LABEL.finditer(document.text, head.end(), end)] if head else []
        if not head or not labels or document.text[head.end() : labels[0].start()].strip():
            document.report((), (start, end), "these are no dtypes of an operator", allowed=allowed)
            continue
        section = head.lastgroup or ""
        path = (section, head[section])
        if document.put(path, head.span(section), (head.end(), end), {}):
            for label in labels:
                document.put((*path, label[1]), label.span(1), label.span(2))
    return document.in_order()


def parse_flags(text: str, file: str) -> Document:
    """Read ``--name=value --name …``; ``--path=file.json`` reads further flags from a file of texts. A bare flag is ``True``."""
    document, files = Document(text, file), []
    for token in re.finditer(r"(--([^\s=]+))(?:=([^\s=]*))?(?!\S)|\S+", document.text):
        span = token.span(1 if token[3] is None else 3)
        if not token[2]:
            hint = f"--{token[0].lstrip('-')}" if re.fullmatch(r"-*[^-\s=][^\s=]*(=[^\s=]*)?", token[0]) else ""
            what = f"{show(token[0])} is not a flag"
            document.report((), token.span(), what, allowed="--name or --name=value", suggestion=hint)
        elif token[2] != "path":
            document.put((token[2],), token.span(1), span, True if token[3] is None else token[3])
        elif (content := read_file(token[3]))[1]:
            document.report(("path",), span, f"{show(token[3] or '')} cannot be read: {content[1]}")
        else:
            files.append(parse_json(content[0], token[3]))
    for inner in files:
        wrong = check(DictOf(AnyText), inner.data, marks=inner.mark)[1]
        found = inner.data if isinstance(inner.data, dict) else {}
        twice = {*found} & {*document.data, "path"}
        wrong += (Diagnostic(flag, "is given twice", mark=inner.mark((flag, ""))) for flag in twice)
        document.problems += inner.problems + wrong
        document.data |= found
        document.keys |= inner.keys
        document.values |= {path: mark for path, mark in inner.values.items() if path}
    return document


# --- values -----------------------------------------------------------------------------------------------------------


def _in_text(number: Int) -> Kind:
    """A whole number in a file that knows nothing but text."""
    return Kind(number.allowed, lambda text: number.make(int(text) if re.fullmatch("-?[0-9]{1,18}", str(text)) else text))


def _name_or_type(text: str) -> str:
    """CANN's own samples also write ``opType::``."""
    if not (match := re.fullmatch("(optype::)?((?:(?!::).)+)", text, re.IGNORECASE)):
        raise refusal(text)
    return f"OpType::{match[2]}" if match[1] else text


def _dump_path(text: str) -> str:
    """MindSpore's folder for dumps: where the text is empty, the environment names it."""
    folder = os.environ.get("MS_DIAGNOSTIC_DATA_PATH")
    return str(where(bool)(text or (f"{folder}/debug_dump" if folder else "")))


def _is_amount(text: str) -> bool:
    """As CANN's profiler has an amount of disk."""
    return re.fullmatch("[1-9][0-9]{2,9}MB", text) is not None and 200 <= int(text[:-2]) < 2**32


_IS_INSIDE = re.compile(r"(?!\.\.?$)[^/\\]+")
_SWITCH = Choice(("on", "off"), [(True, "on"), (False, "off")])
AnyName = TextKind("the name of an operator, or nothing for the first or the last", empty=True)
Way = _one_of(
    "high_precision high_performance support_out_of_bound_index enable_float_32_execution enable_hi_float_32_execution "
    "keep_fp16 super_performance"
)
_DTYPES = "float16 float32 bfloat16 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool complex64 complex128"
_DTYPE = Choice(_DTYPES.split(), [("float", "float32"), ("double", "float64")])

# --- rules between parts ----------------------------------------------------------------------------------------------


def _moved_once(data: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[BadValue]:
    """An operator can leave one list and join another; it cannot join two, nor join the list that it leaves."""
    seen: dict[tuple[str, str], str] = {}
    for colour, lists in data.items():
        for move, names in lists.items():
            for number, name in enumerate(names):
                places = [(name, colour), *[(name, "")] * (move == "to-add")]
                if clash := next((seen[place] for place in places if place in seen), ""):
                    yield BadValue(f"{name} stands in {clash} already", path=(colour, move, number))
                seen |= dict.fromkeys(places, f"{colour}.{move}")


def _no_o0_with_oom(data: Mapping[str, Sequence[str]]) -> Iterator[BadValue]:
    if {"ccec_O0", "oom"} <= {*data["op_debug_config"]}:
        what, advice = "ccec_O0 and oom exclude each other", "leave one of the two out"
        yield BadValue(what, suggestion=advice, path=("op_debug_config",))


def _tasks_need_training(data: Mapping[str, str]) -> Iterator[BadValue]:
    names = [name for name in ("task_trace", "task_time") if name in data]
    if len(names) > 1:
        yield BadValue(f"{' and '.join(names)} are one key; it is set twice", path=(names[1],), at_key=True)
    elif names and data[names[0]] == "on" and data.get("training_trace") != "on":
        advice = '"training_trace": "on" must be set with it'
        yield BadValue("on needs training_trace", suggestion=advice, path=(names[0],))


# --- the formats ------------------------------------------------------------------------------------------------------

_MOVES = Fields({"to-add": ListOf(Operator), "to-remove": ListOf(Operator)})
_OF_OPERATOR = Fields(dict.fromkeys(("InputDtype", "OutputDtype"), ListOf(_DTYPE, split=True)))
_CACHE = {
    "max_op_cache_size": _in_text(Int(-1, 2**31 - 2, zero=False)),
    "remain_cache_size_ratio": _in_text(Int(1, 100)),
    **dict.fromkeys(("adk_version", "ops_version"), Text),  # which CANN itself writes into the file
}

ENV_CONFIG = SPEED_UP = Format(parse_json, DictOf())
GRAPH_KERNEL_FLAGS = Format(parse_flags, DictOf(), is_file=False)
OP_PRECISION_MODE = Format(
    partial(parse_ini, first=("ByOpType",)),
    Fields({"ByOpType": DictOf(Way, Operator), "ByNodeName": DictOf(Way)}),
)
CUSTOMIZE_DTYPES = Format(
    parse_dtypes, Fields({"ByOpType": DictOf(_OF_OPERATOR, Operator), "ByNodeName": DictOf(_OF_OPERATOR)})
)
MIXLIST = Format(
    partial(parse_json, comments=True), Fields({f"{c}-list": _MOVES for c in ("black", "white", "gray")}), _moved_once
)
_DEBUGGED = {
    "op_debug_config": ListOf(_one_of("oom dump_cce dump_loc ccec_O0 ccec_g check_flag"), split=True),
    "op_debug_list": ListOf(TextKind("the name of an operator, or OpType::Type", empty=True, check=_name_or_type), split=True),
}
OP_DEBUG = Format(partial(parse_ini, first=()), Fields(_DEBUGGED, needed=("op_debug_config",)), _no_o0_with_oom)
_PASSES = Fields(dict.fromkeys(("GraphFusion", "UBFusion"), DictOf(_SWITCH)))
FUSION_SWITCH = Format(parse_json, Fields({"Switch": _PASSES}, needed=("Switch",)))
_TUNED = {
    "tune_ops_name": ListOf(TextKind("the name of an operator")),
    "tune_ops_type": ListOf(TextKind("the type of an operator")),
    "tune_optimization_level": _one_of("O1 O2"),
    "feature": ListOf(_one_of("deeper_opat nonhomo_split")),
}
AOE = Format(parse_json, Fields(_TUNED))
OP_CACHE = Format(  # CANN ignores the file unless both numbers are there
    parse_ini, Fields({"op_compiler_cache": Fields(_CACHE, needed=tuple(_CACHE)[:2])}, needed=("op_compiler_cache",))
)
_METRICS = "ArithmeticUtilization PipeUtilization Memory MemoryL0 MemoryUB ResourceConflictRatio L2Cache"
_PROFILED = {
    "output": TextKind("a path"),
    "storage_limit": TextKind('"<n>MB" with n from 200 to 4294967295', check=where(_is_amount)),
    **dict.fromkeys(("task_trace", "task_time"), Choice(("on", "off", "l0", "l1"), _SWITCH.aliases)),
    **dict.fromkeys(("training_trace", "hccl", "aicpu", "msproftx"), _SWITCH),
    **dict.fromkeys(("fp_point", "bp_point"), AnyName),
    "aic_metrics": _one_of(_METRICS),
}
PROFILING = Format(parse_json, Fields(_PROFILED), _tasks_need_training, is_file=False)


_CATEGORIES = (
    *("max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count", "negative inf count"),
    *("positive inf count", "zero count", "md5", "l2norm"),
)
_DUMPED_INTO = "a path; it may be empty where $MS_DIAGNOSTIC_DATA_PATH is set, and is $MS_DIAGNOSTIC_DATA_PATH/debug_dump then"
_COMMON = {
    "op_debug_mode": Choice((0, 3, 4)),
    **dict.fromkeys(("dump_mode", "input_output"), Choice((0, 1, 2))),
    "path": TextKind(_DUMPED_INTO, empty=True, check=_dump_path),
    "net_name": TextKind("the name of a folder, without / and \\, and neither . nor ..", check=where(_IS_INSIDE.fullmatch)),
    "iteration": DumpIteration,
    "saved_data": _one_of("tensor statistic full"),
    "file_format": _one_of("npy bin"),
    "kernels": ListOf(DumpLayer),
    "support_device": ListOf(Int(0)),
    "statistic_category": ListOf(Choice(_CATEGORIES)),
    "overflow_number": Int(0),
    "initial_iteration": Int(0),
}
_E2E = {
    **dict.fromkeys(("enable", "trans_flag", "save_kernel_args"), Bool),
    "stat_calc_mode": _one_of("host device"),
    "device_stat_precision_mode": _one_of("high low"),
    "sample_mode": Choice((0, 1)),
    "sample_num": Int(1),
}
_DUMP = {"common_dump_settings": Fields(_COMMON, needed=("path",)), "e2e_dump_settings": Fields(_E2E)}
DUMP_CONFIG = Format(parse_json, Fields(_DUMP, needed=("common_dump_settings",)))
