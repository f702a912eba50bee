"""Transforms and modes of PyTorch around the hook: gradients of gradients, vmap, autocast, traced and scripted code."""

from typing import Any

import pytest
import torch
from convs import GEMM, PLANE, REFERENCE, asking, assert_near, conv, in_float64
from torch import Tensor, nn
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = [
    conv("plane", (2, 2, 4, 3), (3, 2, 2, 3), True, padding=1),
    conv("strided-groups", (1, 4, 5, 5), (2, 2, 2, 2), True, stride=2, groups=2, dilation=2),
    conv("1d", (2, 2, 5), (2, 2, 3), True),
    conv("3d", (1, 1, 3, 3, 2), (2, 1, 2, 2, 2)),
    conv("transposed", (1, 2, 3, 3), (2, 2, 2, 2), True, stride=2, output_padding=1, transposed=True),
]
each_small = pytest.mark.parametrize("problem", SMALL, ids=str)
each_options = pytest.mark.parametrize("options", [GEMM, REFERENCE], ids=["gemm", "reference"])


def ran(ctx: "msctx.Context") -> set[tuple[str, str]]:
    return {(row.direction, row.ran) for row in ctx.choices()}


@each_small
@each_options
def test_gradcheck_and_gradgradcheck(problem: Any, options: dict[str, str]) -> None:
    leaves = [t.requires_grad_() for t in problem.tensors(torch.float64)[:-1]]

    def function(*tensors: Tensor) -> Tensor:
        result: Tensor = problem.run(*tensors, **problem.options)
        return result

    with msctx.context(**options, fallback="error") as ctx:
        assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, fast_mode=False)
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)
    assert {row.provider for row in ctx.choices()} == {"msctx"}
    assert {row.direction for row in ctx.choices()} == {"fprop", "dgrad", "wgrad"}


# --- torch.func -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)], ids=str)
@each_options
def test_vmap_and_grad_of_vmap(options: dict[str, str], dims: tuple[int | None, int | None]) -> None:
    x, w = torch.randn(3, 2, 4, 6, 5, dtype=torch.float64), torch.randn(3, 5, 4, 3, 3, dtype=torch.float64)
    x, w = (x if dims[0] == 0 else x[0]), (w if dims[1] == 0 else w[0])

    def all_of_them(x: Tensor, w: Tensor) -> Tensor:
        return torch.vmap(lambda x, w: fn.conv2d(x, w, padding=1), dims)(x, w)

    def gradients(x: Tensor, w: Tensor) -> Any:
        return torch.func.grad(lambda x, w: all_of_them(x, w).square().sum(), argnums=(0, 1))(x, w)

    right, right_gradients = all_of_them(x, w), gradients(x, w)
    with msctx.context(**options, fallback="error") as ctx:
        torch.testing.assert_close(all_of_them(x, w), right)
        torch.testing.assert_close(gradients(x, w), right_gradients)
    assert {row.provider for row in ctx.choices()} == {"msctx"}
    assert {row.direction for row in ctx.choices()} == {"fprop", "dgrad", "wgrad"}


# --- modes ------------------------------------------------------------------------------------------------------------


def test_modes_of_gradients_and_autocast() -> None:
    x, w, b, _ = PLANE.tensors()
    right = in_float64(PLANE, PLANE.tensors()).fprop
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with asking("fprop", "winograd", fallback="error") as ctx, mode():
            y = fn.conv2d(x, w, b, padding=1)
        assert_near(y, right, ctx.choices()[0].error)
        assert y.is_inference() == (mode is torch.inference_mode)
        assert ran(ctx) == {("fprop", "winograd")}
    model = nn.Conv2d(4, 6, 3, padding=1)
    with msctx.context(**GEMM, fallback="error") as ctx, torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(2, 4, 9, 8, requires_grad=True))
        y.float().sum().backward()
    assert (y.dtype, model.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    assert {(row.ran, row.problem.dtype) for row in ctx.choices()} == {("gemm", "bfloat16"), ("algo_1", "bfloat16")}


# --- traced and scripted code ---------------------------------------------------------------------------------------

jit = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@jit
@pytest.mark.parametrize("how", ["script", "trace", "freeze"])
def test_torchscript(how: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(6, 3, 2)).eval()
    x = torch.randn(2, 4, 9, 8)
    right = model.double()(x.double())
    model.float()
    made = torch.jit.trace(model, x) if how == "trace" else torch.jit.script(model)
    made = torch.jit.freeze(made) if how == "freeze" else made
    with msctx.context(**GEMM, fallback="error") as ctx:
        for count in range(1, 4):  # the first runs profile, the later ones are optimised
            y = made(x)
            assert_near(y, right, 1e-5)
            assert [row.calls for row in ctx.choices()] == [count, count]
        if how != "freeze":
            made(x).sum().backward()
    expected = {("fprop", "gemm")} if how == "freeze" else {("fprop", "gemm"), ("dgrad", "algo_1"), ("wgrad", "algo_1")}
    assert ran(ctx) == expected


def test_the_operator_of_traced_code_is_hooked_once() -> None:
    x, w, b, _ = PLANE.tensors()
    right = fn.conv2d(x, w, b, padding=1)

    def traced() -> Tensor:
        geometry: list[Any] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True]
        y: Tensor = torch.ops.aten._convolution(x, w, b, *geometry)
        return y

    assert torch.equal(traced(), right)
    with asking("fprop", "gemm", fallback="error") as ctx:
        torch.testing.assert_close(traced(), right, rtol=1e-4, atol=1e-4)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("gemm", 1)]
    with asking("fprop", "winograd", fallback="silent") as ctx:
        fn.conv2d(x, w, stride=2)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("torch", 1)], "torch's own path asks again, and is not counted"


def test_meta_and_fake_tensors_are_not_ours_and_complex_convolutions_are_made_of_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, w, *_ = PLANE.tensors()
    with asking("fprop", "gemm", fallback="error") as ctx:
        assert fn.conv2d(x.to("meta"), w.to("meta")).shape == (2, 6, 7, 6)
        with FakeTensorMode() as mode:
            assert fn.conv2d(mode.from_tensor(x), mode.from_tensor(w)).shape == (2, 6, 7, 6)
        assert not ctx.choices()
        x, w = torch.randn(1, 2, 5, 5, dtype=torch.complex64), torch.randn(3, 2, 3, 3, dtype=torch.complex64)
        y = fn.conv2d(x, w)
        assert ran(ctx) == {("fprop", "gemm")}
    right = fn.conv2d(x.to(torch.complex128), w.to(torch.complex128))
    torch.testing.assert_close(y, right.to(torch.complex64), rtol=1e-4, atol=1e-4)
