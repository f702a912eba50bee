"""The operators that precision policies govern, by PyTorch's names and by CANN's, and what kind of operator each is.

An overload is governed with its name (``sum`` and ``sum.dim_IntList``); forms that write into a given tensor (``add_``, ``out=``) are
not, they have its dtype. An operator that is not here is made of others that are, as ``outer`` is a ``mul``, or only moves values.
"""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Annotated

from msctx.errors import nearest_of
from msctx.options.kinds import BadValue, TextKind, show
from msctx.shipped import CONFIGS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MATRIX = _words("""
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution cudnn_convolution
    cudnn_convolution_transpose mkldnn_rnn_layer _cudnn_rnn miopen_rnn mm addmm bmm baddbmm addbmm mv addmv addr matmul linear
    bilinear einsum tensordot inner dot vdot chain_matmul linalg_multi_dot linalg_vecdot _addmm_activation lstm gru rnn_tanh
    rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell
    scaled_dot_product_attention _scaled_dot_product_flash_attention _native_multi_head_attention
    _transformer_encoder_layer_fwd _sparse_mm _sparse_addmm _sparse_sparse_matmul sparse_sampled_addmm smm hspmm sspaddmm
""")
"""Matrix multiplications: the cube unit of an Ascend, tensor cores, AMX."""

SENSITIVE = _words("""
    acos asin cosh erfinv exp exp2 expm1 log log10 log2 log1p pow reciprocal rsqrt sinh tan softplus softmax log_softmax
    _softmax _log_softmax _safe_softmax logsumexp logcumsumexp cumsum cumprod prod sum trace layer_norm native_layer_norm
    rms_norm group_norm native_group_norm norm frobenius_norm nuclear_norm linalg_vector_norm linalg_matrix_norm renorm dist
    pdist cdist cosine_similarity binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss ctc_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    multilabel_margin_loss_forward nll_loss nll_loss2d nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss cross_entropy_loss upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa quantile nanquantile histc polar stft istft
    fake_quantize_per_tensor_affine fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2
    fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn _lu_with_info cholesky cholesky_inverse cholesky_solve inverse geqrf
    orgqr ormqr qr svd triangular_solve lu_solve pinverse matrix_exp linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det
    linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_matrix_sqrth linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve avg_pool3d
""")
"""Operators that need float32 under mixed precision, by PyTorch's lists for CUDA and CPU; avg_pool3d has no other kernel."""

STRICT = _words("""
    addcdiv addcmul atan2 cross linalg_cross grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback lerp
    prelu rrelu
""")
"""Of the other vector operators those that want all their inputs in one dtype: the widest of them, where a policy sets no other."""

_VECTOR = _words("""
    abs= acosh add sub rsub mul div angle asinh atan atanh ceil= clamp= clamp_max= clamp_min= copysign= cos deg2rad rad2deg
    digamma erf erfc floor= fmax= fmin= fmod frac hypot i0 igamma igammac ldexp lgamma log_sigmoid logaddexp logaddexp2
    logit maximum= minimum= mvlgamma nan_to_num= neg= nextafter= polygamma remainder round= sigmoid sign= sin sinc sqrt
    square tanh trunc= xlogy float_power floor_divide special_bessel_j0 special_bessel_j1 special_entr special_erfcx
    special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta celu elu gelu glu
    hardshrink hardsigmoid hardswish hardtanh= leaky_relu mish relu= relu6= selu silu softshrink threshold=
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    adaptive_max_pool1d= adaptive_max_pool2d= adaptive_max_pool3d= avg_pool1d avg_pool2d max_pool1d= max_pool2d= max_pool3d=
    max_pool1d_with_indices= max_pool2d_with_indices= max_pool3d_with_indices= fractional_max_pool2d= fractional_max_pool3d=
    max_unpool2d= max_unpool3d= batch_norm instance_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit mean
    nanmean nansum var std var_mean std_mean amax= amin= aminmax= max= min= median= nanmedian= kthvalue= mode= cummax=
    cummin= diff trapezoid cumulative_trapezoid corrcoef cov dropout= alpha_dropout feature_dropout= native_dropout=
    masked_fill= segment_reduce
""")
"""The other operators that compute; = marks those that give one of their inputs' values, or round nothing."""
VECTOR = tuple(name.removesuffix("=") for name in _VECTOR)
EXACT = tuple(name.removesuffix("=") for name in _VECTOR if name.endswith("="))
"""They have one implementation."""

MOVING = _words("""
    cat stack where gather index_select embedding embedding_bag index index_put index_add index_copy index_fill index_reduce
    masked_scatter masked_select scatter scatter_add scatter_reduce take take_along_dim reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad1d replication_pad2d replication_pad3d view_as_complex
""")
"""Operators that only move values, or add them up: they keep their dtype, the widest of several."""

BACKWARD = _words("""
    convolution_backward mkldnn_rnn_layer_backward _cudnn_rnn_backward linear_backward _embedding_bag_dense_backward
    embedding_dense_backward native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    batch_norm_backward cudnn_batch_norm_backward _softmax_backward_data _log_softmax_backward_data nll_loss_backward
    nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward threshold_backward gelu_backward
    silu_backward sigmoid_backward tanh_backward leaky_relu_backward elu_backward hardswish_backward hardtanh_backward
    max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_efficient_attention_backward
""")
"""Of what computes gradients alone, the usual operators: only counted. Other gradients are made of the operators above."""

ALIASES = dict(
    pair.split(":")
    for pair in _words("""
    divide:div true_divide:div multiply:mul subtract:sub absolute:abs negative:neg clip:clamp arccos:acos arcsin:asin
    arctan:atan arctan2:atan2 linalg_matmul:matmul special_expit:sigmoid special_softmax:softmax
    special_log_softmax:log_softmax special_logsumexp:logsumexp concat:cat concatenate:cat det:linalg_det
""")
)
"""Other names that PyTorch itself has for an operator."""

QUANTIZING = _words("""
    quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic quantized_lstm quantized_gru quantized_lstm_cell
    quantized_gru_cell quantized_rnn_tanh_cell quantized_rnn_relu_cell quantized::linear_dynamic quantized::linear_relu_dynamic
    quantized::linear_dynamic_fp16 quantized::linear_relu_dynamic_fp16 quantized::conv1d_dynamic quantized::conv2d_dynamic
    quantized::conv3d_dynamic quantized::conv_transpose1d_dynamic quantized::conv_transpose2d_dynamic
    quantized::conv_transpose3d_dynamic quantized::quantized_lstm_cell_dynamic quantized::quantized_gru_cell_dynamic
    quantized::quantized_rnn_tanh_cell_dynamic quantized::quantized_rnn_relu_cell_dynamic
""")
"""Quantization, which takes only float32."""

CLASSES = {
    "matrix": MATRIX,
    "sensitive": SENSITIVE,
    "strict": STRICT,
    "vector": VECTOR,
    "moving": MOVING,
    "quantizing": QUANTIZING,
}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
"""Operator → its class; the order is that in which the native core knows them."""


@cache
def cann() -> dict[str, tuple[str, ...]]:
    """CANN's type of operator → the names that PyTorch has for it.

    None: PyTorch has no operator for it (it computes an LRN of others, RoI alignment is torchvision's), it is a gradient, which
    computes in the dtypes of its forward pass, or it computes nothing.
    """
    rows = json.loads((CONFIGS / "cann_operators.json").read_bytes())
    return {name: _words(operators) for name, operators in rows.items()}


def resolve(name: str) -> tuple[str, ...] | None:
    """PyTorch's operators for a name of PyTorch's (``aten::mm``, ``mm``, ``mm.default``) or a type of CANN's; ``None``: unknown."""
    if name in cann():
        return cann()[name]
    plain = name.removeprefix("aten::").partition(".")[0]
    plain = ALIASES.get(plain, plain)
    return (plain,) if plain in CLASS_OF else None


@cache
def _known() -> dict[str, str]:
    return {name.lower(): name for name in (*CLASS_OF, *ALIASES, *cann())}


def _operator(text: str) -> str:
    name = text.strip()
    if resolve(name) is None:
        raise BadValue(f"{show(name)} is no operator that policies govern", suggestion=partial(_nearest, name))
    return name


def _nearest(name: str) -> str:
    return " or ".join(_known()[found] for found in nearest_of(name.removeprefix("aten::").lower(), _known(), 3))


def _operators(text: str) -> str:
    return ",".join(map(_operator, text.split(",")))


_ALLOWED = "PyTorch's name of an operator (mm, conv2d, softmax …) or CANN's type (MatMul, Conv2D, SoftmaxV2 …)"
Operator = Annotated[str, TextKind(_ALLOWED, check=_operator)]
Operators = Annotated[str, TextKind(_ALLOWED, ",", check=_operators)]
"""Several of them, separated by commas."""
