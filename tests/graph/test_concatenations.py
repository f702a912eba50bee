"""enable_concat_eliminate_opt: what is split and put together again is left whole, and all values and aliases stay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import msctx
from msctx.graph.inductor_passes import Concatenations

OPTION = "parallel_speed_up_json_path.enable_concat_eliminate_opt"
X, W = (
    torch.randn(8, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(6, 6, generator=torch.Generator().manual_seed(2)),
)


def halves(x: torch.Tensor, w: torch.Tensor, layers: int = 3) -> torch.Tensor:
    """A batch in two halves, which each layer splits and puts together."""
    for _ in range(layers):
        a, b = x.chunk(2)
        x = torch.cat([a @ w, b @ w])
    return x.sum()


def counted(graph: torch.fx.GraphModule) -> dict[str, int]:
    names = [
        str(node.target).split(".")[1]
        for node in graph.graph.nodes
        if node.op == "call_function" and "aten" in str(node.target)
    ]
    return {name: names.count(name) for name in ("cat", "split", "slice", "mm")}


def through(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[dict[str, int], dict[str, int]]:
    """Operators before and after; the values are equal."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    before, expected = counted(graph), graph(*inputs)
    Concatenations(lambda: None)(graph.graph)
    graph.graph.lint()
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), expected, rtol=0, atol=0)
    return before, counted(graph)


def test_halves_stay_halves() -> None:
    before, after = through(lambda x, w: halves(x, w), X, W)
    assert (before["cat"], before["split"]) == (3, 3)
    assert (after["cat"], after["split"], after["mm"]) == (1, 1, before["mm"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.cat(x.sin().split(2)) @ w,
        lambda x, w: torch.cat(x.sin().split([2, 4], dim=-1), 1) @ w,
        lambda x, w: torch.cat([(y := x.sin())[:, :-2], y[:, -2:]], dim=-1) @ w,
        lambda x, w: torch.cat([x.sin(), x.cos()])[8:] @ w,
        lambda x, w: torch.cat([x.sin(), x.cos()], -1).chunk(2, -1)[0].relu() @ w,
    ],
)
def test_what_is_the_same_goes(function: Callable[..., Any]) -> None:
    before, after = through(function, X, W)
    assert before["cat"] == 1
    assert (after["cat"], after["slice"], after["split"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.cat(x.sin().split(4)[::-1]) @ w,  # another order
        lambda x, w: torch.cat([(y := x.sin())[:3], y[4:]]) @ w,  # a gap
        lambda x, w: torch.cat([(y := x.sin())[::2], y[1::2]]) @ w,
        lambda x, w: torch.cat(x.sin().split(3, dim=1), 0) @ w[:3],  # another axis
        lambda x, w: torch.cat([x.sin(), x.cos()])[4:12] @ w,  # a part of each
        lambda x, w: torch.cat([w.half(), x])[:6] @ w,  # another dtype than the part
        lambda x, w: torch.cat(x.sin().t().split(2)).view(-1).sin(),  # other strides
        lambda x, w: torch.cat(x.split(4)) @ w,  # the caller may write to an input before the backward pass
        lambda x, w: torch.cat(x.sin().split(4)),  # new memory, which a caller may write to
        lambda x, w: torch.cat([x.sin(), x], 1)[:, 6:].as_strided((2, 2), (12, 1)).clone(),
    ],
)
def test_all_else_stays(function: Callable[..., Any]) -> None:
    before, after = through(function, X, W)
    assert after == before


@pytest.mark.full
def test_compiled_programs_have_the_same_values_gradients_and_aliases(request: pytest.FixtureRequest) -> None:
    def columns(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        for _ in range(3):
            a, b = x.chunk(2, -1)
            x = torch.cat([(a @ w[:3, :3]).tanh(), b.sin()], -1)
        return [x.sum(0)]

    def returned(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = (x @ w).tanh()
        return [y, torch.cat(y.split(4)), torch.cat(x.split(2)), torch.cat(x.split(2)) @ w]

    def written(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = x * 1
        z = torch.cat(y.split(4))
        return [z.square(), torch.cat([y, z]).split(8)[0].exp(), y.add_(1)]

    request.addfinalizer(torch._dynamo.reset)
    for function in (columns, returned, written):
        results = []
        for run, options in ((function, {}), (torch.compile(function), {OPTION: True})):
            x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
            with msctx.context(**options):
                made = run(x, w)
                whole: Any = sum(one.sum() for one in made)
                gradients = torch.autograd.grad(whole, (x, w), allow_unused=True)
            same = [a.data_ptr() == b.data_ptr() for a in (*made, x) for b in (*made, x)]
            results.append(([one.detach() for one in made], gradients, same))
        torch.testing.assert_close(results[1][:2], results[0][:2])
        assert results[1][2] == results[0][2], function.__name__
