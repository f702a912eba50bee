"""Flushed denormals: in every thread of the pool, in compiled arithmetic of Python's own, and exactly as before afterwards."""

import pytest
import torch

import msctx

TINY = 1e-39


def shares() -> tuple[float, bool]:
    """How much of an operator's result is zero that the whole pool computes, and a single product."""
    many = torch.full((1 << 20,), TINY)
    return float((many * 1.0 == 0).float().mean()), bool(torch.tensor([TINY]) * 1.0 == 0)


@pytest.fixture
def two_threads(threads):
    with threads(2):
        yield


@pytest.mark.usefixtures("two_threads")
def test_every_thread_of_the_pool_follows_and_follows_back() -> None:
    assert shares() == (0.0, False)  # the pool's threads are there before the switch is moved
    with msctx.context(flush_denormal=True):
        assert shares() == (1.0, True)
        with msctx.context(flush_denormal=False):
            assert shares() == (0.0, False)
        assert shares() == (1.0, True)
    assert shares() == (0.0, False)


@pytest.mark.usefixtures("two_threads")
def test_threads_that_a_smaller_number_leaves_out_follow_when_they_are_back() -> None:
    assert shares() == (0.0, False)
    with msctx.context(runtime_num_threads=1), msctx.context(flush_denormal=True), msctx.context(runtime_num_threads=2):
        assert shares() == (1.0, True)
        with msctx.context(runtime_num_threads=1), msctx.context(flush_denormal=False), msctx.context(runtime_num_threads=2):
            assert shares() == (0.0, False)
    with msctx.context(flush_denormal=True):
        torch.set_num_threads(1)
    torch.set_num_threads(2)
    assert shares() == (0.0, False)


@pytest.mark.parametrize("algorithm", ["gemm", "winograd", "direct", "fft_tiling", "implicit_gemm"])
def test_convolutions_of_our_own_follow(algorithm: str) -> None:
    x, w = torch.full((1, 16, 12, 12), 1e-21), torch.full((16, 16, 3, 3), 1e-21)
    for flushed in (False, True):
        with msctx.context(conv_fprop_algo=algorithm, flush_denormal=flushed) as ctx:
            y = torch.nn.functional.conv2d(x, w, padding=1)
        assert [row.ran for row in ctx.choices()] == [algorithm]
        assert (y == 0).all() if flushed else (y != 0).all()
