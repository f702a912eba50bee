"""Which algorithm a convolution's kernels belong to, by their names: those that are in cuDNN's libraries, and msctx's own."""

import re
from collections.abc import Iterable

FAMILIES = (
    (r"implicit_convolve_\w*gemm", "fprop", "implicit_gemm"),
    (r"precomputed_convolve_\w*gemm", "fprop", "implicit_precomp_gemm"),
    (r"sm\d+_xmma_fprop_\w+", "fprop", "implicit_precomp_gemm"),
    (r"cutlass_\w*fprop_\w+", "fprop", "implicit_precomp_gemm"),
    (r"\w*scudnn_\d+x\d+_relu_\w+", "fprop", "implicit_precomp_gemm"),
    (r"explicit_convolve_\w*gemm", "fprop", "gemm"),
    (r"im2col4d_kernel", "fprop", "gemm"),
    (r"conv2d_grouped_direct_kernel", "fprop", "gemm"),
    (r"dgrad_engine", "dgrad", "algo_0 algo_1"),
    (r"sm\d+_xmma_dgrad_\w+", "dgrad", "algo_1"),
    (r"cutlass_\w*dgrad_\w+", "dgrad", "algo_1"),
    (r"\w*scudnn_\d+x\d+_stridedB_\w+", "dgrad wgrad", "algo_1 algo_3"),
    (r"wgrad_alg0_engine", "wgrad", "algo_0 algo_3"),
    (r"wgrad_alg1_engine", "wgrad", "algo_1 algo_3"),
    (r"sm\d+_xmma_wgrad_\w+", "wgrad", "algo_1"),
    (r"cutlass_\w*wgrad_\w+", "wgrad", "algo_1"),
    (r"fft[12]d_(r2c|c2r)_\w+", "fprop dgrad wgrad", "fft fft_tiling"),
    (r"\w*scudnn_winograd_\w+", "fprop dgrad", "winograd"),
    (r"winogradForward\w+", "fprop dgrad", "winograd_nonfused"),
    (r"winogradWgrad\w+", "wgrad", "winograd_nonfused"),
    *((rf"depthwise_{direction}_\w+", direction, "direct") for direction in ("fprop", "dgrad", "wgrad")),
)
"""What a kernel is called; of which directions and algorithms, by their words, it can be a part. cuDNN documents none of that: it is
read off its libraries. Some engines serve two algorithms; kernels of no family (transforms of layouts, products) serve many."""


def family_of(name: str, direction: str) -> set[str] | None:
    """The algorithms of *direction* that may run a kernel of this *name*: none where it is another direction's; ``None``: any."""
    for pattern, directions, algorithms in FAMILIES:
        if re.search(rf"\b{pattern}\b", name):
            return set(algorithms.split()) if direction in directions.split() else set()
    return None


def fits(algorithm: str, direction: str, names: Iterable[str]) -> bool:
    """Whether kernels of these *names* are the algorithm's: at least one is known to be, and none is another's."""
    known = [family for name in names if (family := family_of(name, direction)) is not None]
    return bool(known) and all(algorithm in family for family in known)
