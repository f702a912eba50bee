"""Groups of operators and what stays between them, in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import dropout

import msctx
from msctx.graph.groups import Rules, fuse, groups_in

OPERATORS: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda x, y: x + y,
    lambda x, y: x.sin(),
    lambda x, y: x - y.sum(0),
    lambda x, y: torch.var_mean(x, 0)[0] + x,
    lambda x, y: x @ y,
    lambda x, y: torch.rand_like(x),
    lambda x, y: dropout(x, 0.5, training=True),
    lambda x, y: torch.native_dropout(x, 0.5, True)[0] + y,
)
STEPS = st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=12)
RULES = st.builds(
    Rules,
    part=st.integers(0, 2),
    size=st.sampled_from([0, 0, 1, 2]),
    depth=st.sampled_from([None, None, 1]),
    beside=st.booleans(),
    least=st.integers(1, 2),
)


def captured(function: Callable[..., Any], *args: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*args)


def check(graph: fx.GraphModule, rules: Rules, *args: torch.Tensor) -> list[list[str]]:
    """The names of the nodes of each group, of which none is in two; results and random numbers are those of the graph."""
    groups = groups_in(graph, rules)
    fused = fuse(graph, groups, lambda part, _: lambda given: part(*given))
    results = []
    for module in (graph, fused):
        torch.manual_seed(0)
        results.append(module(*args))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    names = [[node.name for node in group] for group in groups]
    assert len({name for group in names for name in group}) == sum(map(len, names))
    return names


@given(STEPS, RULES)
def test_any_program_computes_the_same_in_groups(steps: list[Any], rules: Rules) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = [x, y]
        for operator, first, second in steps:
            made.append(operator(made[first % len(made)], made[second % len(made)]))
        return (*made[2:],)

    args = torch.rand(4, 4), torch.rand(4, 4)
    check(captured(program, *args), rules, *args)


def test_a_group_that_would_run_before_and_after_random_numbers_is_divided_there() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = x.relu() / 2
        first = torch.bernoulli(early)
        return first, (early + torch.rand_like(y)).sin(), x.cos()

    args = torch.rand(4), torch.rand(4)
    assert check(captured(program, *args), Rules(part=1), *args) == [["relu", "div"], ["add", "sin", "cos"]]


def test_a_group_around_random_numbers_stays_where_they_need_nothing_of_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * torch.rand(4)).cos() + torch.rand(4)

    x = torch.rand(4)
    assert check(captured(program, x), Rules(part=1), x) == [["sin", "mul", "cos", "add"]]


@pytest.mark.full
def test_a_model_with_two_dropouts_draws_the_numbers_of_eager_code() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.relu(x)
        return dropout(hidden) @ x, hidden + dropout(y)

    args, results = (torch.rand(4, 4), torch.rand(4, 4)), []
    torch._dynamo.reset()
    with msctx.context(graph_kernel_flags="--opt_level=1", jit_syntax_level="STRICT"):
        for call in (program, msctx.jit(program)):
            torch.manual_seed(0)
            results.append(call(*args))
    torch.testing.assert_close(*results)
