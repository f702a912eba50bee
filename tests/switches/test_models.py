"""Switches of watched models: they read what was written, each thread has its own hooks, and somebody else's are not taken."""

import threading

import pytest
import torch
from torch import _C

from msctx.switches import SWITCHES

THREAD = ("models.saved_on_host", "models.copies_of_parameters")


@pytest.mark.parametrize("name", [*THREAD, "models.recompute"])
def test_what_is_written_is_read_back_and_taken_back(name: str) -> None:
    switch = SWITCHES[name]
    assert switch.read() is False
    for value in (True, True, False, False):
        switch.write(value)
        assert switch.read() is value
    assert _C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("place", ["host", "file", None])
def test_a_place_without_models_is_a_place(place: str | None) -> None:
    switch = SWITCHES["models.parameters"]
    switch.write(place)
    assert switch.read() == place
    switch.write(None)
    assert switch.read() is None


@pytest.mark.parametrize("wanted", ["channels_last", "contiguous", None])
def test_a_format_without_models_is_a_format(wanted: str | None) -> None:
    switch = SWITCHES["models.weight_format"]
    switch.write(wanted)
    assert switch.read() == wanted
    switch.write(None)
    assert switch.read() is None


@pytest.mark.parametrize("name", THREAD)
def test_each_thread_has_its_own(name: str) -> None:
    switch, found = SWITCHES[name], []
    switch.write(True)
    thread = threading.Thread(target=lambda: found.append(switch.read()))
    thread.start()
    thread.join()
    switch.write(False)
    assert found == [False]


def test_one_pair_of_hooks_serves_both() -> None:
    for name in THREAD:
        SWITCHES[name].write(True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda packed: packed):
        pass
    for name in THREAD:
        assert _C._autograd._top_saved_tensors_default_hooks(True) is not None
        SWITCHES[name].write(False)
    assert _C._autograd._top_saved_tensors_default_hooks(True) is None
