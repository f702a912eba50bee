"""The switches that CUDA and Ascend share in form, over a stand-in for the device module: none of either is here."""

from __future__ import annotations

import pytest

from msctx.errors import SwitchError
from msctx.switches.accelerator import memory_cap, synchronize_each_op, wait

GB = 2**30


class Module:
    """Behaves like torch.cuda: the limit is kept in whole bytes, and what a context takes is there once it is made."""

    total = 80 * GB - 12345

    def __init__(self) -> None:
        self.initialized, self.current, self.limits, self.held, self.waits = True, 0, [1.0, 0.5], 0, 0
        self.contexts: set[int] = set()

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.limits)

    def current_device(self) -> int:
        self.initialized = True
        return self.current

    def set_device(self, index: int) -> None:
        self.initialized = True
        self.current = index

    def get_device_properties(self, index: int):
        return type("Properties", (), {"total_memory": self.total})

    def get_per_process_memory_fraction(self, index: int) -> float:
        return self.limits[index]

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.limits[index] = int(fraction * self.total) / self.total

    def memory_allocated(self, index: int) -> int:
        return self.held

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.contexts.add(index)
        return self.total, self.total

    def overhead(self, index: int) -> int | None:
        return 500 * 2**20 if index in self.contexts else None

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def module():
    return Module()


@pytest.fixture
def capped(module):
    """A device module whose context is counted, and the switch of its cap."""
    return module, memory_cap("cap", lambda: module, module.overhead)


@pytest.mark.parametrize("cap", [4 * GB - 1, 600 * 2**20])
def test_what_the_context_takes_is_taken_off_the_cap(capped, cap):
    module, switch = capped
    state = switch.take()
    switch.set(cap)
    assert abs(module.limits[0] * module.total - (cap - 500 * 2**20)) <= 1
    assert (switch.read(), switch.is_satisfied(cap), switch.is_satisfied(cap - 1)) == (cap, True, False)
    assert module.contexts == {0}
    module.set_device(1)
    assert switch.read() not in (None, cap), "the other device has another"
    switch.put_back(state)  # on the device where it was taken, and the current device stays
    assert (module.limits, module.current) == ([1.0, 0.5], 1)


def test_a_cap_that_the_context_fills_is_an_error(capped):
    module, switch = capped
    switch.set(4 * GB)
    module.held = GB
    assert switch.blocked(GB + 500 * 2**20) == ""
    with pytest.raises(
        SwitchError,
        match=r"=1 GiB: 1 GiB are already allocated on device 0 and 500 MiB more are its "
        r"context's and other libraries', together 1\.488 GiB; nothing was changed",
    ):
        switch.blocked(GB + 1)


def test_a_mode_left_inside_is_told(module):
    from torch.utils._python_dispatch import TorchDispatchMode

    switch = synchronize_each_op("sync", lambda: module)
    switch.set(True)
    other = TorchDispatchMode()
    other.__enter__()
    try:
        with pytest.raises(SwitchError, match="another dispatch mode"):
            switch.set(False)
    finally:
        other.__exit__(None, None, None)
        switch.set(False)


class Waited:
    def __init__(self, asks: float) -> None:
        self.asks = asks

    def query(self) -> bool:
        self.asks -= 1
        return self.asks <= 0

    def synchronize(self) -> str:
        return "the driver's"


def test_waits_end_in_time_and_the_class_is_as_it_was(module):
    module.Event = type("Event", (Waited,), {"synchronize": Waited.synchronize})
    found = module.Event.synchronize
    switch = wait("torch.cuda.event_sync_timeout", lambda: module, "Event")
    before = switch.take()
    switch.set(30_000)
    outer = switch.take()
    assert module.Event(3).synchronize() is None
    switch.set(20)
    with pytest.raises(RuntimeError, match=r"^event_sync_timeout=20: the event was not reached within 20 ms$"):
        module.Event(float("inf")).synchronize()
    switch.put_back(outer)
    assert switch.read() == 30_000
    switch.put_back(before)
    assert (switch.read(), module.Event.synchronize) == (None, found)
    assert module.Event(3).synchronize() == "the driver's"
