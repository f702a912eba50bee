"""The switches that CUDA and Ascend share in form, over a stand-in for the device module: none of either is here."""

from __future__ import annotations

import pytest
import torch

from msctx.errors import SwitchError
from msctx.switches.accelerator import current_device, memory_cap, synchronize_each_op

GB = 2**30


class Module:
    """Behaves like torch_npu: to ask a device for its limit makes it current."""

    def __init__(self) -> None:
        self.initialized, self.current, self.limits, self.held, self.waits = True, 0, [1.0, 0.5], 0, 0

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
        return type("Properties", (), {"total_memory": 80 * GB})

    def get_per_process_memory_fraction(self, index: int) -> float:
        self.current = index
        return self.limits[index]

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        assert isinstance(fraction, float)
        self.current = index
        self.limits[index] = fraction

    def memory_allocated(self, index: int) -> int:
        return self.held

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def module():
    return Module()


def test_the_cap_is_of_the_current_device_alone(module):
    switch = memory_cap("cap", lambda: module, lambda: True)
    assert switch.read() is None
    state = switch.take()
    switch.set(4 * GB)
    assert (switch.read(), module.limits) == (4 * GB, [0.05, 0.5])
    assert switch.is_satisfied(4 * GB)
    module.set_device(1)
    assert switch.read() == 40 * GB
    switch.put_back(state)  # on the device where it was taken, and the current device stays
    assert (module.limits, module.current) == ([1.0, 0.5], 1)


def test_a_cap_beyond_the_device_is_no_cap(module):
    switch = memory_cap("cap", lambda: module, lambda: True)
    assert switch.is_satisfied(100 * GB)
    switch.set(100 * GB)
    assert module.limits[0] == 1.0


def test_a_cap_that_is_exceeded_already_is_an_error(module):
    switch = memory_cap("cap", lambda: module, lambda: True)
    module.held = 5 * GB
    assert switch.blocked(6 * GB) == ""
    with pytest.raises(SwitchError, match="5368709120 bytes are already allocated on device 0; nothing was changed"):
        switch.blocked(4 * GB)


def test_reading_initialises_nothing(module):
    module.initialized = False
    assert memory_cap("cap", lambda: module, lambda: True).read() is None
    assert current_device("device", lambda: module, lambda: True).read() is None
    assert not module.initialized


def test_the_current_device(module):
    switch = current_device("device", lambda: module, lambda: True)
    state = switch.take()
    switch.set(1)
    assert switch.read() == 1
    switch.put_back(state)
    assert module.current == 0
    with pytest.raises(SwitchError, match="device_id=2: there are 2 such devices here"):
        switch.blocked(2)


def test_a_device_that_was_never_used_ends_as_the_first(module):
    module.initialized = False
    switch = current_device("device", lambda: module, lambda: True)
    state = switch.take()
    switch.set(1)
    switch.put_back(state)
    assert module.current == 0


def test_each_operator_waits(module):
    switch = synchronize_each_op("sync", lambda: module, lambda: True)
    x = torch.ones(3, requires_grad=True)
    switch.set(True)
    try:
        assert switch.read() is True
        (x * 2).sum().backward()
    finally:
        switch.set(False)
    waits = module.waits
    assert waits >= 4  # two operators forward, two or more backward
    x + 1
    assert module.waits == waits
    assert switch.read() is False


def test_a_mode_left_inside_is_told(module):
    from torch.utils._python_dispatch import TorchDispatchMode

    switch = synchronize_each_op("sync", lambda: module, lambda: True)
    switch.set(True)
    other = TorchDispatchMode()
    other.__enter__()
    try:
        with pytest.raises(SwitchError, match="another dispatch mode"):
            switch.set(False)
    finally:
        other.__exit__(None, None, None)
        switch.set(False)
