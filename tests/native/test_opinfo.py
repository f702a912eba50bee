"""PyTorch's own samples of every convolution operator, under every algorithm; and its own errors for bad geometry."""

from functools import cache
from typing import Any

import pytest
import torch
from convs import DIRECTIONS, GEMM, largest
from recorded import op_db
from torch import Tensor
from torch.nn import functional as fn

import msctx

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:Using padding='same'")]
OPERATORS = [f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)]


@cache
def opinfo(operator: str) -> Any:
    (found,) = [op for op in op_db() if op.name == f"nn.functional.{operator}"]
    return found


def outcome(operator: str, tensors: list[Tensor], positional: list[Any], named: dict[str, Any]) -> list[Tensor]:
    """The result, and the gradients of each tensor for a gradient of ones and twos."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = getattr(fn, operator)(*leaves, *positional, **named)
    gradient = (torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape) % 2 + 1).to(y)
    return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


@cache
def samples(operator: str, dtype: torch.dtype) -> list[tuple[Any, list[Tensor], list[Tensor]]]:
    """Each sample, what it is in float64, and the same of absolute values: the sums of all products' sizes."""
    found = []
    for sample in opinfo(operator).sample_inputs("cpu", dtype, requires_grad=False):
        values = [sample.input, *sample.args]
        named = dict(sample.kwargs)
        if isinstance(named.get("bias"), Tensor):
            values.append(named.pop("bias"))
        tensors = [v for v in values if isinstance(v, Tensor)]
        rest = [v for v in values if not isinstance(v, Tensor)]
        call = (operator, rest, named)
        right = outcome(operator, [t.double() for t in tensors], rest, named)
        sizes = outcome(operator, [t.double().abs() for t in tensors], rest, named)
        found.append(((call, tensors), right, sizes))
    return found


def assert_right(
    operator: str, dtype: torch.dtype, options: dict[str, str], error: float, device: str = "cpu"
) -> dict[str, set[str]]:
    """Every sample under the options; returns what ran, by direction."""
    ran: dict[str, set[str]] = {direction: set() for direction in DIRECTIONS}
    for ((_, rest, named), tensors), right, sizes in samples(operator, dtype):
        with msctx.context(**options, fallback="silent") as ctx:
            got = outcome(operator, [t.to(device) for t in tensors], rest, named)
        for ours, exact, size in zip(got, right, sizes, strict=True):
            assert ours.shape == exact.shape
            off = largest(ours.cpu().double() - exact)
            assert off <= error * largest(size), (operator, [t.shape for t in tensors], rest, named)
        for row in ctx.choices():
            ran[row.direction].add(row.ran)
    return ran


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_heuristics_are_right_too(operator: str) -> None:
    for name in ("normal", "performance"):
        assert_right(operator, torch.float32, {f"conv_{d}_algo": name for d in DIRECTIONS}, 3e-5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.usefixtures("torch_as_found")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_a_gpu(operator: str, dtype: torch.dtype) -> None:
    """By cuDNN's algorithms and our own kernels."""
    torch.backends.cudnn.allow_tf32 = False
    error = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype]
    for names in (
        ("implicit_gemm", "algo_1", "algo_1"),
        ("direct", "algo_0", "algo_3"),
        ("fft_tiling", "fft", "fft"),
        ("winograd_nonfused", "winograd", "winograd_nonfused"),
    ):
        options = {f"conv_{direction}_algo": name for direction, name in zip(DIRECTIONS, names, strict=True)}
        assert_right(operator, dtype, options, error, "cuda")


# --- errors -----------------------------------------------------------------------------------------------------------


def failure(function: Any, *args: Any, **kwargs: Any) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (whatever torch raises is compared)
        function(*args, **kwargs)
    return raised.type, str(raised.value)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


BAD: dict[str, tuple[str, list[Tensor], dict[str, Any]]] = {
    "reach-too-large": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 3, 3)], {"dilation": 3}),
    "no-window": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 0, 3)], {}),
    "stride-0": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 3, 3)], {"stride": 0}),
    "groups-0": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 3, 3)], {"groups": 0}),
    "bias-shape": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 3, 3), zeros(4, 1)], {}),
    "weight-dtype": ("conv2d", [zeros(1, 2, 6, 6), zeros(4, 2, 3, 3, dtype=torch.float64)], {}),
    "transposed-channels": ("conv_transpose2d", [zeros(1, 3, 8, 8), zeros(2, 4, 3, 3)], {}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_geometry_gives_pytorchs_own_error(case: str) -> None:
    operator, tensors, options = BAD[case]
    own = failure(getattr(fn, operator), *tensors, **options)
    for name in ("gemm", "winograd", "fft", "reference", "normal"):
        with msctx.context(conv_fprop_algo=name, fallback="error") as ctx:
            assert failure(getattr(fn, operator), *tensors, **options) == own, name
        assert not ctx.choices(), "nothing ran"


def test_what_the_backward_operator_refuses_it_refuses_inside_too() -> None:
    x, w = zeros(1, 2, 6, 6), zeros(4, 2, 3, 3)
    geometry: list[Any] = [[4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]]
    backward = torch.ops.aten.convolution_backward
    right = (1, 4, 4, 4)
    # not of another number of images: there torch's own path for small problems does not look, and may read beyond the end
    shapes = [(1, 4, 5, 4), (1, 4, 3, 4), (1, 3, 4, 4), (4, 4, 4), (1, *right), (1, 1, 1, 1), (64,), ()]
    dtypes = [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
    wrong = [*(zeros(*shape) for shape in shapes), *(zeros(*right, dtype=dtype) for dtype in dtypes)]
    for gradient in [*wrong, zeros(*right).to_sparse()]:
        own = failure(backward, gradient, x, w, *geometry)
        with msctx.context(**GEMM, fallback="error") as ctx:
            assert failure(backward, gradient, x, w, *geometry) == own
        assert not ctx.choices(), "nothing ran"
