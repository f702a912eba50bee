"""Matrix products: their algorithms on CUDA and an NPU, and whether float32 may be rounded to TF32 or HF32."""

from __future__ import annotations

from dataclasses import replace

from msctx.options import Setting
from msctx.options.algorithm_policy import DIRECTIONS, PRODUCT, PRODUCT_RULES, requested_by
from msctx.options.kinds import Bool, Choice
from msctx.options.option import DEVICES, ascend_option, extension, gpu_option
from msctx.options.rules import Rule
from msctx.themes import convolution_and_algorithm_policy as convolutions
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, inert, joined, reason, refused
from msctx.themes.shared_by_themes import DIGITS, with_graphs

JAX = {
    "F32_F32_F32": "strict",
    "BF16_BF16_F32_X3": "bf16x3",
    "BF16_BF16_F32_X6": "bf16x6",
    "BF16_BF16_F32_X9": "bf16x9",
    "TF32_TF32_F32": "tf32",
}
"""The same in JAX's words (jax.lax.DotAlgorithmPreset)."""

# fmt: off
OPTIONS = (
    gpu_option("matmul_algo", Choice({
            "normal": convolutions.NORMAL,
            "performance": convolutions.PERFORMANCE,
            "strict": "float32 FMAs of the values themselves, added in one order",
            "fp16x3": "emulated float32: three matmuls of two float16 numbers for each value, on AMX; float32's errors",
            "int8x6": "emulated float32: six matmuls of three 8-bit digits of each value, on AMX",
            "bf16x6": "emulated float32: six matmuls of three bfloat16 numbers for each value, of any exponents",
            "bf16x9": "emulated float32: all nine matmuls of three bfloat16 numbers for each value",
            "bf16x3": "three matmuls of two bfloat16 numbers for each value: 16 bits of it",
            "tf32": "of values rounded to 11 bits or more, on AMX",
            "reference": convolutions.REFERENCE,
        }, JAX), default="normal", example="strict", source="msctx", devices=DEVICES,
        help="How matmuls are computed: mm, addmm, bmm, baddbmm, mv and addmv, and so what linear, matmul, einsum "
             "and LSTM cells call, forward and backward. A matmul that the named algorithm does not support runs torch's own "
             "path, with a warning. On CUDA torch's own flags decide, and performance measures only in compiled code"
             ". An NPU has fp16x3 and strict."),
    gpu_option("conv_allow_tf32", Bool, default=True, example=False, also=("device_context.gpu.op_precision.conv_allow_tf32",),
        help="Whether float32 convolutions may round their operands to TF32 (10 bits of mantissa) to run on tensor cores. "
             "Unset, CUDA follows torch's own flag and the CPU never rounds."),
    gpu_option("matmul_allow_tf32", Bool, default=False, example=True,
        also=("device_context.gpu.op_precision.matmul_allow_tf32",),
        help="Whether float32 matmuls may round their operands to TF32 (10 bits of mantissa) to run on tensor cores, or on a "
             "CPU's AMX, where that is expected to be faster."),
    ascend_option("matmul_allow_hf32", Bool, default=False, example=True,
        also=("device_context.ascend.op_precision.matmul_allow_hf32",),
        help="Whether float32 matmuls may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). "
             "NVIDIA's format is another one: see matmul_allow_tf32."),
    ascend_option("conv_allow_hf32", Bool, default=True, example=False,
        also=("device_context.ascend.op_precision.conv_allow_hf32",),
        help="Whether float32 convolutions may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). NVIDIA's "
             "format is another one: see conv_allow_tf32."),
    extension("allow_fp32_emulation", Bool, default=True, example=False,
        help="Whether msctx's own kernels may emulate float32 on AMX or on an NPU: matmuls of 8 or 16-bit numbers, "
             "with sums in float32 and errors like those of float32 (choices() has each one's bound); values that these "
             "numbers cannot carry (Inf, NaN) are computed in float32. Unset they may; false allows only float32 itself"
             ", even where conv_allow_tf32 or matmul_allow_tf32 is set, on CUDA too."),
    extension("matmul_algo_rules", PRODUCT_RULES,
        example={"encoder.*": "bf16x6", "input=*x4096": "strict"}, devices=("cpu", "ascend"),
        help="matmul_algo for single matmuls, by module path or by problem; a rule wins over matmul_algo. The first rule that "
             "matches decides. Module paths are known for the weights of models given to ctx.watch(model); the fields of a "
             "problem are those that choices() shows."),
)
# fmt: on

RULES: tuple[Rule, ...] = ()

PAST_THE_HOOK = "not for attention's own kernels, nor for matmuls that inductor turns into sums"
FROM_HALVES = "three float16 matmuls by torch_npu's ready-made kernels, in eager code"
BY_UNIT = "this chip multiplies float32 itself: torch_npu's own matmuls, without HF32"
BY_CHIP = f"910A: {FROM_HALVES}; later chips: float32 itself"

FLAG = "torch.cuda.matmul.allow_tf32"
BY_FLAG = {"strict": False, "bf16x9": False, "tf32": True}
"""What cuBLAS computes as it is named → whether it may take TF32 for that."""
EMULATES = reason("{} makes cuBLAS emulate float32", "unset it before the program starts")
EMULATION = reason(
    "cuBLAS computes it only on request, from compute capability 10.0 on",
    "set CUBLAS_EMULATE_SINGLE_PRECISION=1 before the program starts",
)
CHOSEN = {
    "normal": "cuBLAS chooses the kernel by shape; matmul_allow_tf32, otherwise torch's own flag, decides about TF32",
    "bf16x9": "cuBLAS chooses: before compute capability 10.0 it has no such kernels, and computes in float32",
    "tf32": "cuBLAS chooses: it may compute without rounding",
}
IN_COMPILED_CODE = "in compiled code inductor measures cuBLAS's choice and Triton's kernels; in eager code cuBLAS chooses"
BESIDE_CONVOLUTIONS = (
    "cuBLAS chooses: measuring, inductor would compute some convolutions as matmuls, without the requested algorithm"
)
RNNS = "also for cuDNN's RNNs; a later torch.backends.fp32_precision does not reach cuDNN"
LEAST = {"conv_max_error": 1.05e-3, "matmul_max_error": 384 * 2.0**-24 + 2.0**-15}
"""The smallest bound of an algorithm that rounds (kernels/cpu/amx/conv_tiles_gemm.cpp), of convolutions and of products."""
TOGETHER = "batch_invariant=True excludes matmuls that round to TF32: they scale the values of a batch together"
ON_AMX = "only AMX rounds to TF32"
ON_UNIT = "AMX computes it, as choices() shows; inert on a CPU without AMX"
HF32 = {"matmul_allow_hf32": "torch.npu.matmul.allow_hf32", "conv_allow_hf32": "torch.npu.conv.allow_hf32"}
NO_HF32 = reason("it permits HF32, which only an NPU has", "set {} for TF32, which has one bit less of mantissa")
HALF_ALONE = "this chip multiplies only float16, which CANN takes for float32, too"
BY_CUDNN = "torch.cudnn.allow_tf32"
NO_PARTS = "overridden by allow_fp32_emulation=False, which allows only float32 itself"
NO_ROUNDING = "torch's own convolutions do not round to TF32 on a CPU"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value, is_cuda = setting.option.name, setting.value, on.device == "cuda"
    match name:
        case "matmul_algo" | "matmul_algo_rules":
            return _by_cublas(on, setting) if is_cuda else _products(on, setting)
        case "matmul_allow_tf32" if is_cuda:
            return _tf32_by_cublas(on, value)
        case "matmul_allow_tf32" if not value:
            return honoured(cause="torch's own matmuls do not round to TF32 on a CPU, nor do msctx's")
        case "matmul_allow_tf32":
            return _matmul_allow_tf32(on)
        case "conv_allow_tf32" if is_cuda:
            is_forbidden = value and on.get("allow_fp32_emulation") is False
            return inert(NO_PARTS) if is_forbidden else approximated({BY_CUDNN: value}, RNNS)
        case "conv_allow_tf32":
            return _conv_allow_tf32(on, value)
        case "allow_fp32_emulation" if is_cuda:
            return _by_flags(on, value)
        case "allow_fp32_emulation":
            anywhere = On(on.device, on.source, replace(on.facts, amx=""))  # what is forbidden, no processor does
            return convolutions.detail(anywhere, ability="emulate float32")
        case "matmul_allow_hf32" | "conv_allow_hf32" if on.device == "ascend":
            return _allow_hf32(on, setting)
        case "matmul_allow_hf32" | "conv_allow_hf32":
            return as_it_is(NO_HF32.format(name.replace("hf32", "tf32")) if value else "only an NPU rounds to HF32")
    return None


def _products(on: On, setting: Setting) -> Outcome:
    if why := on.facts.native or (on.facts.npu if on.device == "ascend" else ""):
        return refused(why)
    named = {PRODUCT: setting.value} if setting.option.name == "matmul_algo" else {}
    names = {name for _, name in requested_by(named, *([] if named else [setting.value]))}
    missing = {name: why for name in sorted(names) if (why := convolutions.excluded(on, name))}
    reasons = joined(*(f"{name}: {why}" for name, why in missing.items()))
    if on.device == "ascend" and names.isdisjoint(convolutions.ON_NPU):
        runs = "torch_npu's own matmuls run" if named else "no rule applies"
        return inert(f"{convolutions.NO_OTHER}: {runs}")
    if names <= {*missing} or (missing and convolutions.on_fallback(on) in ("error", "strict")):
        return refused(reasons)
    reasons = joined(*(f"rules with {name} do nothing: {why}" for name, why in missing.items()))
    if on.device != "ascend":
        of_some = replace(approximated(convolutions.assignments_of(on), reasons), idle=True)  # rules of which one does nothing
        return of_some if missing else honoured(convolutions.assignments_of(on), PAST_THE_HOOK)
    if differs := joined(reasons, "CANN orders the additions" if "strict" in names - {*missing} else ""):
        return replace(approximated(convolutions.npu_policy(on), differs), idle=bool(missing))
    return honoured(convolutions.npu_policy(on), {True: FROM_HALVES, False: BY_UNIT, None: BY_CHIP}[on.facts.half_products])


def _by_cublas(on: On, setting: Setting) -> Outcome:
    if why := _refusal(on, setting.value):
        return refused(why)
    if setting.value == "performance":
        return _measured(on)
    if setting.value not in (*BY_FLAG, *convolutions.CHOOSING):
        return refused("cuBLAS has no such algorithm, and msctx has no matmuls for CUDA")
    outcome = approximated if setting.value in ("bf16x9", "tf32") else honoured
    return outcome(flag(on), CHOSEN.get(setting.value, ""))


def _measured(on: On) -> Outcome:
    if why := convolutions.unmeasured(on):
        return approximated(flag(on), f"{why}: cuBLAS chooses")
    if convolutions.conv_policy(on) and not convolutions.only_records(on):
        return approximated(flag(on), BESIDE_CONVOLUTIONS)
    return approximated(flag(on) | {"torch.inductor.max_autotune_gemm": True}, IN_COMPILED_CODE)


def _refusal(on: On, name: str) -> str:
    """Why cuBLAS cannot compute as *name* asks; ``""``: it can, or nothing of ours can yet."""
    if why := convolutions.excluded(on, name):
        return why
    if name == "reference":
        return convolutions.ON_CPU_ALONE
    if name == "strict" and on.facts.cublas:
        return EMULATES.format(on.facts.cublas)
    return EMULATION if name == "bf16x9" and not on.facts.cublas else ""


def flag(on: On) -> dict[str, bool]:
    """The assignment that the options for products come to together on CUDA."""
    algorithm, allowed = on.get("matmul_algo"), on.get("matmul_allow_tf32")
    if algorithm in BY_FLAG and not _refusal(on, algorithm):
        return {FLAG: BY_FLAG[algorithm]}
    if on.get("allow_fp32_emulation") is False and (algorithm or allowed is not None):
        return {FLAG: False}
    return {} if allowed is None else {FLAG: allowed}


def _matmul_allow_tf32(on: On) -> Outcome:
    if on.get("allow_fp32_emulation") is False:
        return inert(NO_PARTS)
    if on.facts.native or on.facts.amx:
        return inert(on.facts.native or f"{on.facts.amx}; {ON_AMX}")
    outcome = _rounding(on, "matmul_max_error", PRODUCT)
    if outcome.status != "honoured":
        return outcome
    return inert(TOGETHER) if on.get("batch_invariant") else honoured(convolutions.assignments_of(on), ON_UNIT)


def _tf32_by_cublas(on: On, value: bool) -> Outcome:
    found = flag(on)
    if value and not found[FLAG]:
        emulates = on.get("allow_fp32_emulation", True)
        return inert(f"overridden by matmul_algo={on.get('matmul_algo')}, which takes no TF32" if emulates else NO_PARTS)
    exact = "after set_float32_matmul_precision('high' or 'medium') oneDNN's matmuls become exact too"
    return honoured(found, "" if value else exact)


def _conv_allow_tf32(on: On, value: bool) -> Outcome:
    if not convolutions.requested_of(on, *DIRECTIONS):
        fix = "set conv_fprop_algo, conv_dgrad_algo or conv_wgrad_algo"
        return inert(NO_ROUNDING, fix) if value else honoured(cause=NO_ROUNDING)
    outcome = convolutions.detail(on, of=DIRECTIONS)
    if not value or outcome.status != "honoured":
        return outcome
    if on.get("allow_fp32_emulation") is False:
        return inert(NO_PARTS)
    if on.facts.amx:
        return inert(f"{on.facts.amx}; {ON_AMX}")
    outcome = _rounding(on, "conv_max_error", *DIRECTIONS)
    return replace(outcome, reason=ON_UNIT) if outcome.status == "honoured" else outcome


def _rounding(on: On, option: str, *of: str) -> Outcome:
    """Of rounding to TF32, where the bound of an error leaves something that rounds: what is named has no bound."""
    outcome, least = convolutions.detail(on, ability="round to TF32", of=of), LEAST[option]
    is_open = all(name in convolutions.OPEN for _, name in convolutions.requested_of(on, *of))
    if outcome.status == "honoured" and is_open and (on.get(option) or 1.0) < least:
        return inert(f"{option}={on.get(option)} is below every bound of what rounds to TF32 ({least:.0e})")
    return outcome


def _by_flags(on: On, value: bool) -> Outcome:
    """allow_fp32_emulation on CUDA: cuBLAS, and cuDNN where torch calls it, follow torch's own flags."""
    if not value and on.facts.cublas:
        return refused(EMULATES.format(on.facts.cublas))
    outcome = convolutions.detail(on, ", or conv_allow_tf32, matmul_algo or matmul_allow_tf32")
    convolves = bool(on.settings.get("conv_allow_tf32")) or any(on.get(name) == "normal" for name in convolutions.ALGORITHMS)
    holds_for = ["cuDNN's convolutions"] * convolves
    if on.settings.get("matmul_algo") or on.settings.get("matmul_allow_tf32"):
        holds_for.append("cuBLAS's matmuls")
    without = outcome.reason if outcome.status == "refused" else ""
    if not value and (convolves or outcome.status == "honoured"):
        return approximated({BY_CUDNN: False} | flag(on), joined(without, "torch's own path, RNNs included, takes no TF32"))
    if not holds_for or outcome.status == "honoured":
        return outcome
    given = {} if value else flag(on)
    return approximated(given, without) if without else honoured(given, f"holds for {' and '.join(holds_for)}")


def _allow_hf32(on: On, setting: Setting) -> Outcome:
    found = {HF32[setting.option.name]: setting.value} | with_graphs(on)
    if on.facts.half_products:
        return refused(HALF_ALONE, "set precision_mode or matmul_algo") if setting.value else honoured(found, HALF_ALONE)
    if setting.option.name == "matmul_allow_hf32" and convolutions.npu_policy(on):
        return inert("overridden by matmul_algo or its rules, under which float32 matmuls do not round to HF32")
    return honoured(found, DIGITS)
