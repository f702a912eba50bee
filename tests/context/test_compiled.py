"""Compiled code: contexts inside and around it, and what fullgraph=True says of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from context_helpers import OwnError, State, context_module

import msctx


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend="eager", **options)


def test_a_with_block_inside_compiled_code(plain_state: State) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with msctx.context(deterministic="ON", runtime_num_threads=1):
            y = y * 2 if torch.are_deterministic_algorithms_enabled() else y * 100
        return y if torch.are_deterministic_algorithms_enabled() else y - 1

    call = compiled(work)
    before = plain_state()
    for _ in range(3):
        assert call(torch.ones(2)).tolist() == [3, 3]
        assert plain_state() == before
    assert context_module.stack.scopes == []


def test_an_exception_in_a_with_block_inside_compiled_code(plain_state: State) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        with msctx.context(deterministic="ON"):
            if x.sum() > 0:
                raise OwnError
            return x

    call = compiled(work)
    before = plain_state()
    for _ in range(2):
        with pytest.raises(OwnError):
            call(torch.ones(2))
        assert plain_state() == before
        call(-torch.ones(2))
        assert plain_state() == before


def test_set_context_and_decorators_inside_compiled_code(base: None, plain_state: State) -> None:
    @msctx.context(deterministic="ON")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.are_deterministic_algorithms_enabled() else 100)

    def work(x: torch.Tensor) -> torch.Tensor:
        msctx.set_context(runtime_num_threads=1)
        y = inner(x) * torch.get_num_threads()
        msctx.reset_context()
        return y

    call = compiled(work)
    before = plain_state()
    for _ in range(2):
        assert call(torch.ones(1)).tolist() == [2]
        assert plain_state() == before


def test_a_compiled_function_inside_a_with_block() -> None:
    call = compiled(lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3), fullgraph=True)
    for _ in range(2):
        with msctx.context(deterministic="ON"):
            assert call(torch.ones(1)).tolist() == [2]
        assert call(torch.ones(1)).tolist() == [3]


def _enter(x: torch.Tensor) -> torch.Tensor:
    with msctx.context(deterministic="ON"):
        return x * 2


def _set(x: torch.Tensor) -> torch.Tensor:
    msctx.set_context(runtime_num_threads=1)
    return x * 2


def _reset(x: torch.Tensor) -> torch.Tensor:
    msctx.reset_context()
    return x * 2


@pytest.mark.parametrize("work", [_enter, _set, _reset])
def test_fullgraph_says_why_it_cannot(plain_state: State, work: Callable[..., Any]) -> None:
    call = compiled(work, fullgraph=True)
    before = plain_state()
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="a msctx context cannot be entered or changed inside compiled code"
    ):
        call(torch.ones(1))
    assert plain_state() == before


@pytest.mark.parametrize("options", [{"deterministic": "ON"}, {"precision_mode": "force_fp32"}, {"op_timeout": 100}])
def test_a_context_around_each_step_compiles_once(options: dict[str, Any]) -> None:
    compilations = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    torch.compiler.reset()
    model = torch.nn.Linear(4, 4)
    step = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(12):
        with msctx.context(**options).watch(model):
            step(torch.ones(2, 4))
    assert compilations == 1
    torch.compiler.reset()
