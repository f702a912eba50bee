"""The keys of gpu_config, which our cpu_config has too: algorithms of convolutions, and TF32 (catalogue: gpu)."""

from msctx.options.kinds import Bool, Choice
from msctx.options.option import Option

SOURCE = "mindspore.set_context(gpu_config)"

OPTIONS = (
    Option(
        name="conv_fprop_algo",
        type=Choice(
            "normal",
            "performance",
            "implicit_gemm",
            "implicit_precomp_gemm",
            "gemm",
            "direct",
            "fft",
            "fft_tiling",
            "winograd",
            "winograd_nonfused",
            "reference",
            aliases={"precomp_gemm": "implicit_precomp_gemm"},
        ),
        help="The algorithm of the forward convolution: normal chooses by shape and dtype, performance measures and takes the "
        "fastest, a name asks for that one, and reference (ours) is the slow readable kernel the others are checked against. A "
        "shape that the named one cannot take goes the way that fallback says; ctx.choices() tells what ran.",
        default="normal",
        devices=("cpu", "cuda"),
        groups=("gpu_config", "cpu_config"),
        source=SOURCE,
        example="winograd",
    ),
    Option(
        name="conv_dgrad_algo",
        type=Choice(
            "normal",
            "performance",
            "algo_0",
            "algo_1",
            "fft",
            "fft_tiling",
            "winograd",
            "winograd_nonfused",
            "reference",
        ),
        help="The algorithm of the convolution's gradient with respect to its input. algo_0 adds in no fixed order and is "
        "refused under deterministic=ON, algo_1 is a matrix product with fixed order; normal, performance and reference are as "
        "in conv_fprop_algo.",
        default="normal",
        devices=("cpu", "cuda"),
        groups=("gpu_config", "cpu_config"),
        source=SOURCE,
        example="algo_1",
    ),
    Option(
        name="conv_wgrad_algo",
        type=Choice(
            "normal",
            "performance",
            "algo_0",
            "algo_1",
            "algo_3",
            "fft",
            "fft_tiling",
            "winograd_nonfused",
            "reference",
        ),
        help="The algorithm of the convolution's gradient with respect to its weight. algo_0 and algo_3 add in no fixed order "
        "and are refused under deterministic=ON, algo_1 is a matrix product with fixed order; normal, performance and "
        "reference are as in conv_fprop_algo.",
        default="normal",
        devices=("cpu", "cuda"),
        groups=("gpu_config", "cpu_config"),
        source=SOURCE,
        example="algo_1",
    ),
    Option(
        name="conv_allow_tf32",
        type=Bool,
        help="Whether float32 convolutions may round their operands to TF32 (10 bits of mantissa) to run on tensor cores. "
        "Unset, CUDA follows torch's own flag and the CPU never rounds.",
        default=True,
        devices=("cpu", "cuda"),
        groups=("gpu_config", "cpu_config"),
        source=SOURCE,
        example=False,
    ),
    Option(
        name="matmul_allow_tf32",
        type=Bool,
        help="Whether float32 matrix products may round their operands to TF32 (10 bits of mantissa) to run on tensor cores.",
        default=False,
        devices=("cpu", "cuda"),
        groups=("gpu_config", "cpu_config"),
        source=SOURCE,
        example=True,
    ),
)
