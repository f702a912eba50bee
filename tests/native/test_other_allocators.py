"""Another library's allocator in the place of torch's: msctx's does not take it away, before a scope or inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_device
import pytest


@pytest.fixture
def beside(passes: Callable[..., str]) -> Callable[[str], str]:
    """Runs a program that has the other library (compiled in some seconds, and then kept)."""
    if why := fake_device.obstacle():
        pytest.skip(why)
    path = fake_device.library(Path(__file__).with_name("other_allocator.cpp"))
    return lambda code: passes(f"import ctypes, warnings, torch, msctx\nother = ctypes.CDLL({str(path)!r})\n{code}")


def test_one_that_was_there_before_refuses_a_cap_with_the_reason(beside: Callable[[str], str]) -> None:
    beside("""
other.take(0)
try:
    with msctx.context(max_device_memory="1MB"):
        raise AssertionError
except msctx.errors.SwitchError as error:
    assert "another library has put an allocator of its own in place of torch's. Nothing was changed" in str(error), error
assert other.is_in_force() and msctx.memory_stats()["caps"] == []
""")


def test_one_that_comes_inside_a_scope_ends_the_cap_and_stays(beside: Callable[[str], str]) -> None:
    beside("""
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    with msctx.context(max_device_memory="1MB"):
        held = torch.ones(2**19, dtype=torch.uint8)
        other.take(1)
        torch.empty(2**21, dtype=torch.uint8)
        assert msctx.memory_stats()["caps"][0]["current_bytes"] == 2**19
assert any("native.memory_pool" in str(w.message) for w in found), found
assert other.is_in_force() and int(held.sum()) == 2**19
del held
assert msctx.memory_stats()["current_bytes"] == 0
""")
