"""In which dtype each operator computes: precision_mode and its family. One policy for a device, to which all of them add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msctx.options import Setting
from msctx.options import precision_policy as policies
from msctx.options.kinds import Bool, Choice, Path
from msctx.options.option import ASCEND, ATC, UNSET, Option, session_option
from msctx.options.rules import Excludes, Forbids, Needs, Overrides, Rule, When
from msctx.themes.base import STAYS, On, Outcome, approximated, by_entry, honoured, inert, joined, refused
from msctx.themes.shared_by_themes import PINNED

MIXED = (
    When("precision_mode", ("allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16")),
    When("precision_mode_v2", ("mixed_float16", "mixed_bfloat16", "mixed_hif8")),
)
PRECISION_MODES = {
    "force_fp16": "float16 for every operator that can; for inference",
    "force_fp32": "float32 for every operator; what matrix operators are given in float16 gives float32",
    "cube_fp16in_fp32out": "matrix operators read float16, also of float32, and give float32; all else as force_fp32",
    "allow_fp32_to_fp16": "matrix operators in float16, others only where float32 has no kernel",
    "allow_fp32_to_bf16": "matrix operators in bfloat16, others only where float32 has no kernel",
    "allow_mix_precision": "autocast to float16, by lists of operators",
    "allow_mix_precision_fp16": "autocast to float16, by lists of operators; the clearer name",
    "allow_mix_precision_bf16": "autocast to bfloat16, by lists of operators",
    "must_keep_origin_dtype": "no casts at all, also none of an enclosing autocast",
}
PRECISION_MODES_V2 = {
    "fp16": "as force_fp16: float16 for every operator that can",
    "origin": "as must_keep_origin_dtype: no casts at all",
    "cube_fp16in_fp32out": "matrix operators read float16, also of float32, and give float32; all else float32",
    "mixed_float16": "autocast to float16, by lists of operators",
    "mixed_bfloat16": "autocast to bfloat16, by lists of operators",
    "mixed_hif8": "autocast to HiFloat8, a dtype that torch does not have",
    "cube_hif8": "matrix operators in HiFloat8, a dtype that torch does not have",
}
IMPLMODE_LIST = When(
    "atc.builtin_impl_mode_ini",
    ("high_precision.ini", "high_performance.ini", "high_precision_for_all.ini", "high_performance_for_all.ini"),
)

# fmt: off
OPTIONS = (
    Option("enable_reduce_precision", Bool, default=True, example=True,
        help="What happens when an operator has no kernel for the dtype of its input: true runs it in the nearest dtype "
             "that has one and casts back, with a warning; false lets the error through."),
    Option("precision_mode", Choice(PRECISION_MODES), example="allow_mix_precision_bf16", groups=("ascend_config", "session"),
        also=("device_context.ascend.op_precision.precision_mode",), ge="ge.exec.precision_mode", source=ASCEND,
        help="In which dtype the operators of a whole program compute. It excludes precision_mode_v2. CANN's own choice, if it "
             "is not set, depends on the chip and on whether it trains or infers. The words are MindSpore's; "
             "spelled session.precision_mode, or in ge_options, force_fp32 is cube_fp16in_fp32out, and allow_fp32_to_bf16 "
             "keeps float32, as CANN's page has it."),
    Option("op_precision_mode", Path, example="op_precision.ini", groups=("ascend_config", "session", "atc"),
        also=("device_context.ascend.op_precision.op_precision_mode",), ge="ge.exec.op_precision_mode",
        content="OP_PRECISION_MODE", source=ASCEND,
        help="An .ini file that gives single operators, by type or by name, a mode of computing: high_precision, "
             "high_performance, support_out_of_bound_index (check the indices of gather and scatter) and others. It wins "
             "over op_select_implmode and optypelist_for_implmode."),
    session_option("precision_mode_v2", Choice(PRECISION_MODES_V2), example="mixed_bfloat16", ge="ge.exec.precision_mode_v2",
        help="precision_mode in newer words. Excludes precision_mode."),
    session_option("modify_mixlist", Path, example="mixlist.json", ge="ge.exec.modify_mixlist", content="MIXLIST",
        help="A JSON file that moves operators between the lists of mixed precision: those that are lowered (white-list), "
             "those kept (black-list) and those that keep the dtype of the operator before them (gray-list): the widest "
             "of what operators have computed, which weights follow. Needs one of the mixed modes."),
    session_option("customize_dtypes", Path, example="dtypes.cfg", ge="ge.customizeDtypes", content="CUSTOMIZE_DTYPES",
        help="A .cfg file that fixes the dtypes of inputs and outputs of single operators, by name or by type, against "
             "precision_mode. Without effect where casts are forbidden altogether."),
    Option("op_select_implmode", Choice({
            "high_precision": "accurate: wider accumulation, exact formulas; for a chosen list of operators",
            "high_performance": "fast; for a chosen list of operators",
            "high_precision_for_all": "accurate, for every operator that has the choice",
            "high_performance_for_all": "fast, for every operator that has the choice",
        }), default="high_performance", example="high_precision", defaults={"session": UNSET}, groups=("session", "atc"),
        ge="ge.opSelectImplmode", source=ATC,
        help="Whether operators that have an accurate and a fast way to compute take the one or the other. CANN keeps the "
             "lists (atc.builtin_impl_mode_ini); those for all may change between releases. Deprecated in favour of "
             "op_precision_mode, which wins."),
    Option("optypelist_for_implmode", policies.Operators, example="Pooling,SoftmaxV2", groups=("session", "atc"),
        ge="ge.optypelistForImplmode", source=ATC,
        help="The types of operators, in Ascend's words, to which op_select_implmode (high_precision or high_performance) "
             "is limited. Deprecated with it in favour of op_precision_mode, which wins."),
    Option("atc.builtin_impl_mode_ini", Choice({
            "high_precision.ini": "the operators that high_precision makes accurate",
            "high_performance.ini": "the operators that high_performance makes fast",
            "high_precision_for_all.ini": "the operators that high_precision_for_all makes accurate",
            "high_performance_for_all.ini": "the operators that high_performance_for_all makes fast",
            "all_ops_impl_mode.ini": "every operator that has the choice, with its modes",
        }), example="high_precision.ini", source=ATC,
        help="One of the lists that CANN ships of operators and their modes of computing, by the name of its file. The "
             "lists are read-only: copy one, edit the copy and name it with op_precision_mode."),
)

RULES: tuple[Rule, ...] = (
    Overrides(When("op_precision_mode"), When("op_select_implmode")),
    Overrides(When("op_precision_mode"), IMPLMODE_LIST),
    Overrides(When("op_precision_mode"), When("optypelist_for_implmode"), always=True),  # which does nothing by itself
    Overrides(When("op_select_implmode"), IMPLMODE_LIST),
    Excludes(When("precision_mode"), When("precision_mode_v2")),
    Needs(When("modify_mixlist"), MIXED),
    Needs(When("optypelist_for_implmode"), (When("op_select_implmode", ("high_precision", "high_performance")),)),
    *(
        Forbids(When("customize_dtypes"), mode, "inert", f"{mode} forbids every cast")
        for mode in (When("precision_mode", ("must_keep_origin_dtype",)), When("precision_mode_v2", ("origin",)))
    ),
)
# fmt: on

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
KEPT = "CANN gets must_keep_origin_dtype: by default it computes float32 matmuls in float16 on 910A and 310P"
REFUSES = "this chip multiplies only float16: CANN refuses {} in float32"
NO_CHOICE = "all_ops_impl_mode.ini"
BY_TORCH_NPU = {
    "optypelist_for_implmode": "torch.npu.optypelist_for_implmode",
    "op_select_implmode": "torch.npu.op_select_implmode",
}
POLICY = {"cpu": "native.precision.cpu", "cuda": "native.precision.cuda", "ascend": "native.precision.ascend"}


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    match setting.option.name:
        case "precision_mode" | "precision_mode_v2":
            return _precision_mode(on, setting)
        case "modify_mixlist":
            return _modify_mixlist(on, setting)
        case "customize_dtypes":
            return _customize_dtypes(on, setting)
        case "op_precision_mode":
            return _op_precision_mode(on, setting)
        case "atc.builtin_impl_mode_ini" if setting.value == NO_CHOICE:
            return inert("it lists what can be chosen, and chooses nothing")
        case "op_select_implmode" | "optypelist_for_implmode" | "atc.builtin_impl_mode_ini":
            return _implementation(on, setting)
        case "enable_reduce_precision" if not setting.value:
            return honoured(cause="torch itself raises for a dtype that an operator has no kernel for")
        case "enable_reduce_precision":
            return _with(on, ["holds for eager operators that make new tensors: what torch.compile makes still raises"])
    return None


def policy(on: On, speed: str = "") -> dict[str, Any]:
    """The assignment that all these options come to together; *speed*: in the phase in which
    experimental_accelerate_train_mode takes the place of precision_mode."""
    requested: dict[str, Any] = {}
    for name in policies.PRECISION:
        if (setting := on.settings.get(name)) and setting.value != NO_CHOICE:
            requested[name] = (setting.content or {}) if name in FILES else _meant(setting)
    if speed:
        requested = {name: value for name, value in requested.items() if name not in MODES} | {policies.ACCELERATE: speed}
    by_torch_npu: dict[str, Any] = {}
    if on.device == "ascend":
        # of its operators those that CANN compiles for the call; aclnn's read neither of the two: the policy holds for all
        by_torch_npu = {switch: requested[name] for name, switch in BY_TORCH_NPU.items() if _is_torch_npus(requested, name)}
        if by_torch_npu == {BY_TORCH_NPU["op_select_implmode"]: "high_precision"}:
            by_torch_npu[BY_TORCH_NPU["optypelist_for_implmode"]] = None
        if policies.mode_of(requested) in KEEPING:  # which CANN's default for chips without float32 products would lower
            by_torch_npu["torch.npu.precision_mode"] = "must_keep_origin_dtype"
    text = policies.text_of(requested)
    if text and on.get("frozen_weights"):
        text = policies.text_of(requested | {"frozen_weights": True})
    return by_torch_npu | ({POLICY[on.device]: text} if text else {})


def _meant(setting: Setting) -> Any:
    """The value, in MindSpore's words where CANN's are others."""
    is_canns = setting.spelling.startswith("session.") or "ge_options" in setting.via
    words = policies.OF_CANN if is_canns and setting.option.name == "precision_mode" else {}
    return words.get(setting.value, setting.value)


def _is_torch_npus(requested: dict[str, Any], name: str) -> bool:
    """Whether torch_npu itself takes the choice of implementations: two of its values, and CANN's own types with them."""
    types = requested.get("optypelist_for_implmode", "")
    is_value = requested.get("op_select_implmode", "high_precision") in ("high_precision", "high_performance")
    return name in requested and is_value and all(t.strip() in policies.CANN for t in types.split(",") if t)


def _precision_mode(on: On, setting: Setting) -> Outcome:
    if setting.value in HIF8:
        return refused("torch has no dtype HiFloat8")
    if on.facts.native:
        return refused(on.facts.native)
    mode = policies.mode_of({setting.option.name: _meant(setting)})
    if mode == "cube_fp16in_fp32out":
        differs = "inputs of matrix operators are rounded to float16, and multiplied by kernels for float32"
        return approximated(policy(on), differs)
    if mode != setting.value == "allow_fp32_to_bf16":
        return honoured(policy(on), "every operator of PyTorch has float32, so that nothing is lowered")
    if mode == "force_fp16" and on.get("enable_reduce_precision") is not False:
        differs = "operators without a kernel for float16 compute in float32; in compiled code they raise"
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
    if on.get("matmul_algo") == "fp16x3":
        return approximated(policy(on), REFUSES.format("convolutions"))
    fix = "set matmul_algo=fp16x3 for matmuls of that precision"
    return approximated(policy(on), REFUSES.format("matmuls and convolutions"), fix)


def _modify_mixlist(on: On, setting: Setting) -> Outcome:
    if (mode := on.get("precision_mode_v2")) in HIF8:
        return refused(f"it needs a mode that can be had: precision_mode_v2={mode} is refused")
    entries: dict[tuple[str, str, str], str] = {}
    for colour, moves in (setting.content or {}).items():
        for move, names in moves.items():
            for name in names:
                is_absent = move == "to-remove" and not any(
                    policies.colour_of(op) == colour for op in policies.resolve(name) or ()
                )
                entries[colour, move, name] = _without_operator(name) or f"{name} is not on the {colour}" * is_absent
    shared = _shared({n: colour for colour, moves in (setting.content or {}).items() for n in moves.get("to-add", ())})
    return by_entry(entries, _with(on, shared))


def _customize_dtypes(on: On, setting: Setting) -> Outcome:
    types, names, reasons = _sections(setting)
    entries: dict[tuple[str, str, str], str] = {}
    for section, listed in (("type", types), ("name", names)):
        for name, dtypes in ((name, dtypes) for name, labels in listed.items() for dtypes in labels.values()):
            absent = _without_operator(name) if listed is types else ""
            entries |= {(section, name, d): absent or f"{name}: {d} is left as it is" * (d not in FLOATS) for d in dtypes}
            if len(dtypes) > 8:
                reasons.append(f"{name}: what follows the eighth dtype is as that one")
    return by_entry(entries, _with(on, reasons))


def _op_precision_mode(on: On, setting: Setting) -> Outcome:
    types, names, reasons = _sections(setting)
    entries = {("type", name): _without_operator(name) or _without_choice(name, mode) for name, mode in types.items()}
    entries |= {("name", name): f"{name}: {ALONE[mode]}" if mode in ALONE else "" for name, mode in names.items()}
    if "support_out_of_bound_index" in [*types.values(), *names.values()]:
        reasons.append("eager code checks indices only in some operators")
    return by_entry(entries, _with(on, reasons))


def _implementation(on: On, setting: Setting) -> Outcome:
    types = [name.strip() for name in setting.value.split(",")] if setting.option.name == "optypelist_for_implmode" else []
    reasons = []
    if on.device == "ascend" and setting.value in ("high_performance", "high_performance_for_all"):
        reasons.append(f"in graphs torchair's ge.opSelectImplmode={PINNED['ge.opSelectImplmode']} holds")
    entries = {name: _without_operator(name) or _without_choice(name) for name in types}
    outcome = by_entry(entries, _with(on, reasons)) if types else _with(on, reasons)
    if types and BY_TORCH_NPU[setting.option.name] in outcome.assignments:
        return replace(outcome, reason=joined(outcome.reason, f"torch_npu's list {STAYS}: CANN has no word for an empty one"))
    return outcome


def _with(on: On, reasons: list[str]) -> Outcome:
    """The policy, with the notes on it."""
    why = joined(*dict.fromkeys(reasons))
    return on.by_core(approximated(policy(on), why) if why else honoured(policy(on)))


def _sections(setting: Setting) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What a file holds by type and by name, nothing where no file is given; and the notes on both."""
    content = setting.content or {}
    types, names = content.get("ByOpType", {}), content.get("ByNodeName", {})
    return types, names, ["names are paths in watched models"] * bool(names) + _shared(types)


def _without_operator(name: str) -> str:
    return f"torch has no separate operator for {name}" if policies.resolve(name) == () else ""


def _without_choice(name: str, mode: str = "") -> str:
    """Why a mode of computing changes nothing about an operator, or ``""``."""
    if mode in ALONE:
        return f"{name}: {ALONE[mode]}"
    ops = {*(policies.resolve(name) or ())}
    if mode == "support_out_of_bound_index":
        return f"msctx does not check indices of {name}" if ops.isdisjoint(policies.INDEXED) else ""
    return f"{name} has one implementation only" if ops.isdisjoint(policies.CHOOSABLE) else ""


def _shared(types: Mapping[str, Any]) -> list[str]:
    """CANN's types with different settings that are one operator in torch."""
    last: dict[str, str] = {}
    reasons = []
    for name, setting in types.items():
        for op in policies.resolve(name) or ():
            if op in last and types[last[op]] != setting:
                reasons.append(f"{last[op]} and {name} are both torch's {op}: the setting of {name} applies")
            last[op] = name
    return reasons
