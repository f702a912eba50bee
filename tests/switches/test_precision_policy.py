"""The precision policies as switches: each device's is written, read and put back alone."""

from __future__ import annotations

import pytest
import torch

from msctx.native import precision
from msctx.switches import SWITCHES

TEXT = '{"precision_mode":"allow_mix_precision_bf16"}'


@pytest.mark.parametrize("device", precision.DEVICES)
def test_a_policy_is_written_and_put_back_alone(device: str) -> None:
    switches = {name: SWITCHES[f"native.precision.{name}"] for name in precision.DEVICES}
    found = switches[device].take()
    assert switches[device].read() is None
    switches[device].set(TEXT)
    try:
        assert {name: switch.read() for name, switch in switches.items()} == {**dict.fromkeys(switches), device: TEXT}
        assert switches[device].is_satisfied(TEXT)
    finally:
        switches[device].put_back(found)
    assert switches[device].read() is None


def test_a_switched_autocast_is_seen() -> None:
    switch = SWITCHES["native.precision.cpu"]
    found = switch.take()
    switch.set(TEXT)
    try:
        torch.set_autocast_enabled("cpu", False)
        assert switch.read() != TEXT
    finally:
        switch.put_back(found)
