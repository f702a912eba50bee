"""max_call_depth in force: nested modules are counted right, in each thread alone and after every exception."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from context_helpers import OwnError, in_thread

import msctx


class Nest(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module | None, error: type[BaseException] | None = None) -> None:
        super().__init__()
        self.inner, self.error = inner, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error:
            raise self.error
        return x + 1 if self.inner is None else self.inner(x)


def nest(depth: int, error: type[BaseException] | None = None) -> torch.nn.Module:
    net = Nest(None, error)
    for _ in range(depth - 1):
        net = Nest(net)
    return net


def test_max_call_depth() -> None:
    net, x = nest(100), torch.ones(1)
    for depth in (80, 99):
        with (
            msctx.context(max_call_depth=depth),
            pytest.raises(RuntimeError, match=f"Exceed function call depth limit {depth}"),
        ):
            net(x)
    for depth in (100, 2000):
        with msctx.context(max_call_depth=depth):
            assert net(x) == net(x) == 2
    with msctx.context(max_call_depth=80):
        for _ in range(5):
            assert nest(80)(x) == 2
    assert net(x) == 2


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 has a fixed limit for calls through C")
def test_max_call_depth_reaches_beyond_pythons_limit() -> None:
    net, x = nest(400), torch.ones(1)
    with pytest.raises(RecursionError):
        net(x)
    with msctx.context(max_call_depth=2000):
        assert net(x) == 2


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
def test_max_call_depth_counts_right_after_an_exception(error: type[BaseException]) -> None:
    def work() -> None:
        for _ in range(3):
            with msctx.context(max_call_depth=10):
                for _ in range(4):
                    with pytest.raises(error):
                        nest(9, error)(torch.ones(1))
                assert nest(10)(torch.ones(1)) == 2

    in_thread(work)  # the count is each thread's own: a wrong one stays out of the other tests


def test_max_call_depth_counts_each_thread_alone() -> None:
    barrier = threading.Barrier(2)

    class Meet(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            barrier.wait(10)
            return x + 1

    net = Nest(Nest(Meet()))
    with msctx.context(max_call_depth=3), ThreadPoolExecutor(2) as pool:
        assert [result.item() for result in pool.map(net, [torch.ones(1)] * 2)] == [2, 2]
