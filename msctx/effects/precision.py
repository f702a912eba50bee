"""TF32 and HF32: whether float32 products may be rounded to 10 bits on a device's matrix unit."""

from msctx.effects.algorithms import ALGORITHMS, asks, detail
from msctx.effects.base import Outcome, Want, approximated, effect, honoured, inert, not_built, refused

RNNS = (
    "cuDNN's RNNs follow too: with convolutions alone switched, torch.backends.cudnn.flags() raises in other code; once it was "
    "written, a torch.backends.fp32_precision set later no longer reaches cuDNN (torch has no setter for that)"
)
TAKE_TF32 = ("implicit_gemm", "implicit_precomp_gemm", "algo_1", "normal", "performance")
"""The algorithms of a CPU with rows that do."""
CORE = "the matrix products of the native core"


@effect("matmul_allow_tf32")
def matmul_allow_tf32(want: Want) -> Outcome:
    if want.device == "cuda":
        reason = (
            "" if want.value else "after set_float32_matmul_precision('high' or 'medium') oneDNN's products become exact too"
        )
        return honoured({"torch.cuda.matmul.allow_tf32": want.value}, reason)
    return not_built(CORE)


@effect("conv_allow_tf32")
def conv_allow_tf32(want: Want) -> Outcome:
    if want.device == "cuda":
        if want.value and want.other("allow_fp32_emulation") is False and asks(want):
            return inert("allow_fp32_emulation=False asks for products in float32 alone, whatever this says")
        return approximated({"torch.cudnn.allow_tf32": want.value}, RNNS)
    if not asks(want):
        if want.value:
            return inert("no algorithm is asked for, and torch's own convolutions do not round to TF32 on a CPU")
        return honoured(reason="torch's own convolutions do not round to TF32 on a CPU")
    if want.facts.native:
        return refused(want.facts.native)
    if not want.value:
        return honoured(reason="part of the policy for convolutions")
    if want.other("allow_fp32_emulation") is False:
        return inert("overridden by allow_fp32_emulation=False, which asks for products in float32 alone")
    asked = [want.other(name) for name in ALGORITHMS]
    left_open = None in asked and (want.other("thread_invariant") or want.other("enable_small_channel"))
    if not (left_open or want.other("conv_algo_rules") or any(name in TAKE_TF32 for name in asked)):
        taken = ", ".join(f"{name}={value}" for name, value in zip(ALGORITHMS, asked, strict=True) if value)
        return inert(f"{taken} computes in float32 alone; {', '.join(TAKE_TF32)} can take TF32")
    return honoured(
        reason="part of the policy for convolutions; a matrix unit (AMX) computes it, and choices() shows where it ran"
    )


@effect("allow_fp32_emulation")
def allow_fp32_emulation(want: Want) -> Outcome:
    outcome = detail(want)
    if want.device == "cuda" and not want.value and outcome.status == "honoured":
        return approximated({"torch.cudnn.allow_tf32": False}, f"torch's own path takes no TF32 either; {RNNS}")
    return outcome


@effect("matmul_allow_hf32", "conv_allow_hf32")
def allow_hf32(want: Want) -> Outcome:
    if want.device == "ascend":
        return honoured({f"torch.npu.{want.option.name.partition('_')[0]}.allow_hf32": want.value})
    return not_built(CORE)
