"""In which dtype each operator computes: precision_mode and its family. One policy for a device, to which all of them add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msctx.options import Setting, operators
from msctx.options.precision_rules import ACCELERATE, CHOOSABLE, INDEXED, OF_CANN, PRECISION, colour_of, mode_of, text_of
from msctx.themes.base import STAYS, On, Outcome, Outcomes, approximated, by_entry, honoured, inert, refused
from msctx.themes.common import PINNED

MODES = ("precision_mode", "precision_mode_v2")
FILES = ("modify_mixlist", "customize_dtypes", "op_precision_mode")
ALONE = {
    "enable_float_32_execution": "float32 is never rounded to HF32 here",
    "enable_hi_float_32_execution": "there is no HF32 here: matmul_allow_tf32 and conv_allow_tf32 allow TF32",
    "keep_fp16": "that is what PyTorch's kernels do with float16, whose sums are float32",
    "super_performance": "no operator has a second, rougher formula here",
}
"""Modes of op_precision_mode that have one meaning only → the note in the plan."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
HIF8 = ("mixed_hif8", "cube_hif8")
KEEPING = ("force_fp32", "must_keep_origin_dtype")
"""Modes under which float32 stays float32."""
KEPT = "CANN gets must_keep_origin_dtype: by default it computes float32 products in float16 on 910A and 310P"
REFUSES = "the matrix unit of this chip has float16 alone: CANN refuses {} in float32"
OF_ALL = f"{REFUSES.format('products and convolutions')}; matmul_algo=fp16x3 computes products of that precision"
OF_CONVOLUTIONS = REFUSES.format("convolutions")
NO_CHOICE = "all_ops_impl_mode.ini"
BY_TORCH_NPU = {
    "optypelist_for_implmode": "torch.npu.optypelist_for_implmode",
    "op_select_implmode": "torch.npu.op_select_implmode",
}
LIST_STAYS = f"torch_npu's list for operators that CANN compiles {STAYS}: CANN has no word for an empty one"
POLICY = {"cpu": "native.precision.cpu", "cuda": "native.precision.cuda", "ascend": "native.precision.ascend"}


def translate(on: On) -> Outcomes:
    return on.each(
        {
            **dict.fromkeys(("precision_mode", "precision_mode_v2"), _precision_mode),
            "modify_mixlist": _modify_mixlist,
            "customize_dtypes": _customize_dtypes,
            "op_precision_mode": _op_precision_mode,
            **dict.fromkeys(("op_select_implmode", "optypelist_for_implmode", "atc.builtin_impl_mode_ini"), _implementation),
            "enable_reduce_precision": _enable_reduce_precision,
        }
    )


def lowered(on: On, speed: str) -> str:
    """The policy of the phase in which experimental_accelerate_train_mode takes the place of precision_mode."""
    return str(policy(on, speed)[POLICY[on.device]])


def policy(on: On, speed: str = "") -> dict[str, Any]:
    """The assignment that all these options come to together; *speed*: see :func:`lowered`."""
    asked: dict[str, Any] = {}
    for name in PRECISION:
        if (setting := on.settings.get(name)) and setting.value != NO_CHOICE:
            asked[name] = (setting.content or {}) if name in FILES else _meant(setting)
    if speed:
        asked = {name: value for name, value in asked.items() if name not in MODES} | {ACCELERATE: speed}
    by_torch_npu: dict[str, Any] = {}
    if on.device == "ascend":
        # of its operators those that CANN compiles for the call; aclnn's read neither of the two: the policy holds for all
        by_torch_npu = {switch: asked[name] for name, switch in BY_TORCH_NPU.items() if _is_torch_npus(asked, name)}
        if by_torch_npu == {BY_TORCH_NPU["op_select_implmode"]: "high_precision"}:
            by_torch_npu[BY_TORCH_NPU["optypelist_for_implmode"]] = None
        if mode_of(asked) in KEEPING:  # CANN's default for chips without float32 products lowers what the policy leaves alone
            by_torch_npu["torch.npu.precision_mode"] = "must_keep_origin_dtype"
    text = text_of(asked)
    if text and on.get("frozen_weights"):
        text = text_of(asked | {"frozen_weights": True})
    return by_torch_npu | ({POLICY[on.device]: text} if text else {})


def _meant(setting: Setting) -> Any:
    """The value, in MindSpore's words where CANN's are others."""
    by_cann = setting.option.name == "precision_mode" and (
        setting.spelling.startswith("session.") or "ge_options" in setting.via
    )
    return OF_CANN.get(setting.value, setting.value) if by_cann else setting.value


def _is_torch_npus(asked: dict[str, Any], name: str) -> bool:
    """Whether torch_npu itself takes the choice of implementations: two of its values, and CANN's own types with them."""
    types = asked.get("optypelist_for_implmode", "")
    is_value = asked.get("op_select_implmode", "high_precision") in ("high_precision", "high_performance")
    return name in asked and is_value and all(t.strip() in operators.CANN for t in types.split(",") if t)


def _precision_mode(on: On, setting: Setting) -> Outcome:
    if setting.value in HIF8:
        return refused("torch has no dtype HiFloat8")
    if on.facts.native:
        return refused(on.facts.native)
    mode = mode_of({setting.option.name: _meant(setting)})
    if mode == "cube_fp16in_fp32out":
        differs = "inputs of matrix operators are rounded to float16, their products computed by kernels for float32"
        return approximated(policy(on), differs)
    if mode != setting.value == "allow_fp32_to_bf16":
        return honoured(policy(on), "every operator of PyTorch has float32, so that nothing is lowered")
    if mode == "force_fp16" and on.get("enable_reduce_precision") is not False:
        differs = "operators that have no kernel for float16 compute in float32; in what torch.compile makes they raise"
        return approximated(policy(on), differs)
    if on.device == "ascend" and mode in KEEPING:
        return _kept(on)
    return honoured(policy(on))


def _kept(on: On) -> Outcome:
    """float32 stays float32, which the matrix unit of older chips does not have."""
    if on.facts.half_products is None:
        return honoured(policy(on), KEPT)
    if not on.facts.half_products:
        return honoured(policy(on))
    return approximated(policy(on), OF_CONVOLUTIONS if on.get("matmul_algo") == "fp16x3" else OF_ALL)


def _modify_mixlist(on: On, setting: Setting) -> Outcome:
    if on.facts.native:
        return refused(on.facts.native)
    if (mode := on.get("precision_mode_v2")) in HIF8:
        return refused(f"it needs a mode that can be had: precision_mode_v2={mode} is refused")
    entries = {}
    for colour, moves in (setting.content or {}).items():
        for move, names in moves.items():
            for name in names:
                is_absent = move == "to-remove" and not any(colour_of(op) == colour for op in operators.resolve(name) or ())
                entries[colour, move, name] = _without_operator(name) or f"{name} is not on the {colour}" * is_absent
    shared = _shared({n: colour for colour, moves in (setting.content or {}).items() for n in moves.get("to-add", ())})
    return by_entry(entries, _with(on, shared))


def _customize_dtypes(on: On, setting: Setting) -> Outcome:
    if on.facts.native:
        return refused(on.facts.native)
    types, names = _sections(setting)
    reasons = [*_by_name(names), *_shared(types)]
    entries = {("type", name): _without_operator(name) for name in types} | {("name", name): "" for name in names}
    for entry, listed in [*zip(entries, [*types.values(), *names.values()], strict=True)]:
        every = [dtype for dtypes in listed.values() for dtype in dtypes]
        left = [f"{entry[1]}: {dtype} is left as it is" for dtype in dict.fromkeys(every) if dtype not in FLOATS]
        if {*every}.isdisjoint(FLOATS):
            entries[entry] = entries[entry] or "; ".join(left)
        else:
            reasons += left
        reasons += (
            [f"{entry[1]}: what follows the eighth dtype is as that one"] if any(len(d) > 8 for d in listed.values()) else []
        )
    return by_entry(entries, _with(on, reasons))


def _op_precision_mode(on: On, setting: Setting) -> Outcome:
    if on.facts.native:
        return refused(on.facts.native)
    types, names = _sections(setting)
    entries = {("type", name): _without_operator(name) or _without_choice(name, mode) for name, mode in types.items()}
    entries |= {("name", name): f"{name}: {ALONE[mode]}" if mode in ALONE else "" for name, mode in names.items()}
    reasons = [*_by_name(names), *_shared(types)]
    if "support_out_of_bound_index" in [*types.values(), *names.values()]:
        reasons.append("indices are checked in eager code, for operators that make new tensors; inductor checks its own")
    return by_entry(entries, _with(on, reasons))


def _implementation(on: On, setting: Setting) -> Outcome:
    if setting.value == NO_CHOICE:
        return inert("it lists what can be chosen, and chooses nothing")
    if on.facts.native:
        return refused(on.facts.native)
    types = [name.strip() for name in setting.value.split(",")] if setting.option.name == "optypelist_for_implmode" else []
    reasons = []
    if on.device == "ascend" and setting.value in ("high_performance", "high_performance_for_all"):
        reasons.append(f"in graphs torchair's ge.opSelectImplmode={PINNED['ge.opSelectImplmode']} holds")
    outcome = by_entry({name: _without_operator(name) or _without_choice(name) for name in types}, _with(on, reasons))
    if types and BY_TORCH_NPU[setting.option.name] in outcome.assignments:
        return replace(outcome, reason="; ".join(filter(None, (outcome.reason, LIST_STAYS))))
    return outcome


def _enable_reduce_precision(on: On, setting: Setting) -> Outcome:
    if not setting.value:
        return honoured(reason="torch itself raises for a dtype that an operator has no kernel for")
    if on.facts.native:
        return refused(on.facts.native)
    differs = "holds for operators that make new tensors, and for eager code: what torch.compile makes still raises"
    return approximated(policy(on), differs)


def _with(on: On, reasons: list[str]) -> Outcome:
    """The policy, with the notes on it."""
    return approximated(policy(on), "; ".join(reasons)) if reasons else honoured(policy(on))


def _sections(setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file holds by type and by name; nothing where no file is given."""
    content = setting.content or {}
    return content.get("ByOpType", {}), content.get("ByNodeName", {})


def _without_operator(name: str) -> str:
    return f"torch has no operator of its own for {name}" if operators.resolve(name) == () else ""


def _without_choice(name: str, mode: str = "") -> str:
    """Why a mode of computing changes nothing about an operator, or ``""``."""
    if mode in ALONE:
        return f"{name}: {ALONE[mode]}"
    ops = {*(operators.resolve(name) or ())}
    if mode == "support_out_of_bound_index":
        return f"msctx does not check indices of {name}" if ops.isdisjoint(INDEXED) else ""
    return f"{name} has one implementation only" if ops.isdisjoint(CHOOSABLE) else ""


def _shared(types: Mapping[str, Any]) -> list[str]:
    """CANN's types with different settings that are one operator in torch."""
    last: dict[str, str] = {}
    reasons = []
    for name, setting in types.items():
        for op in operators.resolve(name) or ():
            if op in last and types[last[op]] != setting:
                reasons.append(f"{last[op]} and {name} are both torch's {op}: the setting of {name} applies")
            last[op] = name
    return reasons


def _by_name(names: Any) -> list[str]:
    return ["names are paths of modules of models given to ctx.watch(model)"] if names else []
