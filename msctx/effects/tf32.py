"""TF32 and HF32: whether float32 products may be rounded to 10 bits, or to 11, on a device's matrix unit."""

from dataclasses import replace

from msctx.effects.algorithms import ALGORITHMS, OPEN, asked_of, carried_out, detail, npu_policy
from msctx.effects.base import Outcome, Want, approximated, as_it_is, effect, honoured, inert, refused
from msctx.effects.graph_engine import DIGITS, with_graphs
from msctx.effects.matmul import EMULATES, FLAG, flag
from msctx.options.conv_rules import DIRECTIONS, PRODUCT

RNNS = (
    "cuDNN's RNNs follow too: with convolutions alone switched, torch.backends.cudnn.flags() raises in other code; once it was "
    "written, a torch.backends.fp32_precision set later no longer reaches cuDNN (torch has no setter for that)"
)
LEAST = {"conv_max_error": 1.05e-3, "matmul_max_error": 384 * 2.0**-24 + 2.0**-15}
"""The smallest bound of an algorithm that rounds (kernels/cpu/amx/conv_tiles_gemm.cpp), of convolutions and of products."""
TOGETHER = "batch_invariant=True excludes products that round to TF32: they scale the values of a batch together"
ON_UNIT = "a matrix unit (AMX) computes it, and choices() shows where it ran"
HF32 = {"matmul_allow_hf32": "torch.npu.matmul.allow_hf32", "conv_allow_hf32": "torch.npu.conv.allow_hf32"}
ONLY_NPU = "no other device than an NPU rounds to HF32"
NO_HF32 = f"a permission: {ONLY_NPU}. {{}} allows TF32, which has one bit less of mantissa"
HALF_ALONE = (
    "the matrix unit of this chip has float16 alone, and no HF32: CANN computes float32 products in float16, where precision_mode "
    "and matmul_algo ask for nothing else"
)
BY_CUDNN = "torch.cudnn.allow_tf32"
NO_PARTS = "overridden by allow_fp32_emulation=False, which asks for products in float32 alone"


@effect("matmul_allow_tf32")
def matmul_allow_tf32(want: Want) -> Outcome:
    if want.device == "cuda":
        return _by_cublas(want)
    if not want.value:
        return honoured(reason="torch's own products do not round to TF32 on a CPU, nor do msctx's")
    if want.other("allow_fp32_emulation") is False:
        return inert(NO_PARTS)
    if want.facts.native or want.facts.matrix_unit:
        return inert(want.facts.native or f"{want.facts.matrix_unit}, which alone rounds to TF32")
    outcome = _limited(
        want, detail(want, ability="round to TF32", of=(PRODUCT,)), "matmul_max_error", LEAST["matmul_max_error"]
    )
    if outcome.status != "honoured":
        return outcome
    return inert(TOGETHER) if want.other("batch_invariant") else honoured(carried_out(want), ON_UNIT)


def _by_cublas(want: Want) -> Outcome:
    found = flag(want)
    if want.value and not found[FLAG]:
        emulates = want.other("allow_fp32_emulation", True)
        return inert(f"overridden by matmul_algo={want.other('matmul_algo')}, which takes no TF32" if emulates else NO_PARTS)
    reason = "" if want.value else "after set_float32_matmul_precision('high' or 'medium') oneDNN's products become exact too"
    return honoured(found, reason)


@effect("conv_allow_tf32")
def conv_allow_tf32(want: Want) -> Outcome:
    if want.device == "cuda":
        if want.value and want.other("allow_fp32_emulation") is False:
            return inert(NO_PARTS)
        return approximated({BY_CUDNN: want.value}, RNNS)
    if not asked_of(want, *DIRECTIONS):
        if want.value:
            return inert("no algorithm is asked for, and torch's own convolutions do not round to TF32 on a CPU")
        return honoured(reason="torch's own convolutions do not round to TF32 on a CPU")
    outcome = detail(want, of=DIRECTIONS)
    if not want.value or outcome.status != "honoured":
        return outcome
    if want.other("allow_fp32_emulation") is False:
        return inert(NO_PARTS)
    if want.facts.matrix_unit:
        return inert(f"{want.facts.matrix_unit}, which alone rounds to TF32")
    outcome = _limited(want, detail(want, ability="round to TF32", of=DIRECTIONS), "conv_max_error", LEAST["conv_max_error"])
    return replace(outcome, reason=f"{outcome.reason}; {ON_UNIT}") if outcome.status == "honoured" else outcome


def _limited(want: Want, outcome: Outcome, option: str, least: float) -> Outcome:
    """The same where the bound of an error leaves something that rounds: what is named has no bound."""
    of = (PRODUCT,) if option == "matmul_max_error" else DIRECTIONS
    is_open = all(name in OPEN for _, name in asked_of(want, *of))
    if outcome.status == "honoured" and is_open and (want.other(option) or 1.0) < least:
        return inert(f"{option}={want.other(option)} is below every bound of what rounds to TF32 ({least:.0e})")
    return outcome


@effect("allow_fp32_emulation")
def allow_fp32_emulation(want: Want) -> Outcome:
    if want.device == "cuda":
        return _by_flags(want)
    anywhere = replace(want, facts=replace(want.facts, matrix_unit=""))  # what is forbidden, no processor does
    return detail(anywhere, ability="compute products from parts")


def _by_flags(want: Want) -> Outcome:
    """allow_fp32_emulation on CUDA: cuBLAS, and cuDNN where torch calls it, follow torch's own flags."""
    if not want.value and want.facts.cublas:
        return refused(EMULATES.format(want.facts.cublas))
    outcome = detail(want, "; or with conv_allow_tf32, matmul_algo or matmul_allow_tf32")
    convolves = bool(want.in_force("conv_allow_tf32")) or any(want.other(name) == "normal" for name in ALGORITHMS)
    holds_for = ["cuDNN's convolutions"] * convolves
    if want.in_force("matmul_algo") or want.in_force("matmul_allow_tf32"):
        holds_for.append("cuBLAS's products")
    without = outcome.reason if outcome.status == "refused" else ""
    if not want.value and (convolves or outcome.status == "honoured"):
        reasons = (without, "torch's own path takes no TF32", RNNS)
        return approximated({BY_CUDNN: False} | flag(want), "; ".join(filter(None, reasons)))
    if not holds_for or outcome.status == "honoured":
        return outcome
    given = {} if want.value else flag(want)
    return approximated(given, without) if without else honoured(given, f"holds for {' and '.join(holds_for)}")


@effect("matmul_allow_hf32", "conv_allow_hf32")
def allow_hf32(want: Want) -> Outcome:
    if want.device == "ascend":
        found = {HF32[want.option.name]: want.value} | with_graphs(want)
        if want.facts.half_products:
            return refused(HALF_ALONE) if want.value else honoured(found, f"{HALF_ALONE}; {DIGITS}")
        if want.option.name == "matmul_allow_hf32" and npu_policy(want):
            return inert("overridden by matmul_algo or its rules, under which float32 products do not round to HF32")
        return honoured(found, DIGITS)
    return as_it_is(NO_HF32.format(want.option.name.replace("hf32", "tf32")) if want.value else ONLY_NPU)
