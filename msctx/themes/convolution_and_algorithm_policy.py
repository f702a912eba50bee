"""Which algorithm each convolution and matmul runs, by the policy of the native core; memory formats."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from msctx.options import Setting
from msctx.options.algorithm_policy import (
    CONVOLUTION_RULES,
    DIRECTIONS,
    FEW_CHANNELS,
    PRODUCT,
    RECORDED,
    REQUESTED,
    ConvPolicy,
    ConvRule,
    able,
    option_of,
    requested_by,
    rules_of,
)
from msctx.options.kinds import Bool, Choice, Flag, MemoryKind, Share
from msctx.options.option import extension, gpu_option, session_option
from msctx.options.rules import TRUE, Forbids, Overrides, Rule, When
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, inert, joined, once, reason, refused
from msctx.themes.precision import HIF8, policy
from msctx.themes.shared_by_themes import GRAPHS, apart, by_module, kept_in, measured, recorded_in, with_graphs

NORMAL = "a choice by shape and dtype, without measuring"
PERFORMANCE = "all that can take the shape are measured, the fastest is taken"
REFERENCE = "ours: slow and readable; the others are checked against it"
OF_GRADIENTS = {
    "normal": NORMAL,
    "performance": PERFORMANCE,
    "algo_0": "sums added atomically, in no fixed order",
    "algo_1": "a matmul with a fixed order of additions",
    "algo_3": "as algo_0, with a small workspace for indices",
    "fft": "by Fourier transforms of whole images; deterministic",
    "fft_tiling": "by Fourier transforms of tiles; deterministic",
    "winograd": "by Winograd transforms of tiles, in one kernel; deterministic",
    "winograd_nonfused": "by Winograd transforms and matmuls, as separate kernels; deterministic",
    "reference": REFERENCE,
}
"""The algorithms of both gradients: algo_3 is for that of the weight alone, winograd for that of the input."""
FALLBACK = {
    "warn": "torch's own path runs, and the first call warns",
    "error": "the call raises, with the reasons of every candidate",
    "silent": "torch's own path runs; only choices() shows it",
}

# fmt: off
OPTIONS = (
    gpu_option("conv_fprop_algo", Choice({
            "normal": NORMAL,
            "performance": PERFORMANCE,
            "implicit_gemm": "a matmul that reads the input in place, without workspace",
            "implicit_precomp_gemm": "implicit_gemm with its indices computed beforehand, in a small workspace",
            "gemm": "the input is unfolded into a matrix (im2col), then multiplied",
            "direct": "loops over the input and the window, without a matmul",
            "fft": "by Fourier transforms of whole images; large workspace",
            "fft_tiling": "by Fourier transforms of tiles; less workspace for large images",
            "winograd": "by Winograd transforms of tiles, in one kernel",
            "winograd_nonfused": "by Winograd transforms and matmuls, as separate kernels",
            "reference": REFERENCE,
        }, {"precomp_gemm": "implicit_precomp_gemm"}), default="normal", example="winograd",
        also=("device_context.gpu.op_tuning.conv_fprop_algo",),
        help="The algorithm of the forward convolution. A shape that the named one does not support runs torch's own path, "
             "with a warning."),
    gpu_option("conv_dgrad_algo", Choice({name: OF_GRADIENTS[name] for name in OF_GRADIENTS if name != "algo_3"}),
        default="normal", example="algo_1", also=("device_context.gpu.op_tuning.conv_dgrad_algo",),
        help="The algorithm of the convolution's gradient with respect to its input. algo_0 is refused under "
             "deterministic=ON; for a shape that the named one cannot take see conv_fprop_algo."),
    gpu_option("conv_wgrad_algo", Choice({name: OF_GRADIENTS[name] for name in OF_GRADIENTS if name != "winograd"}),
        default="normal", example="algo_1", also=("device_context.gpu.op_tuning.conv_wgrad_algo",),
        documented=("gpu_config.conv_wgrad_algo", "device_context.gpu.op_tuning.conv_wgrad_algo"),
        help="The algorithm of the convolution's gradient with respect to its weight. algo_0 and algo_3 are refused under "
             "deterministic=ON; for a shape that the named one cannot take see conv_fprop_algo."),
    session_option("enable_small_channel", Flag, default=0, example=1, ge="ge.enableSmallChannel",
        help="Speeds up convolutions of images of at most four channels, such as the first of a model: on a CPU they run "
             "what conv_fprop_algo=normal, or that of a gradient, would choose for them, where no other algorithm is requested (2-D; "
             "often torch's own path); on CUDA they are measured. In CANN, inference (graph_run_mode=0) always has it on."),
    extension("fallback", Choice(FALLBACK), default="warn", example="error",
        help="What happens when a convolution or matmul cannot run the algorithm that was named for it. Unset it is warn, and error "
             "under strict. strict applies to options, this to single calls."),
    extension("frozen_weights", Bool, default=False, example=True, devices=("cpu", "cuda"),
        help="Declares that weights do not change while the context is open. What algorithms make of a weight of a convolution "
             "(a Winograd transform, for instance) is kept between calls; each call compares all bytes of the weight "
             "with those that it was made of, unless this is set: then only the first call inside does, and a weight that "
             "changes later may stay as it was. Weights are tensors that record gradients and those of models given to "
             "ctx.watch(); what is computed from them is compared each time. "
             "Under a precision_mode the casts of what is given as weight or bias are kept, too. For inference."),
    extension("conv_max_error", Share, example=1e-6, devices=("cpu", "cuda"),
        help="The largest bound of an error, as a share of the largest result, that an algorithm may have for normal, "
             "performance, thread_invariant and batch_invariant to choose it; choices() shows each one's bound. Without it "
             "that is 3e-5, and no bound holds for what conv_allow_tf32 lets round to TF32. An algorithm that is named runs "
             "whatever its bound. Where no bound is low enough under thread_invariant, torch's own path runs, and fallback "
             "reports it. Bounds hold for any data (those of winograd and fft as far as a search found); where results cancel, "
             "as shares of the largest sum of magnitudes. float16 and bfloat16 round more by themselves: it does not "
             "apply to them."),
    extension("conv_workspace_limit",
        MemoryKind('a size such as "256MB" or "1GB" (MB = 2**20 bytes), or a number of bytes; 0 allows no workspace', 0),
        example="256MB", devices=("cpu", "cuda"),
        help="The most memory that an algorithm may take for one convolution in addition to its tensors. One that needs more does "
             "not run: choices() shows what it would have needed."),
    extension("conv_algo_rules", CONVOLUTION_RULES,
        example={"layer1.*": "winograd", "weight=64x3x7x7": {"fprop": "gemm"}}, devices=("cpu", "cuda"),
        help="Algorithms for single convolutions, by module path or by problem; a rule wins over conv_fprop_algo and those of "
             "gradients. The first rule that matches decides. Module paths are known for models given to ctx.watch(model); the "
             "fields of a problem are those that choices() shows."),
    extension("matmul_max_error", Share, example=1e-6, devices=("cpu", "cuda"),
        help="As conv_max_error, for matmuls, and matmul_allow_tf32. torch's own matmuls have no stated bound: "
             "under thread_invariant and batch_invariant msctx's own kernel runs then."),
)

RULES: tuple[Rule, ...] = (
    Overrides(When("graph_run_mode", (0,)), When("enable_small_channel", (0,)), always=True),
    *(
        Forbids(option, other, "refused", reason(f"it adds in no fixed order, which {other} forbids", "set algo_1"))
        for other in (When("deterministic", ("ON",)), When("thread_invariant", TRUE), When("batch_invariant", TRUE))
        for option in (When("conv_dgrad_algo", ("algo_0",)), When("conv_wgrad_algo", ("algo_0", "algo_3")))
    ),
)
# fmt: on

ALGORITHMS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo")
INVARIANT = ("thread_invariant", "batch_invariant")
"""What requests kernels whose bits do not depend on something, where no algorithm is requested."""
PRODUCTS = ("matmul_algo", "matmul_algo_rules")
SMALL = "enable_small_channel"
NATIVE = (*ALGORITHMS, "conv_algo_rules", *PRODUCTS, *INVARIANT, SMALL)
"""The options that ask the native core for something: only for these is it built and loaded."""
NAMED = (*ALGORITHMS, "conv_algo_rules")
"""Those of them that name algorithms for cuDNN, too."""
BY_NAME = (*NAMED, *PRODUCTS)
FOR_SMALL = {"cpu": "normal", "cuda": "performance"}
"""What convolutions of few channels run: on CUDA normal is torch's own path."""
CHOOSING = ("normal", "performance", RECORDED)
"""What chooses among the algorithms and torch's own path; or only records, for later, under the same permissions."""
OPEN = (*CHOOSING, *INVARIANT)
"""What chooses among the algorithms, each of which has some of the abilities below."""
SAME_BITS = {"deterministic": "ON", **dict.fromkeys(INVARIANT, True)}
"""The options under which nothing adds in an order of its own."""
INDUCTOR = {
    "torch.inductor.freezing": False,
    "torch.inductor.cpp_wrapper": False,
    "torch.inductor.max_autotune": False,
    "torch.inductor.max_autotune_gemm": False,
    "torch.inductor.max_autotune_conv_backends": "ATEN",
    "torch.inductor.conv_1x1_as_mm": False,
}
"""With these, what inductor compiles calls aten::convolution, with the weights of the model. Freezing calls oneDNN by operators of
its own on a CPU, and folds batch norms into new weights on every device, which no rule finds by their module. Code that is C++ alone
calls kernels past the dispatcher; max_autotune takes Triton's kernels in place of convolutions, and matmuls in place of those
with a window of 1x1."""
OWN_FORMATS = {"torch.inductor.layout_optimization": False}
"""Inductor then computes with the weights themselves, not with copies of them in channels_last, which belong to no module."""
ON_CPU_ALONE = reason("it is computed only on the CPU", "compare with tensors that are moved there")
NO_PARTS = "it emulates float32, which allow_fp32_emulation=False forbids"
POLICY = {"cpu": "native.convolution.cpu", "cuda": "native.convolution.cuda"}
ONLY_CPU = ("conv_max_error", "matmul_max_error", "matmul_allow_tf32", "frozen_weights")
"""What is no part of cuDNN's policy: it states no errors and keeps no weights."""
DETAILS = {"cpu": [field.name for field in fields(ConvPolicy) if field.name not in NATIVE]}
DETAILS["cuda"] = [name for name in DETAILS["cpu"] if name not in ONLY_CPU]
"""Device → the options that a policy has as they are, each by its name."""
CUBE_MATH_TYPE = "torch.npu.matmul.cube_math_type"
ON_NPU = ("fp16x3", "strict")
NO_OTHER = f"NPUs have only {' and '.join(ON_NPU)}"
HALF_ALONE = "this chip multiplies only float16; fp16x3 has errors like float32's"
COMPILED = "jit_compile={} has CANN compile matmuls, which adds in an order of its choice"
SMALL_BY_NORMAL = "they run what normal chooses; only gradients under large strided windows become faster"
SMALL_BY_TIME = "the fastest when measured runs: torch's own path or an algorithm of cuDNN"
NO_BOUND = "no algorithm with a larger bound is chosen; PyTorch's own path states none"
OWN_PATH = "PyTorch's own path, in which cuDNN's heuristic chooses"
ON_CUDA = {
    "direct": "by msctx's depthwise kernel",
    "winograd": "no winograd on Hopper",
}


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value = setting.option.name, setting.value
    match name:
        case "conv_fprop_algo" | "conv_dgrad_algo" | "conv_wgrad_algo":
            return _algorithm(on, value)
        case "conv_algo_rules":
            return _conv_algo_rules(on, value)
        case "enable_small_channel" if on.device == "ascend":
            return approximated(with_graphs(on), f"{GRAPHS}; eager operators are not affected")
        case "enable_small_channel":
            return _enable_small_channel(on) if value else as_it_is()
        case "frozen_weights":
            if not on.facts.native and policy(on) and on.get("precision_mode_v2") not in HIF8:
                return honoured(cause="under precision_mode the casts of weights are kept")
            if on.device == "cuda" and requested(on):
                return inert("cuDNN keeps nothing that it makes of weights", "set precision_mode or its family, too")
            return detail(on, ", or precision_mode and its family", "keep a form of the weights")
        case "conv_max_error":
            return _max_error(on, *DIRECTIONS)
        case "matmul_max_error":
            return _max_error(on, PRODUCT)
        case "conv_workspace_limit":
            return detail(on, ability="take a workspace", of=DIRECTIONS)
        case "fallback":
            outcome = detail(on)
            if outcome.status == "honoured" and all(name in CHOOSING for _, name in requested(on)):
                why = "nothing falls back: normal and performance choose among what can run, torch's own path included"
                return replace(inert(why), shadowed=True)
            return outcome
    return None


@once
def conv_policy(on: On) -> dict[str, Any]:
    """The assignment that all these options come to together."""
    if on.device not in POLICY or obstacle(on):
        return {}
    options = NATIVE if on.device == "cpu" else (*NAMED, SMALL)
    asking: dict[str, Any] = {name: value for name, value in measured(on).items() if name in options}
    asking |= {name: setting.value for name in options if (setting := on.settings.get(name)) and setting.value}
    if excluded(on, asking.get("matmul_algo", "")):
        del asking["matmul_algo"]
    if asking.get("matmul_algo_rules"):
        rules = [str(rule) for rule in rules_of(asking.pop("matmul_algo_rules")) if not excluded(on, rule.requested[0][1])]
        asking |= {"matmul_algo_rules": "; ".join(rules)} if rules else {}
    if rounds_products(on):
        asking.setdefault("matmul_algo", "normal")
    if on.device == "cuda":
        asking = {name: value for name, value in asking.items() if value != "reference"}
    left_open = [(d, FOR_SMALL[on.device]) for d in DIRECTIONS if f"conv_{d}_algo" not in asking]
    if asking.pop(SMALL, False) and left_open:
        texts = (asking.get("conv_algo_rules"), str(ConvRule(FEW_CHANNELS, tuple(left_open))))  # after what is requested
        asking["conv_algo_rules"] = "; ".join(filter(None, texts))
    asking |= {who: RECORDED for d in _only_recorded(on) if (who := option_of(d)) not in asking}
    if not asking or not requested(on):
        return {}
    if asking.get("batch_invariant"):
        asking["thread_invariant"] = True  # of the same kernels, fewer
    given = {name: value for name in DETAILS[on.device] if (value := on.get(name)) is not None} | asking
    given |= {"fallback": on_fallback(on), "tuning_file": on.get("tuning_file") or kept_in(on), "work_path": recorded_in(on)}
    given["deterministic"] = on.get("deterministic") == "ON"
    given["torch_keeps_products"] = INVARIANT[0] in asking and not on.facts.mkl
    given.setdefault("conv_allow_tf32", on.device == "cuda")  # there torch's own flag has to allow it, too
    policy = ConvPolicy(**given)
    return {POLICY[on.device]: policy}


def npu_policy(on: On) -> dict[str, Any]:
    """The assignments that the options for products come to together on an NPU."""
    named = requested(on)
    if not named or on.facts.native or on.facts.npu:
        return {}
    option, rules = on.settings.get("matmul_algo"), on.settings.get("matmul_algo_rules")
    kept = [str(rule) for rule in rules_of(rules.value) if not excluded(on, rule.requested[0][1])] if rules else []
    policy = ConvPolicy(
        matmul_algo=option.value if option and not excluded(on, option.value) else None,
        matmul_algo_rules="; ".join(kept) or None,
        fallback=on_fallback(on),
        allow_fp32_emulation=on.get("allow_fp32_emulation", True),
    )
    by_halves = {CUBE_MATH_TYPE: "USE_FP16", "torch.npu.jit_compile": False}
    return {"native.convolution.ascend": policy} | (by_halves if on.facts.half_products else {CUBE_MATH_TYPE: "KEEP_DTYPE"})


def on_fallback(on: On) -> str:
    """What becomes of a call that cannot run what is requested: one of FALLBACK; ``strict``: an error, because of ``strict=True``."""
    return str(on.get("fallback", "strict" if on.get("strict", False) else "warn"))


def assignments_of(on: On) -> dict[str, Any]:
    """In eager code and in what inductor compiles."""
    return conv_policy(on) | ({} if only_records(on) else INDUCTOR) | (apart(on) if by_module(on) else {})


def only_records(on: On) -> bool:
    """Whether nothing is asked of the native core but to record: then all runs as without it."""
    return {name for _, name in requested(on)} <= {RECORDED}


def _only_recorded(on: On) -> list[str]:
    """The directions whose calls run torch's own path and are recorded, unless a rule says otherwise."""
    if on.device not in POLICY or recorded_in(on) is None or (on.device == "cpu" and any(map(on.get, INVARIANT))):
        return []
    directions = [*DIRECTIONS, *([PRODUCT] if on.device == "cpu" and not rounds_products(on) else [])]
    return [d for d in directions if not on.get(option_of(d))]


def requested(on: On) -> dict[tuple[str, str], str]:
    """All that is requested of the native core on this device, and may run: (direction, algorithm) → who requests it."""
    return {(d, name): who for (d, name), who in _all_requested(on).items() if d != PRODUCT or not excluded(on, name)}


@once
def _all_requested(on: On) -> dict[tuple[str, str], str]:
    tuned = measured(on) if on.device in POLICY else {}
    directions = {"cpu": REQUESTED, "cuda": DIRECTIONS, "ascend": (PRODUCT,)}[on.device]
    named = {d: on.get(option_of(d)) or tuned.get(option_of(d)) for d in directions}
    of = {"conv_algo_rules": DIRECTIONS[0], "matmul_algo_rules": PRODUCT}
    found = requested_by(named, *((on.get(name) or tuned.get(name)) if d in named else None for name, d in of.items()))
    if on.device == "cpu":  # there are options for what is left open
        for option in INVARIANT:
            found |= {(d, option): option for d in REQUESTED if on.get(option) and not named[d]}
        if rounds_products(on) and not named[PRODUCT]:
            found.setdefault((PRODUCT, "normal"), "matmul_allow_tf32")
    if on.device in POLICY and on.get(SMALL):
        found |= {(d, FOR_SMALL[on.device]): SMALL for d in DIRECTIONS if not named[d]}
    found |= {(d, RECORDED): "aoe_tune_mode=offline" for d in _only_recorded(on)}
    return {} if on.device == "cuda" and {name for _, name in found} == {"normal"} else found  # cuDNN's heuristic chooses


def rounds_products(on: On) -> bool:
    """Whether products may round to TF32 on a CPU that has the unit for it."""
    return on.device == "cpu" and bool(on.get("matmul_allow_tf32")) and not on.facts.amx


def raced(on: On) -> ConvPolicy | None:
    """The policy under which graphs of inference are measured against PyTorch's own ways: it has performance, and names nothing."""
    host = on.at("cpu")
    found: ConvPolicy | None = conv_policy(host).get(POLICY["cpu"])
    if found is None or not found.frozen_weights or found.rules or unmeasured(host) or policy(host):
        return None
    names = {name for _, name in requested_of(host, "fprop", PRODUCT)}
    return found if "performance" in names <= {"normal", "performance"} else None


def requested_of(on: On, *directions: str) -> dict[tuple[str, str], str]:
    """What of :func:`requested` is for these directions."""
    return {key: who for key, who in requested(on).items() if key[0] in directions}


def obstacle(on: On) -> str:
    """Why the native core cannot serve on this device, or ``""``."""
    return on.facts.native or (on.facts.cudnn if on.device == "cuda" else "")


def _algorithm(on: On, value: str) -> Outcome:
    if on.device == "cuda" and value == "normal":
        return honoured(assignments_of(on), OWN_PATH)
    if why := obstacle(on):
        return refused(why)
    if on.device == "cuda" and value == "reference":
        return refused(ON_CPU_ALONE)
    assignments = assignments_of(on)
    if value != "performance":
        others = f"unsupported problems: {FALLBACK.get(on_fallback(on), FALLBACK['error'])}" * (value != "normal")
        return honoured(assignments, joined(others, ON_CUDA.get(value, "") * (on.device == "cuda")))
    if why := unmeasured(on):
        return approximated(assignments, f"{why}: {_decides(on)}")
    return honoured(assignments, "each problem that the tuning file lacks is measured when it is first met")


def unmeasured(on: On) -> str:
    """Why nothing is measured for performance; ``""``: it is."""
    host = on.at("cpu")  # inductor's settings are those of all devices
    asking = next((f"{name}={value}" for name, value in SAME_BITS.items() if host.get(name) == value), "")
    return asking and f"nothing is measured under {asking}"


def _decides(on: On) -> str:
    return "normal decides" if on.get("batch_invariant") else "the tuning file decides what it knows, normal the rest"


def _conv_algo_rules(on: On, value: str) -> Outcome:
    if why := obstacle(on):
        return refused(why)
    assignments, moves = assignments_of(on), ""
    if any(field == "module" for rule in rules_of(value) for field, _ in rule.conditions):
        if on.get("disable_format_transform") is False:
            moves = "disable_format_transform=False: rules by module find no convolution that inductor moves to channels_last"
        else:
            assignments |= OWN_FORMATS
    unordered = [f"{d}={name}" for d, name in requested_by({}, value) if (d, name) in able("add in no fixed order")]
    wanted = SAME_BITS if on.device == "cpu" else {"deterministic": "ON"}
    if unordered and (asking := [option for option, value in wanted.items() if on.get(option) == value]):
        differs = f"{', '.join(unordered)} adds in no fixed order and falls back under {' and '.join(asking)}"
        return approximated(assignments, joined(differs, moves))
    return approximated(assignments, moves) if moves else honoured(assignments)


def _enable_small_channel(on: On) -> Outcome:
    if why := obstacle(on):
        return refused(why)
    taken = [name for name in ALGORITHMS if on.get(name)]
    if len(taken) == len(ALGORITHMS):
        return inert(f"{', '.join(taken)} decide, for these convolutions too")
    if on.device == "cpu":
        return approximated(assignments_of(on), SMALL_BY_NORMAL)
    why = unmeasured(on)
    return approximated(assignments_of(on), f"{why}: {_decides(on)}" if why else SMALL_BY_TIME)


def excluded(on: On, product: str) -> str:
    """Why no product may be computed in a way; ``""``: it may."""
    if on.device == "ascend":
        return _excluded_on_npu(on, product)
    of_parts, rounds = ((PRODUCT, product) in able(ability) for ability in ("emulate float32", "round to TF32"))
    if of_parts and on.device == "cpu" and on.facts.amx:
        return on.facts.amx
    if of_parts and on.get("allow_fp32_emulation") is False:
        return NO_PARTS
    if rounds and on.get("matmul_allow_tf32") is False:
        return "it rounds, which matmul_allow_tf32=False forbids"
    if of_parts and on.get("batch_invariant"):
        return "a row's result depends on others, which batch_invariant=True forbids"
    return ""


def _excluded_on_npu(on: On, product: str) -> str:
    if product not in ON_NPU:
        return NO_OTHER
    if not on.facts.half_products:
        return ""
    if product == "strict":
        return HALF_ALONE
    if (jit := on.get("jit_compile", "false")) != "false":
        return COMPILED.format(jit)
    return NO_PARTS if on.get("allow_fp32_emulation") is False else ""


def _max_error(on: On, *directions: str) -> Outcome:
    if on.device == "cuda":
        fix = "name an algorithm, and measure its error with msctx compare"
        return refused("cuDNN and cuBLAS state no bounds of their errors", fix)
    outcome = detail(on, of=directions)
    mine = requested_of(on, *directions)
    named = [who for (_, name), who in mine.items() if name not in OPEN]
    may_be_torch = any(name in ("normal", "performance") for _, name in mine) and not any(map(on.get, INVARIANT))
    differs = [NO_BOUND] if may_be_torch else []
    if outcome.status != "honoured" or not (named or differs):
        return outcome
    taken = ", ".join(dict.fromkeys(named))
    if len(named) == len(mine):
        return inert(f"overridden by {taken}; named algorithms have no bound")
    if named:
        chosen = "normal, performance, thread_invariant and batch_invariant"
        differs = [f"holds for what {chosen} choose; {taken} runs whatever its bound", *differs]
    return approximated({}, joined(*differs))


def detail(on: On, also: str = "", ability: str = "", of: tuple[str, ...] = REQUESTED) -> Outcome:
    """Of an option for how algorithms run; on the CPU, of those with an *ability*."""
    if not (mine := requested_of(on, *of)):
        if excluded_here := [who for (d, _), who in _all_requested(on).items() if d in of]:
            return inert(f"no call can run what is requested: {', '.join(dict.fromkeys(excluded_here))}")
        if on.device == "cuda" and any(map(on.get, ALGORITHMS)):
            return inert(f"normal is {OWN_PATH}")
        convolutions = [*ALGORITHMS, "conv_algo_rules"] if of != (PRODUCT,) and on.device in POLICY else []
        products = {"cpu": [*PRODUCTS, "matmul_allow_tf32"], "ascend": PRODUCTS}.get(on.device, []) if PRODUCT in of else []
        invariant = INVARIANT if on.device in POLICY else ()
        asking = ", ".join((*convolutions, *products, *invariant)) + f" and {SMALL}" * bool(convolutions)
        elsewhere = on.source.devices - {*on.facts.devices}  # groups that wait for a machine with such a device
        waits = any(on.source.get(name, device) for device in elsewhere for name in NAMED)
        return replace(inert("no algorithm is requested", f"set one of {asking}{also}"), shadowed=waits)
    if why := obstacle(on):
        return refused(why)
    have_it = able(ability, with_amx=not on.facts.amx) if ability and on.device == "cpu" else mine
    if not any(each in have_it or each[1] in OPEN for each in mine):  # what runs where one falls back is not requested
        who = ", ".join(dict.fromkeys(mine.values()))
        return inert(joined(f"no algorithm that is requested can {ability}: {who}", on.facts.amx))
    return honoured(cause="part of the policy for convolutions and matmuls")
