"""precision_mode and its family: the dtype in which each operator computes, as one canonical text and as rules.

The text is a JSON object of the options that are set and of what the files hold that they name. Lists and tables here are the
documentation: the table of docs/how-to/precision.md is made from them, and so are the tests.

Operators have PyTorch's names and CANN's. An overload is governed with its name (``sum`` and ``sum.dim_IntList``); forms that write
into a given tensor (``add_``, ``out=``) are not, they have its dtype. An operator that is not here is made of others that are, as
``outer`` is a ``mul``, or only moves values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from msctx.errors import nearest
from msctx.options.kinds import BadValue, TextKind, show
from msctx.shipped import CONFIGS

_DATA = json.loads((CONFIGS / "operators.json").read_bytes())
CLASSES: dict[str, list[str]] = _DATA["classes"]
"""Class → its operators, in the order in which the native core knows them.

matrix: matrix multiplications, for the cube unit of an Ascend, tensor cores, AMX. sensitive: they need float32 under mixed precision,
by PyTorch's lists for CUDA and CPU; avg_pool3d has no other kernel. strict: of the other vector operators those that want all their
inputs in one dtype, the widest of them where a policy sets no other. vector: the other operators that compute. moving: they only move
values, or add them up; they keep their dtype, the widest of several. quantizing: they take only float32.
"""
MATRIX, SENSITIVE, STRICT, VECTOR, MOVING, QUANTIZING = CLASSES.values()
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
EXACT: list[str] = _DATA["exact"]
"""The vector operators that give one of their inputs' values, or round nothing: they have one implementation."""
GRADIENTS: list[str] = _DATA["backward"]
"""Of what computes gradients alone, the usual operators: only counted. Other gradients are made of the operators above."""
ALIASES: dict[str, str] = _DATA["aliases"]
"""Other names that PyTorch itself has for an operator."""
CANN: dict[str, list[str]] = _DATA["cann"]
"""CANN's type of operator → the names that PyTorch has for it.

None: PyTorch has no operator for it (it computes an LRN of others, RoI alignment is torchvision's), it is a gradient, which computes
in the dtypes of its forward pass, or it computes nothing.
"""


def resolve(name: str) -> tuple[str, ...] | None:
    """PyTorch's operators for a name of PyTorch's (``aten::mm``, ``mm``, ``mm.default``) or a type of CANN's; ``None``: unknown."""
    if name in CANN:
        return tuple(CANN[name])
    plain = name.removeprefix("aten::").partition(".")[0]
    plain = ALIASES.get(plain, plain)
    return (plain,) if plain in CLASS_OF else None


@cache
def _known() -> dict[str, str]:
    return {name.lower(): name for name in (*CLASS_OF, *ALIASES, *CANN)}


def _operator(text: str) -> str:
    name = text.strip()
    if resolve(name) is None:
        raise BadValue(f"{show(name)} is no operator that policies govern", suggestion=partial(_nearest, name))
    return name


def _nearest(name: str) -> str:
    return _known().get(nearest(name.removeprefix("aten::").lower(), _known()), "")


_ALLOWED = "PyTorch's name of an operator (mm, conv2d, softmax …) or CANN's type (MatMul, Conv2D, SoftmaxV2 …)"
Operator = TextKind(_ALLOWED, check=_operator)
Operators = TextKind(_ALLOWED, ",", check=lambda text: ",".join(map(_operator, text.split(","))))
"""Several of them, separated by commas."""

PRECISION = (
    "precision_mode",
    "precision_mode_v2",
    "modify_mixlist",
    "customize_dtypes",
    "op_precision_mode",
    "op_select_implmode",
    "optypelist_for_implmode",
    "enable_reduce_precision",
    "atc.builtin_impl_mode_ini",
)
"""The options that make up a policy."""
DTYPES = ("float32", "float16", "bfloat16")
"""The dtypes that policies govern; float64, complex numbers, integers and 8-bit floats are left as they are."""
ORIGIN = "origin"
"""As output: what the inputs had, the widest of it."""


@dataclass(frozen=True, slots=True)
class PrecisionRule:
    """The casts of one operator."""

    float32: str = ""  # the dtype that inputs of this dtype are cast to; ``""``: they are left
    float16: str = ""  # likewise
    bfloat16: str = ""  # likewise
    output: str = ""  # ``""``: as computed; :data:`ORIGIN`; or a dtype
    widest: bool = False  # inputs of several dtypes become the widest of them
    follows: bool = False  # the widest is that of inputs which operators have computed; weights and what else is trained follow
    through: str = ""  # inputs are rounded to this dtype first
    checks_index: bool = False  # indices are checked before they are used
    whole: bool = False  # it holds for all that the operator is made of
    inputs: tuple[str, ...] = ()  # dtypes by position, over all else
    outputs: tuple[str, ...] = ()  # likewise
    why: str = ""  # the option that sets it

    def computes_in(self, dtype: str) -> str:
        """The dtype in which inputs of one dtype are computed."""
        return {"float32": self.float32, "float16": self.float16, "bfloat16": self.bfloat16}[dtype] or dtype

    def gives(self, dtype: str) -> str:
        """The dtype of results from inputs of one dtype, where the operator gives what it computes."""
        return dtype if self.output == ORIGIN else self.output or self.computes_in(dtype)


LEAVE = PrecisionRule()


def _all_to(dtype: str) -> PrecisionRule:
    return PrecisionRule(dtype, dtype, dtype)


_RAISE = PrecisionRule(float16="float32", bfloat16="float32")
_KEEP = replace(_RAISE, whole=True)
_WIDEST = PrecisionRule(widest=True)


def _mixed(dtype: str) -> dict[str, PrecisionRule]:
    return {"matrix": _all_to(dtype), "sensitive": _RAISE, "strict": _WIDEST, "moving": _WIDEST, "quantizing": _KEEP}


def _forced(matrix: PrecisionRule, others: PrecisionRule) -> dict[str, PrecisionRule]:
    return {**_mixed(""), "matrix": matrix, **dict.fromkeys(("sensitive", "strict", "vector"), others)}


MODES: dict[str, dict[str, PrecisionRule]] = {
    "force_fp16": _forced(_all_to("float16"), _all_to("float16")),
    "cube_fp16in_fp32out": _forced(replace(_all_to("float32"), through="float16"), _RAISE),
    "force_fp32": _forced(_RAISE, _RAISE),
    "allow_fp32_to_fp16": {"matrix": PrecisionRule(float32="float16", output=ORIGIN)},
    "allow_fp32_to_bf16": {"matrix": PrecisionRule(float32="bfloat16", output=ORIGIN)},
    "allow_mix_precision": _mixed("float16"),
    "allow_mix_precision_fp16": _mixed("float16"),
    "allow_mix_precision_bf16": _mixed("bfloat16"),
    "must_keep_origin_dtype": {},
}
"""Value → class of operators → rule; what is not named is left alone."""
V2 = {
    "fp16": "force_fp16",
    "origin": "must_keep_origin_dtype",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "mixed_float16": "allow_mix_precision_fp16",
    "mixed_bfloat16": "allow_mix_precision_bf16",
}
"""precision_mode_v2 → the precision_mode that means the same."""
ACCELERATE = "experimental_accelerate_train_mode"
SPEEDS = {"fast": "allow_mix_precision_fp16", "fast1": "allow_mix_precision_bf16"}
"""Of experimental_accelerate_train_mode, its first part → the precision_mode in that phase."""
OF_CANN = {"force_fp32": "cube_fp16in_fp32out", "allow_fp32_to_bf16": "must_keep_origin_dtype"}
"""precision_mode where CANN's page of the session has another meaning for a word than MindSpore's → the mode that has this meaning.

There force_fp32 is an older name, and allow_fp32_to_bf16 lowers what has no kernel for float32: no operator of PyTorch.
"""
MIXED = tuple(mode for mode in MODES if mode.startswith("allow_mix"))
LOW = {mode: "bfloat16" if mode.endswith("bf16") else "float16" for mode in MODES if mode.startswith(("allow", "force_fp16"))}
"""The dtype that a mode lowers to."""
WHITE_TOO = ("prelu",)
"""Beside the matrix operators on the list of those that mixed precision lowers: its weight would else make all else float32."""
_FOLLOW = PrecisionRule(follows=True, whole=True)
COLOURS = {"black-list": _KEEP, "gray-list": _FOLLOW}
"""The lists of mixed precision: white is lowered, black kept in float32, gray goes on as the operator before it did."""

# --- accurate and fast implementations --------------------------------------------------------------------------------

CHOOSABLE = tuple(n for n in (*SENSITIVE, *STRICT, *VECTOR, *MATRIX) if not n.startswith("_") and n not in EXACT)
"""The operators that can be computed both ways."""
INDEXED = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy", "index_fill",
           "index_reduce", "take", "take_along_dim", "embedding", "embedding_bag")  # fmt: skip
"""The operators whose indices can be checked."""
BY_DEFAULT = tuple(name for name in SENSITIVE if not name.startswith("_"))
"""The operators of op_select_implmode without a list of types; the values ``…_for_all`` mean all of :data:`CHOOSABLE`."""


# --- a policy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """The meaning of a text."""

    rules: Mapping[str, PrecisionRule] = field(default_factory=dict)  # operator → rule, for those that are not left alone
    modules: Mapping[str, Mapping[str, PrecisionRule]] = field(default_factory=dict)  # path of a module → its rules
    low: str = ""  # the dtype that the mode lowers to, which an autocast inside inherits; ``""``: none
    retries: int = 0  # 1: what has no kernel for 16 bits is computed in float32, with a warning; 2: without one
    frozen: bool = False  # weights do not change while it is in force: their casts are kept

    @cached_property
    def needs_scaler(self) -> bool:
        """Gradients go through float16."""
        rules = (rule for rules in (self.rules, *self.modules.values()) for rule in rules.values())
        return self.low == "float16" or any("float16" in (r.through, r.float32, *r.inputs, *r.outputs) for r in rules)

    @property
    def is_off(self) -> bool:
        """Nothing is ever cast: an outer autocast is switched off, and that is all."""
        return not (self.rules or self.modules or self.retries)


def text_of(requested: Mapping[str, Any]) -> str:
    """The canonical text of options; ``""`` if none of them sets anything."""
    is_meant = mode_of(requested) == "force_fp16"  # False: what has no kernel for float16 is an error there
    found = {n: v for n, v in requested.items() if v not in (None, {}) and (v is not False or is_meant)}
    return json.dumps(found, sort_keys=True, separators=(",", ":")) if found else ""


@lru_cache(256)
def precision_of(text: str) -> Precision:
    """The rules of a canonical text."""
    requested = json.loads(text)
    mode = mode_of(requested)
    rules: dict[str, PrecisionRule] = {}
    modules: dict[str, dict[str, PrecisionRule]] = {}
    if mode:
        rules |= _of_mode(mode, f"{ACCELERATE}={speed}" if (speed := requested.get(ACCELERATE)) else f"precision_mode={mode}")
    if mode in MIXED and "modify_mixlist" in requested:
        rules |= _of_mixlist(requested["modify_mixlist"], LOW[mode])
    if "atc.builtin_impl_mode_ini" in requested:
        rules |= _of_implmode(requested["atc.builtin_impl_mode_ini"].removesuffix(".ini"), None, rules)
    if "op_select_implmode" in requested:
        rules |= _of_implmode(requested["op_select_implmode"], requested.get("optypelist_for_implmode"), rules)
    by_type, by_name = ("ByOpType", "ByNodeName")
    ways, dtypes = requested.get("op_precision_mode", {}), requested.get("customize_dtypes", {})
    for name, way in ways.get(by_type, {}).items():
        rules |= _of_way(way, ops_of(name), rules, f"op_precision_mode [{by_type}] {name}={way}")
    for name, listed in dtypes.get(by_type, {}).items():
        rules |= dict.fromkeys(ops_of(name), _custom(listed, f"customize_dtypes {name}"))
    for name, way in ways.get(by_name, {}).items():
        inside = _of_way(way, CLASS_OF, rules, f"op_precision_mode [{by_name}] {name}={way}")
        modules.setdefault(name, {}).update(inside)
    for name, listed in dtypes.get(by_name, {}).items():
        rule = _custom(listed, f"customize_dtypes {name}")
        modules.setdefault(name, {}).update({op: rule for op in CLASS_OF if op not in MOVING})
    wants_kernels = requested.get("enable_reduce_precision")
    retries = int(wants_kernels) if wants_kernels is not None else 2 * (mode == "force_fp16")
    return Precision(rules, modules, LOW.get(mode, ""), retries, requested.get("frozen_weights", False))


def mode_of(requested: Mapping[str, Any]) -> str:
    """The requested precision_mode, by any of the options that set it."""
    speed, newer = requested.get(ACCELERATE, ""), requested.get("precision_mode_v2", "")
    return str(requested.get("precision_mode") or V2.get(newer) or SPEEDS.get(speed, ""))


def ops_of(name: str) -> tuple[str, ...]:
    return resolve(name) or ()


def _of_mode(mode: str, why: str) -> dict[str, PrecisionRule]:
    by_class = {
        kind: replace(rule, why=why + (f" (inputs rounded to {rule.through})" if rule.through else ""))
        for kind, rule in MODES[mode].items()
    }
    kinds = {op: "matrix" if mode in MIXED and op in WHITE_TOO else kind for op, kind in CLASS_OF.items()}
    return {op: by_class[kind] for op, kind in kinds.items() if kind in by_class}


def _of_mixlist(lists: Mapping[str, Mapping[str, Iterable[str]]], low: str) -> dict[str, PrecisionRule]:
    """An operator that leaves a list is gray, unless it joins another."""
    colours = {"white-list": replace(_all_to(low), whole=True), **COLOURS}
    found: dict[str, PrecisionRule] = {}
    for colour, moves in lists.items():
        for name in moves.get("to-remove", ()):
            gray = replace(_FOLLOW, why=f"modify_mixlist {colour}.to-remove {name}")
            found |= {op: gray for op in ops_of(name) if colour_of(op) == colour}
    for colour, moves in lists.items():
        for name in moves.get("to-add", ()):
            rule = replace(colours[colour], why=f"modify_mixlist {colour}.to-add {name}")
            found |= dict.fromkeys(ops_of(name), rule)
    return found


def colour_of(op: str) -> str:
    """The list of mixed precision that an operator is on by itself."""
    kind = CLASS_OF[op]
    return "white-list" if kind == "matrix" or op in WHITE_TOO else "black-list" if kind == "sensitive" else "gray-list"


def _of_implmode(value: str, types: str | None, rules: Mapping[str, PrecisionRule]) -> dict[str, PrecisionRule]:
    if types:
        names = [op for name in types.split(",") for op in ops_of(name.strip()) if op in CHOOSABLE]
    else:
        names = list(CHOOSABLE if value.endswith("_for_all") else BY_DEFAULT)
    return _of_way(value.removesuffix("_for_all"), names, rules, f"op_select_implmode={value}")


def _of_way(way: str, ops: Iterable[str], rules: Mapping[str, PrecisionRule], why: str) -> dict[str, PrecisionRule]:
    able = INDEXED if way == "support_out_of_bound_index" else CHOOSABLE
    return {op: _by_way(way, rules.get(op, LEAVE), why) for op in ops if op in able}


def _by_way(way: str, before: PrecisionRule, why: str) -> PrecisionRule:
    """A way of computing on top of what holds without it, which still decides what the results are."""
    match way:
        case "high_precision":  # in float32, rounded once
            lowered = before.output or before.float32
            output = lowered or ("" if before.float16 else ORIGIN)
            return PrecisionRule("", "float32", "float32", output, checks_index=before.checks_index, whole=True, why=why)
        case "high_performance" if before.float16 == "float32" and not before.float32:  # PyTorch's kernel for 16 bits
            return PrecisionRule(checks_index=before.checks_index, whole=True, why=why)
        case "support_out_of_bound_index":
            return replace(before, checks_index=True, why=f"{before.why}, {why}" if before.why else why)
        case _:
            return replace(before, why=before.why or why)


def _custom(dtypes: Mapping[str, Iterable[str]], why: str) -> PrecisionRule:
    inputs, outputs = dtypes.get("InputDtype", ()), dtypes.get("OutputDtype", ())
    return PrecisionRule(inputs=tuple(inputs), outputs=tuple(outputs), whole=True, why=why)
