"""matmul_algo and its rules: the native core carries them out on a CPU and an NPU, torch's own flags on CUDA."""

from msctx.effects.algorithms import (
    CHOOSING,
    NO_OTHER,
    ON_CPU_ALONE,
    ON_NPU,
    carried_out,
    conv_policy,
    excluded,
    npu_policy,
    on_fallback,
    only_records,
    unmeasured,
)
from msctx.effects.base import Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.options.conv_rules import PRODUCT, asked_by

PAST_THE_HOOK = (
    "holds for mm, addmm, bmm, baddbmm, mv and addmv and what calls them; attention's own kernels and products that inductor "
    "turns into sums (of a vector, of few columns) run as they do without it"
)
LEFT_OUT = "a rule with another one is left out, and what comes after it decides"
ITS_ORDER = "CANN chooses the order of additions"
FROM_HALVES = (
    "three products of float16 parts through torch_npu's kernels that are there (jit_compile=false), for eager mm, addmm, bmm, "
    "baddbmm, mv, addmv, matmul and what calls them"
)
BY_UNIT = "the matrix unit of this chip computes float32 itself: torch_npu's own products, without HF32"
BY_CHIP = f"on chips of the 910A class {FROM_HALVES}; on later ones torch_npu's own float32, without HF32"

FLAG = "torch.cuda.matmul.allow_tf32"
BY_FLAG = {"strict": False, "bf16x9": False, "tf32": True}
"""What cuBLAS computes as it is named → whether it may take TF32 for that."""
EMULATES = "{} makes cuBLAS compute float32 products from parts: unset it before the program starts"
EMULATION = (
    "cuBLAS computes it where CUBLAS_EMULATE_SINGLE_PRECISION=1 is set before the program starts, on GPUs for which it has kernels "
    "(from compute capability 10.0 on)"
)
CHOSEN = {
    "normal": "cuBLAS chooses the kernel by shape, in the arithmetic that matmul_allow_tf32, or else torch's own flag, allows",
    "bf16x9": "cuBLAS chooses: on GPUs for which it has no such kernels (before compute capability 10.0) it computes in float32",
    "tf32": "cuBLAS chooses: it may compute without rounding",
}
AUTOTUNED = {"torch.inductor.max_autotune_gemm": True}
IN_COMPILED_CODE = (
    "in code that inductor compiles inside, it measures cuBLAS's choice and Triton's kernels for each product; in eager code cuBLAS "
    "chooses, since torch measures none of its kernels (TunableOp does so on AMD alone)"
)
BESIDE_CONVOLUTIONS = (
    "nothing is measured while an algorithm is asked for convolutions, since inductor would turn some of those into products: "
    "cuBLAS chooses"
)


@effect("matmul_algo", "matmul_algo_rules")
def products(want: Want) -> Outcome:
    if want.device == "cuda":
        return _by_cublas(want)
    if why := want.facts.native or (want.facts.npu if want.device == "ascend" else ""):
        return refused(why)
    named = {PRODUCT: want.value} if want.option.name == "matmul_algo" else {}
    names = {name for _, name in asked_by(named, *([] if named else [want.value]))}
    missing = {name: why for name in sorted(names) if (why := excluded(want, name))}
    reasons = "; ".join([*(f"{name}: {why}" for name, why in missing.items()), *([LEFT_OUT] if missing and not named else [])])
    if want.device == "ascend" and names.isdisjoint(ON_NPU):
        return inert(f"{NO_OTHER}: {LEFT_OUT}" if not named else f"{NO_OTHER}: torch_npu's own products run")
    if names <= {*missing} or (missing and on_fallback(want) == "error"):
        return refused(reasons.removesuffix(f"; {LEFT_OUT}"))
    if want.device != "ascend":
        return approximated(carried_out(want), reasons) if missing else honoured(carried_out(want), PAST_THE_HOOK)
    if differs := "; ".join(filter(None, (reasons, ITS_ORDER if "strict" in names - {*missing} else ""))):
        return approximated(npu_policy(want), differs)
    return honoured(npu_policy(want), {True: FROM_HALVES, False: BY_UNIT, None: BY_CHIP}[want.facts.half_products])


def _by_cublas(want: Want) -> Outcome:
    if why := _refusal(want, want.value):
        return refused(why)
    if want.value == "performance":
        return _measured(want)
    if want.value not in (*BY_FLAG, *CHOOSING):
        return refused("cuBLAS has no such algorithm, and msctx has no matrix products for CUDA")
    outcome = approximated if want.value in ("bf16x9", "tf32") else honoured
    return outcome(flag(want), CHOSEN.get(want.value, ""))


def _measured(want: Want) -> Outcome:
    if why := unmeasured(want):
        return approximated(flag(want), f"{why}: cuBLAS chooses")
    if conv_policy(want) and not only_records(want):
        return approximated(flag(want), BESIDE_CONVOLUTIONS)
    return approximated(flag(want) | AUTOTUNED, IN_COMPILED_CODE)


def _refusal(want: Want, name: str) -> str:
    """Why cuBLAS cannot compute as *name* asks; ``""``: it can, or nothing of ours can yet."""
    if why := excluded(want, name):
        return why
    if name == "reference":
        return ON_CPU_ALONE
    if name == "strict" and want.facts.cublas:
        return EMULATES.format(want.facts.cublas)
    return EMULATION if name == "bf16x9" and not want.facts.cublas else ""


def flag(want: Want) -> dict[str, bool]:
    """The assignment that the options for products come to together on CUDA."""
    algorithm, allowed = want.in_force("matmul_algo"), want.in_force("matmul_allow_tf32")
    if algorithm and algorithm.value in BY_FLAG and not _refusal(want, algorithm.value):
        return {FLAG: BY_FLAG[algorithm.value]}
    if want.other("allow_fp32_emulation") is False and (algorithm or allowed):
        return {FLAG: False}
    return {FLAG: allowed.value} if allowed else {}
