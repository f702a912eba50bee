"""Another library's allocator in the place of torch's: the pool does not take it away, before a scope or inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_device
import pytest

Passes = Callable[..., str]
START = """
import ctypes, warnings, torch, msctx
from msctx.errors import SwitchError
other = ctypes.CDLL({path!r})

def refused():
    try:
        with msctx.context(max_device_memory="1MB"):
            return ""
    except SwitchError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def start() -> str:
    """The beginning of a program that has the other library (compiled in some seconds, and then kept)."""
    if why := fake_device.obstacle():
        pytest.skip(why)
    return START.format(path=str(fake_device.library(Path(__file__).with_name("other_allocator.cpp"))))


@pytest.mark.full
@pytest.mark.parametrize("priority", [0, 1])
def test_one_that_was_there_before_refuses_the_pool_with_the_reason(priority: int, start: str, passes: Passes) -> None:
    passes(f"""{start}
other.take({priority})
why = refused()
assert "another library has put an allocator of its own in place of torch's" in why, why
assert "Nothing was changed" in why
assert other.is_in_force() and msctx.memory_stats()["caps"] == []
torch.empty(2**21, dtype=torch.uint8)
other.give_back({priority})
""")


def test_one_that_comes_inside_a_scope_ends_the_cap_and_stays(start: str, passes: Passes) -> None:
    passes(f"""{start}
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    with msctx.context(max_device_memory="1MB"):
        held = torch.ones(2**19, dtype=torch.uint8)
        other.take(1)
        torch.empty(2**21, dtype=torch.uint8)
        assert msctx.memory_stats()["caps"][0]["current_bytes"] == 2**19
        assert not found
assert any("native.memory_pool" in str(w.message) for w in found), found
assert other.is_in_force()
assert int(held.sum()) == 2**19
del held
assert msctx.memory_stats()["current_bytes"] == msctx.memory_stats()["reserved_bytes"] == 0

other.give_back(1)  # one that has gone may have shut the door
why = refused()
assert "torch keeps an allocator that was set with a higher priority" in why, why
torch.empty(2**21, dtype=torch.uint8)
""")
