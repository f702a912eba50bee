"""A context as a decorator: what it wraps, and what it refuses because it would outlive its call."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from context_helpers import OwnError, State, threads

import msctx


def test_decorator(exact_state: State) -> None:
    before = exact_state()

    @msctx.context(runtime_num_threads=1)
    def count(extra: int, *, more: int = 0) -> int:
        """How many."""
        return threads() + extra + more

    assert count(10, more=100) == 111
    assert exact_state() == before
    assert (count.__name__, count.__doc__) == ("count", "How many.")

    @msctx.context(runtime_num_threads=1)
    def fail() -> None:
        raise OwnError

    with pytest.raises(OwnError):
        fail()
    assert exact_state() == before


def test_decorated_methods_and_recursion() -> None:
    ctx = msctx.context(runtime_num_threads=1)

    class Model:
        @ctx
        def depth(self, n: int) -> list[int]:
            return [threads(), *(self.depth(n - 1) if n else [])]

    assert Model().depth(5) == [1] * 6
    assert msctx.current() is not ctx


def a_generator() -> Iterator[None]:
    yield


async def a_coroutine() -> None: ...


async def an_async_generator() -> Any:
    yield


class AClass:
    pass


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(a_generator, id="generator"),
        pytest.param(a_coroutine, id="coroutine"),
        pytest.param(an_async_generator, id="async generator"),
        pytest.param(AClass, id="class"),
        pytest.param(functools.partial(a_generator), id="partial generator"),
        pytest.param(functools.partial(a_coroutine), id="partial coroutine"),
        pytest.param(5, id="number"),
        pytest.param(None, id="None"),
    ],
)
def test_decorating_what_outlives_its_call_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError):
        msctx.context(seed=0)(thing)
