"""conv_*_algo, matmul_algo and what goes with them: which algorithm each call runs, by the policy of the native core; formats."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.effects.compilation import apart, by_module
from msctx.effects.graph_engine import GRAPHS, with_graphs
from msctx.effects.kernel_tuning import kept_in, measured, recorded_in
from msctx.effects.precision_mode import HIF8, policy
from msctx.options.conv_policy import RECORDED, ConvPolicy, able
from msctx.options.conv_rules import ASKED, DIRECTIONS, FEW_CHANNELS, PRODUCT, ConvRule, asked_by, option_of, rules_of

ALGORITHMS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo")
INVARIANT = ("thread_invariant", "batch_invariant")
"""What asks for kernels whose bits do not depend on something, where no algorithm is asked for."""
PRODUCTS = ("matmul_algo", "matmul_algo_rules")
SMALL = "enable_small_channel"
NATIVE = (*ALGORITHMS, "conv_algo_rules", *PRODUCTS, *INVARIANT, SMALL)
"""The options that ask the native core for something: only for these is it built and loaded."""
NAMED = (*ALGORITHMS, "conv_algo_rules")
"""Those of them that name algorithms for cuDNN, too."""
BY_NAME = (*NAMED, *PRODUCTS)
"""The options that name algorithms."""
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
calls kernels past the dispatcher; max_autotune takes Triton's kernels in place of convolutions, and matrix products in place of those
with a window of 1x1."""
OWN_FORMATS = {"torch.inductor.layout_optimization": False}
"""Inductor then computes with the weights themselves, not with copies of them in channels_last, which belong to no module."""
HALF_ON_CUDA = "float16 and bfloat16 follow it too, for which MindSpore always takes implicit_precomp_gemm and algo_1"
ON_CPU_ALONE = "it is computed on the CPU alone: compare with tensors that are moved there"
NO_PARTS = "it computes products from parts, and allow_fp32_emulation=False asks for products in float32 alone"
POLICY = {"cpu": "native.convolution.cpu", "cuda": "native.convolution.cuda"}
CUBE_MATH_TYPE = "torch.npu.matmul.cube_math_type"
ON_NPU = ("fp16x3", "strict")
NO_OTHER = f"an NPU has {' and '.join(ON_NPU)} alone"
HALF_ALONE = "the matrix unit of this chip has float16 alone; fp16x3 has errors like float32's"
COMPILED = "jit_compile={} has CANN compile products for the call, which adds them up as it likes"
SMALL_BY_NORMAL = (
    "they run what normal takes for them: faster where the gradient of the images is wanted and their windows are large and "
    "strided; the forward pass and weight gradient of usual first layers stay on torch's own path, which nothing of ours beats"
)
SMALL_BY_TIME = (
    "they run what performance takes for them: torch's own path, or the algorithm of cuDNN that is measured to be faster"
)
NO_BOUNDS = (
    "cuDNN and cuBLAS state no bounds of their errors, so nothing can be chosen by one: name an algorithm instead, and measure its "
    "error with msctx compare"
)
NO_BOUND = (
    "no algorithm of msctx with a larger bound is chosen; PyTorch's own path, which normal and performance may choose, "
    "states no bound"
)
OWN_PATH = "PyTorch's own path, in which cuDNN's heuristic chooses"
DIRECT_ON_CUDA = "by a kernel of msctx's own, for depthwise convolutions: cuDNN never implemented it"


def conv_policy(want: Want) -> dict[str, Any]:
    """The assignment that all these options come to together."""
    if want.device not in POLICY or obstacle(want):
        return {}
    options = NATIVE if want.device == "cpu" else (*NAMED, SMALL)
    asking: dict[str, Any] = {name: value for name, value in measured(want).items() if name in options}
    asking |= {name: setting.value for name in options if (setting := want.in_force(name)) and setting.value}
    if excluded(want, asking.get("matmul_algo", "")):
        del asking["matmul_algo"]
    if asking.get("matmul_algo_rules"):
        rules = [str(rule) for rule in rules_of(asking.pop("matmul_algo_rules")) if not excluded(want, rule.asked[0][1])]
        asking |= {"matmul_algo_rules": "; ".join(rules)} if rules else {}
    if rounds_products(want):
        asking.setdefault("matmul_algo", "normal")
    if want.device == "cuda":
        asking = {name: value for name, value in asking.items() if value != "reference"}
    left_open = [(d, FOR_SMALL[want.device]) for d in DIRECTIONS if f"conv_{d}_algo" not in asking]
    if asking.pop(SMALL, False) and left_open:
        texts = (asking.get("conv_algo_rules"), str(ConvRule(FEW_CHANNELS, tuple(left_open))))  # after what is asked for
        asking["conv_algo_rules"] = "; ".join(filter(None, texts))
    asking |= {who: RECORDED for d in _only_recorded(want) if (who := option_of(d)) not in asking}
    if not asking or not asked(want):
        return {}
    if asking.get("batch_invariant"):
        asking["thread_invariant"] = True  # of the same kernels, fewer
    policy = ConvPolicy(
        **asking,
        conv_workspace_limit=want.other("conv_workspace_limit"),
        conv_max_error=want.other("conv_max_error") if want.device == "cpu" else None,  # cuDNN does not state its errors
        matmul_max_error=want.other("matmul_max_error") if want.device == "cpu" else None,
        fallback=on_fallback(want),
        tuning_file=want.other("tuning_file") or kept_in(want),
        work_path=recorded_in(want),
        deterministic=want.other("deterministic") == "ON",
        torch_keeps_products="thread_invariant" in asking and not want.facts.mkl,
        matmul_allow_tf32=want.device == "cpu" and want.other("matmul_allow_tf32", False),
        conv_allow_tf32=want.other("conv_allow_tf32", want.device == "cuda"),  # there torch's own flag has to allow it, too
        allow_fp32_emulation=want.other("allow_fp32_emulation", True),
        frozen_weights=want.device == "cpu" and want.other("frozen_weights", False),  # cuDNN keeps no weights
    )
    return {POLICY[want.device]: policy}


def npu_policy(want: Want) -> dict[str, Any]:
    """The assignments that the options for products come to together on an NPU."""
    named = asked(want)
    if not named or want.facts.native or want.facts.npu:
        return {}
    option, rules = want.in_force("matmul_algo"), want.in_force("matmul_algo_rules")
    kept = [str(rule) for rule in rules_of(rules.value) if not excluded(want, rule.asked[0][1])] if rules else []
    policy = ConvPolicy(
        matmul_algo=option.value if option and not excluded(want, option.value) else None,
        matmul_algo_rules="; ".join(kept) or None,
        fallback=on_fallback(want),
        allow_fp32_emulation=want.other("allow_fp32_emulation", True),
    )
    by_halves = {CUBE_MATH_TYPE: "USE_FP16", "torch.npu.jit_compile": False}
    return {"native.convolution.ascend": policy} | (by_halves if want.facts.half_products else {CUBE_MATH_TYPE: "KEEP_DTYPE"})


def on_fallback(want: Want) -> str:
    """What becomes of a call that cannot run what is asked for."""
    return str(want.other("fallback", "error" if want.other("strict", False) else "warn"))


def carried_out(want: Want) -> dict[str, Any]:
    """In eager code and in what inductor compiles."""
    return conv_policy(want) | ({} if only_records(want) else INDUCTOR) | (apart(want) if by_module(want) else {})


def only_records(want: Want) -> bool:
    """Whether nothing is asked of the native core but to record: then all runs as without it."""
    return {name for _, name in asked(want)} <= {RECORDED}


def _only_recorded(want: Want) -> list[str]:
    """The directions whose calls run torch's own path and are recorded, unless a rule says otherwise."""
    if want.device not in POLICY or recorded_in(want) is None or (want.device == "cpu" and any(map(want.other, INVARIANT))):
        return []
    directions = [*DIRECTIONS, *([PRODUCT] if want.device == "cpu" and not rounds_products(want) else [])]
    return [d for d in directions if not want.other(option_of(d))]


def asked(want: Want) -> dict[tuple[str, str], str]:
    """All that the native core is asked for on this device, and may run: (direction, algorithm) → who asks for it."""
    return {(d, name): who for (d, name), who in _all_asked(want).items() if d != PRODUCT or not excluded(want, name)}


def _all_asked(want: Want) -> dict[tuple[str, str], str]:
    tuned = measured(want) if want.device in POLICY else {}
    directions = {"cpu": ASKED, "cuda": DIRECTIONS, "ascend": (PRODUCT,)}[want.device]
    named = {d: want.other(option_of(d)) or tuned.get(option_of(d)) for d in directions}
    of = {"conv_algo_rules": DIRECTIONS[0], "matmul_algo_rules": PRODUCT}
    found = asked_by(named, *((want.other(name) or tuned.get(name)) if d in named else None for name, d in of.items()))
    if want.device == "cpu":  # there are options for what is left open
        for option in INVARIANT:
            found |= {(d, option): option for d in ASKED if want.other(option) and not named[d]}
        if rounds_products(want) and not named[PRODUCT]:
            found.setdefault((PRODUCT, "normal"), "matmul_allow_tf32")
    if want.device in POLICY and want.other(SMALL):
        found |= {(d, FOR_SMALL[want.device]): SMALL for d in DIRECTIONS if not named[d]}
    found |= {(d, RECORDED): "aoe_tune_mode=offline" for d in _only_recorded(want)}
    return {} if want.device == "cuda" and {name for _, name in found} == {"normal"} else found  # cuDNN's heuristic chooses


def rounds_products(want: Want) -> bool:
    """Whether products may round to TF32 on a CPU that has the unit for it."""
    return want.device == "cpu" and bool(want.other("matmul_allow_tf32")) and not want.facts.matrix_unit


def asked_of(want: Want, *directions: str) -> dict[tuple[str, str], str]:
    """What of :func:`asked` is for these directions."""
    return {key: who for key, who in asked(want).items() if key[0] in directions}


def _are_able(want: Want, ability: str, who: Collection[tuple[str, str]]) -> bool:
    """Whether an algorithm that is asked for has an ability on the CPU; what runs where one falls back is not asked for."""
    found = able(ability, on_matrix_unit=not want.facts.matrix_unit)
    return any(each in found or each[1] in OPEN for each in who)


def obstacle(want: Want) -> str:
    """Why the native core cannot serve on this device, or ``""``."""
    return want.facts.native or (want.facts.cudnn if want.device == "cuda" else "")


@effect(*ALGORITHMS)
def algorithm(want: Want) -> Outcome:
    if want.device == "cuda" and want.value == "normal":
        return honoured(carried_out(want), OWN_PATH)
    if why := obstacle(want):
        return refused(why)
    if want.device == "cuda" and want.value == "reference":
        return refused(ON_CPU_ALONE)
    assignments = carried_out(want)
    if want.value != "performance":
        named = DIRECT_ON_CUDA if want.value == "direct" else HALF_ON_CUDA
        return honoured(assignments, named if want.device == "cuda" else "")
    if why := unmeasured(want):
        return approximated(assignments, f"{why}: {_decides(want)}")
    return honoured(assignments, "each problem that the tuning file does not know is measured when it is first met")


def unmeasured(want: Want) -> str:
    """Why nothing is measured for performance; ``""``: it is."""
    asking = next((f"{name}={value}" for name, value in SAME_BITS.items() if want.other(name) == value), "")
    return asking and f"nothing is measured under {asking}"


def _decides(want: Want) -> str:
    return "normal decides" if want.other("batch_invariant") else "the tuning file decides what it knows, normal the rest"


@effect("conv_algo_rules")
def conv_algo_rules(want: Want) -> Outcome:
    if why := obstacle(want):
        return refused(why)
    assignments, moves = carried_out(want), ""
    if any(field == "module" for rule in rules_of(want.value) for field, _ in rule.conditions):
        if want.other("disable_format_transform") is False:
            moves = (
                "under disable_format_transform=False, rules by module find no convolution that inductor moves to channels_last"
            )
        else:
            assignments |= OWN_FORMATS
    unordered = [f"{d}={name}" for d, name in asked_by({}, want.value) if (d, name) in able("add in no fixed order")]
    wanted = SAME_BITS if want.device == "cpu" else {"deterministic": "ON"}
    if unordered and (asking := [option for option, value in wanted.items() if want.other(option) == value]):
        differs = f"{', '.join(unordered)} adds in no fixed order and falls back under {' and '.join(asking)}"
        return approximated(assignments, "; ".join(filter(None, (differs, moves))))
    return approximated(assignments, moves) if moves else honoured(assignments)


@effect("enable_small_channel")
def enable_small_channel(want: Want) -> Outcome:
    if want.device == "ascend":
        return approximated(with_graphs(want), f"{GRAPHS}; eager operators are not affected")
    if not want.value:
        return NOTHING_ASKED
    if why := obstacle(want):
        return refused(why)
    taken = [name for name in ALGORITHMS if want.other(name)]
    if len(taken) == len(ALGORITHMS):
        return inert(f"{', '.join(taken)} decide, for these convolutions too")
    if want.device == "cpu":
        return approximated(carried_out(want), SMALL_BY_NORMAL)
    why = unmeasured(want)
    return approximated(carried_out(want), f"{SMALL_BY_TIME}; {why}: {_decides(want)}" if why else SMALL_BY_TIME)


@effect("disable_format_transform")
def disable_format_transform(want: Want) -> Outcome:
    """Inductor is what moves models between memory formats here; on a CPU, and for half precision on CUDA, it wants channels_last."""
    differs = (
        "holds for code that inductor compiles inside, where torch.compile is given no such option of its own; eager torch never "
        "changes the memory format of a model by itself"
    )
    return approximated({"torch.inductor.layout_optimization": not want.value}, differs)


def excluded(want: Want, product: str) -> str:
    """Why no product may be computed in a way; ``""``: it may."""
    if want.device == "ascend":
        return _excluded_on_npu(want, product)
    of_parts, rounds = ((PRODUCT, product) in able(ability) for ability in ("compute products from parts", "round to TF32"))
    if of_parts and want.device == "cpu" and want.facts.matrix_unit:
        return want.facts.matrix_unit
    if of_parts and want.other("allow_fp32_emulation") is False:
        return NO_PARTS
    if rounds and want.other("matmul_allow_tf32") is False:
        return "it rounds, and matmul_allow_tf32=False asks for products that do not"
    if of_parts and want.other("batch_invariant"):
        return (
            "the values of other rows decide how it computes one, and batch_invariant=True asks for the same bits in any batch"
        )
    return ""


def _excluded_on_npu(want: Want, product: str) -> str:
    if product not in ON_NPU:
        return NO_OTHER
    if not want.facts.half_products:
        return ""
    if product == "strict":
        return HALF_ALONE
    if (jit := want.other("jit_compile", "false")) != "false":
        return COMPILED.format(jit)
    return NO_PARTS if want.other("allow_fp32_emulation") is False else ""


@effect("tuning_file")
def tuning_file(want: Want) -> Outcome:
    if not any(name == "performance" for _, name in asked(want)):
        return inert("no algorithm is asked for as performance: nothing else is tuned")
    if want.other("batch_invariant"):
        return inert("batch_invariant=True: each batch would have an entry of its own, and so none is used")
    return detail(want)


@effect("frozen_weights")
def frozen_weights(want: Want) -> Outcome:
    if not want.facts.native and policy(want) and want.other("precision_mode_v2") not in HIF8:
        return honoured(reason="part of the precision policy: casts of weights")
    if want.device == "cuda" and asked(want):
        return inert("cuDNN keeps no form of a weight; on CUDA it goes with precision_mode and its family")
    return detail(want, "; or with precision_mode and its family", "keep a form of the weights")


@effect("conv_max_error", "matmul_max_error")
def max_error(want: Want) -> Outcome:
    directions = (PRODUCT,) if want.option.name == "matmul_max_error" else DIRECTIONS
    if want.device == "cuda":
        return refused(NO_BOUNDS)
    outcome = detail(want, of=directions)
    mine = asked_of(want, *directions)
    named = [who for (_, name), who in mine.items() if name not in OPEN]
    differs = [NO_BOUND] if _may_choose_torch(want, mine) else []
    if outcome.status != "honoured" or not (named or differs):
        return outcome
    taken = ", ".join(dict.fromkeys(named))
    if len(named) == len(mine):
        return inert(f"overridden by {taken}: an algorithm that is named runs whatever its bound")
    if named:
        chosen = "normal, performance, thread_invariant and batch_invariant"
        differs = [f"holds for what {chosen} choose; {taken} runs whatever its bound", *differs]
    return approximated({}, "; ".join(differs))


def _may_choose_torch(want: Want, mine: Collection[tuple[str, str]]) -> bool:
    return any(name in ("normal", "performance") for _, name in mine) and not any(map(want.other, INVARIANT))


@effect("conv_workspace_limit")
def conv_workspace_limit(want: Want) -> Outcome:
    return detail(want, ability="take a workspace", of=DIRECTIONS)


@effect("fallback")
def fallback(want: Want) -> Outcome:
    outcome = detail(want)
    if outcome.status == "honoured" and all(name in CHOOSING for _, name in asked(want)):
        why = "nothing falls back: normal and performance choose among what can run, and torch's own path is one of that"
        return replace(inert(why), expected=True)
    return outcome


def detail(want: Want, also: str = "", ability: str = "", of: tuple[str, ...] = ASKED) -> Outcome:
    """Of an option for how algorithms run; on the CPU, of those with an *ability*."""
    if not (mine := asked_of(want, *of)):
        if excluded_here := [who for (d, _), who in _all_asked(want).items() if d in of]:
            return inert(f"no call can run what is asked for: {', '.join(dict.fromkeys(excluded_here))}")
        if want.device == "cuda" and any(map(want.other, ALGORITHMS)):
            return inert(f"normal is {OWN_PATH}")
        convolutions = ["conv_fprop_algo and its like", "conv_algo_rules"] if of != (PRODUCT,) and want.device in POLICY else []
        products = {"cpu": [*PRODUCTS, "matmul_allow_tf32"], "ascend": PRODUCTS}.get(want.device, []) if PRODUCT in of else []
        invariant = INVARIANT if want.device in POLICY else ()
        asking = ", ".join((*convolutions, *products, *invariant)) + f" and {SMALL}" * bool(convolutions)
        elsewhere = want.settings.devices - {*want.facts.devices}  # groups that wait for a machine with such a device
        waits = any(want.settings.get(name, device) for device in elsewhere for name in NAMED)
        return replace(inert(f"no algorithm is asked for: it goes with {asking}{also}"), expected=waits)
    if why := obstacle(want):
        return refused(why)
    if ability and want.device == "cpu" and not _are_able(want, ability, mine):
        who = ", ".join(dict.fromkeys(mine.values()))
        return inert("; ".join(filter(None, (f"no algorithm that is asked for can {ability}: {who}", want.facts.matrix_unit))))
    return honoured(reason="part of the policy for convolutions and matrix products")
