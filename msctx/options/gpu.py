"""The keys of gpu_config, which our cpu_config has too: algorithms of convolutions and products, and TF32 (catalogue: gpu)."""

from functools import partial

from msctx.options.kinds import Bool, Choice
from msctx.options.option import DEVICES, Option

SOURCE = "mindspore.set_context(gpu_config)"
NORMAL = "a choice by shape and dtype, without measuring"
PERFORMANCE = "all that can take the shape are measured, the fastest is taken"
REFERENCE = "ours: slow and readable; the others are checked against it"

CUDNN_NUMBERS = {
    f"algo_{number}": name
    for number, name in enumerate(
        ("implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused")
    )
}
"""cuDNN's numbers of forward algorithms, which MindSpore gives by name; those of gradients it gives by number."""
MEASURED = dict.fromkeys(("auto", "fastest", "benchmark"), "performance")
"""What others call it."""

JAX = {
    "F32_F32_F32": "strict",
    "BF16_BF16_F32_X3": "bf16x3",
    "BF16_BF16_F32_X6": "bf16x6",
    "BF16_BF16_F32_X9": "bf16x9",
    "TF32_TF32_F32": "tf32",
}
"""The same in JAX's words (jax.lax.DotAlgorithmPreset)."""

gpu_option = partial(Option, groups=("gpu_config", "cpu_config"), devices=("cpu", "cuda"), source=SOURCE)
"""An option of gpu_config; the CPU has the same."""

# fmt: off
OPTIONS = (
    gpu_option("conv_fprop_algo", Choice({
            "normal": NORMAL,
            "performance": PERFORMANCE,
            "implicit_gemm": "a matrix product that reads the input in place, without workspace",
            "implicit_precomp_gemm": "implicit_gemm with its indices computed beforehand, in a small workspace",
            "gemm": "the input is unfolded into a matrix (im2col), then multiplied",
            "direct": "loops over the input and the window, without a matrix product",
            "fft": "by Fourier transforms of whole images; large workspace",
            "fft_tiling": "by Fourier transforms of tiles; less workspace for large images",
            "winograd": "by Winograd transforms of tiles, in one kernel",
            "winograd_nonfused": "by Winograd transforms and matrix products, as separate kernels",
            "reference": REFERENCE,
        }, {"precomp_gemm": "implicit_precomp_gemm"}, CUDNN_NUMBERS | MEASURED), default="normal", example="winograd",
        also=("device_context.gpu.op_tuning.conv_fprop_algo",),
        help="The algorithm of the forward convolution. A shape that the named one does not support runs torch's own path, "
             "with a warning."),
    gpu_option("conv_dgrad_algo", Choice({
            "normal": NORMAL,
            "performance": PERFORMANCE,
            "algo_0": "sums of products added atomically, in no fixed order",
            "algo_1": "a matrix product with a fixed order of additions",
            "fft": "by Fourier transforms of whole images; deterministic",
            "fft_tiling": "by Fourier transforms of tiles; deterministic",
            "winograd": "by Winograd transforms of tiles, in one kernel; deterministic",
            "winograd_nonfused": "by Winograd transforms and matrix products, as separate kernels; deterministic",
            "reference": REFERENCE,
        }, hints=MEASURED), default="normal", example="algo_1", also=("device_context.gpu.op_tuning.conv_dgrad_algo",),
        help="The algorithm of the convolution's gradient with respect to its input. algo_0 is refused under "
             "deterministic=ON; for a shape that the named one cannot take see conv_fprop_algo."),
    gpu_option("conv_wgrad_algo", Choice({
            "normal": NORMAL,
            "performance": PERFORMANCE,
            "algo_0": "sums of products added atomically, in no fixed order",
            "algo_1": "a matrix product with a fixed order of additions",
            "algo_3": "as algo_0, with a small workspace for indices",
            "fft": "by Fourier transforms of whole images; deterministic",
            "fft_tiling": "by Fourier transforms of tiles; deterministic",
            "winograd_nonfused": "by Winograd transforms and matrix products, as separate kernels; deterministic",
            "reference": REFERENCE,
        }, hints=MEASURED), default="normal", example="algo_1", also=("device_context.gpu.op_tuning.conv_wgrad_algo",),
        documented=("gpu_config.conv_wgrad_algo", "device_context.gpu.op_tuning.conv_wgrad_algo"),
        help="The algorithm of the convolution's gradient with respect to its weight. algo_0 and algo_3 are refused under "
             "deterministic=ON; for a shape that the named one cannot take see conv_fprop_algo."),
    gpu_option("matmul_algo", Choice({
            "normal": NORMAL,
            "performance": PERFORMANCE,
            "strict": "products of the values themselves, added in one order",
            "fp16x3": "three products of two float16 parts of each value, on a matrix unit; float32's errors",
            "int8x6": "six products of three 8-bit digits of each value, on a matrix unit",
            "bf16x6": "six products of three bfloat16 parts of each value, of any exponents",
            "bf16x9": "all nine products of three bfloat16 parts of each value",
            "bf16x3": "three products of two bfloat16 parts: 16 bits of each value",
            "tf32": "of values rounded to 11 bits or more, on a matrix unit",
            "reference": REFERENCE,
        }, JAX, MEASURED), default="normal", example="strict", source="msctx", devices=DEVICES,
        help="How matrix products are computed: mm, addmm, bmm, baddbmm, mv and addmv, and so what linear, matmul, einsum "
             "and LSTM cells call, forward and backward. A product that the named way does not support runs torch's own "
             "path, with a warning. On CUDA torch's own flags decide, and performance measures in compiled code "
             "alone. An NPU has fp16x3 and strict."),
    gpu_option("conv_allow_tf32", Bool, default=True, example=False, also=("device_context.gpu.op_precision.conv_allow_tf32",),
        help="Whether float32 convolutions may round their operands to TF32 (10 bits of mantissa) to run on tensor cores. "
             "Unset, CUDA follows torch's own flag and the CPU never rounds."),
    gpu_option("matmul_allow_tf32", Bool, default=False, example=True,
        also=("device_context.gpu.op_precision.matmul_allow_tf32",),
        help="Whether float32 matrix products may round their operands to TF32 (10 bits of mantissa) to run on tensor cores, or "
             "on a CPU's matrix unit, where that is expected to be faster."),
)
# fmt: on
