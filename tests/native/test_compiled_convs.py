"""Compiled code: inductor and aot_eager forward and backward, dynamic shapes, and what inductor must not do meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from convs import GEMM, asking
from torch import Tensor, nn

import msctx

pytestmark = [
    pytest.mark.usefixtures("one_thread", "afresh", "plain_state", "torch_as_found"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
DIRECTIONS = {"fprop": "gemm", "dgrad": "algo_1", "wgrad": "algo_1"}


def network() -> nn.Module:
    torch.manual_seed(0)
    # Convolutions alone: C++ would take seconds to compile
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, stride=2))


def gradients(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = call(x)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def counted(ctx: "msctx.Context") -> dict[str, int]:
    found: dict[str, int] = {}
    for row in ctx.choices():
        assert row.ran == DIRECTIONS[row.direction]
        found[row.direction] = found.get(row.direction, 0) + row.calls
    return found


def test_forward_and_backward() -> None:
    model, x = network(), torch.randn(2, 3, 9, 8)
    right = gradients(model, model, x)
    call = torch.compile(model, backend="aot_eager")
    with msctx.context(**GEMM, fallback="error") as ctx:
        ctx.watch(call)
        for _ in range(2):
            torch.testing.assert_close(gradients(call, model, x), right, rtol=1e-4, atol=1e-4)
    assert counted(ctx) == {"fprop": 4, "dgrad": 4, "wgrad": 4}
    assert {row.module for row in ctx.choices()} == {"0", "1"}
    with asking("fprop", "gemm") as after:
        pass
    torch.testing.assert_close(gradients(call, model, x), right, rtol=1e-4, atol=1e-4)
    assert not after.choices()
    assert counted(ctx) == {"fprop": 4, "dgrad": 4, "wgrad": 4}, "compiled inside, run outside: torch's own"


def test_freezing_and_cpp_wrapper_are_off_inside() -> None:
    from torch._inductor import config

    def settings() -> tuple[bool, bool]:
        return bool(config.freezing), bool(config.cpp_wrapper)

    with config.patch(freezing=True, cpp_wrapper=True):
        with asking("fprop", "gemm"):
            with asking("dgrad", "algo_1"), config.patch(freezing=True, cpp_wrapper=True):
                assert settings() == (False, True), "AOTInductor patches it, and fails without"
            assert settings() == (False, False)
        with msctx.context(deterministic="ON"):
            assert settings() == (True, True)


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "max-autotune-no-cudagraphs"},
        {"options": {"conv_1x1_as_mm": True}},
        {"options": {"max_autotune_gemm": True, "max_autotune_conv_backends": "TRITON"}},
        {"options": {"freezing": True}},
    ],
    ids=str,
)
def test_no_setting_of_torch_compile_loses_a_convolution(said: dict[str, Any]) -> None:
    """Not while an algorithm is requested: a matrix product in place of a 1x1 convolution, an operator of oneDNN's."""
    torch.manual_seed(0)
    last = torch.channels_last
    model = nn.Sequential(nn.Conv2d(16, 8, 1), nn.Conv2d(8, 4, 3)).eval().to(memory_format=last)
    x = torch.randn(2, 16, 9, 8).to(memory_format=last)
    with torch.no_grad():
        right = model(x)
        with asking("fprop", "gemm", fallback="error") as ctx:
            torch.testing.assert_close(torch.compile(model, **said)(x), right, rtol=1e-4, atol=1e-4)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("gemm", 1)] * 2


def pointwise() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Conv2d(16, 8, 1), torch.randn(2, 16, 9, 8)


def test_convolutions_of_one_point_are_no_products_of_eager_code_or_of_code_compiled_inside() -> None:
    model, x = pointwise()
    right = gradients(model.double(), model, x.double())
    model.float()
    for call in (model, torch.compile(model, options={"conv_1x1_as_mm": True})):
        for more, rows in (({}, []), (DIRECTIONS, [*DIRECTIONS.items()])):
            requested: dict[str, Any] = {f"conv_{direction}_algo": name for direction, name in more.items()}
            with msctx.context(matmul_algo="strict", fallback="error", **requested) as ctx:
                found = gradients(call, model, x)
            torch.testing.assert_close(found, [t.float() for t in right], rtol=1e-5, atol=1e-4)
            assert [(row.direction, row.ran, row.calls) for row in ctx.choices()] == [(*row, 1) for row in rows]


@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_rules_by_module_find_the_weights_of_the_model(is_compiled_before: bool) -> None:
    """Left to itself, inductor computes with copies of them in channels_last: Dynamo compiles such code again."""
    model, x = network(), torch.randn(2, 3, 9, 8)
    call = torch.compile(model)
    if is_compiled_before:
        call(x).sum().backward()
    with msctx.context(conv_algo_rules="1: fprop=gemm, wgrad=algo_1", fallback="error") as ctx:
        ctx.watch(call)
        call(x).sum().backward()
    assert {(row.module, row.direction, row.ran) for row in ctx.choices()} == {("1", "fprop", "gemm"), ("1", "wgrad", "algo_1")}


@pytest.mark.parametrize(
    "shapes", [((1, 256), (256, 1)), ((1, 9), (9, 7)), ((3, 1, 256), (3, 256, 8)), ((3, 1, 256), (3, 256, 1))], ids=str
)
def test_products_of_one_row_stay_products_under_an_invariance(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes))
    product = torch.mm if a.dim() == 2 else torch.bmm
    with msctx.context(thread_invariant=True, fallback="error") as ctx:
        eager = product(a, b)
        assert torch.equal(torch.compile(product, dynamic=False)(a, b), eager)
        assert sum(row.calls for row in ctx.choices()) == 2
    from torch._inductor import decomposition

    assert torch.ops.aten.bmm.default in decomposition.decompositions
