"""Another library's allocator in the place of torch's: msctx's does not take it away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_device
import pytest


def test_one_that_comes_inside_a_scope_ends_the_cap_and_stays_and_refuses_the_next(passes: Callable[..., str]) -> None:
    """The other library is compiled in some seconds, and then kept."""
    if why := fake_device.obstacle():
        pytest.skip(why)
    passes(f"""
import ctypes, warnings, torch, msctx
other = ctypes.CDLL({str(fake_device.library(Path(__file__).with_name("other_allocator.cpp")))!r})
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    with msctx.context(max_device_memory="1MB"):
        held = torch.ones(2**19, dtype=torch.uint8)
        other.take(0)
        torch.empty(2**21, dtype=torch.uint8)
        assert msctx.memory_stats()["caps"][0]["current_bytes"] == 2**19
assert any("native.memory_pool" in str(w.message) for w in found), found
assert other.is_in_force() and int(held.sum()) == 2**19
del held
assert msctx.memory_stats()["current_bytes"] == 0
try:
    with msctx.context(max_device_memory="1MB"):
        raise AssertionError
except msctx.errors.SwitchError as error:
    assert "another library has put an allocator of its own in place of torch's. Nothing was changed" in str(error), error
assert other.is_in_force() and msctx.memory_stats()["caps"] == []
""")
