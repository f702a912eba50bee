"""pynative_synchronize, max_call_depth: on each device, and Python's recursion limit beside them."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.effects.tracing import FRAMES_PER_CALL
from msctx.errors import OptionError
from msctx.options import DEVICES, Settings, make_layer

HOST = {"torch.anomaly_mode": True, "torch.autograd.multithreading": False, "torch.anomaly_mode.check_nan": False}
HOST_OFF = {"torch.anomaly_mode": False, "torch.autograd.multithreading": True}
OWN = {"cpu": {}, "cuda": {"torch.cuda.synchronize_each_op": True}, "ascend": {"torch.npu.synchronize_each_op": True}}


def depth(value: int, devices: tuple[str, ...] = ("cpu",)) -> plan.Plan:
    return plan.make(Settings([make_layer({"max_call_depth": value}, "test")]), Facts(devices=devices))


@pytest.mark.parametrize("device", DEVICES)
def test_synchronous(device: str) -> None:
    found = msctx.explain({"pynative_synchronize": True}, device=device)
    assert found.assignments == HOST | OWN[device]
    assert [row.status for row in found.rows] == ["honoured"]


@pytest.mark.parametrize("device", DEVICES)
def test_asynchronous_again(device: str) -> None:
    """Anomaly mode's check for NaN is left as it is found."""
    found = msctx.explain({"pynative_synchronize": False}, device=device)
    assert found.assignments == HOST_OFF | dict.fromkeys(OWN[device], False)
    assert [row.status for row in found.rows] == ["honoured"]


def test_every_device_of_a_machine_is_synchronised() -> None:
    found = plan.make(Settings([make_layer({"pynative_synchronize": True}, "test")]), Facts(devices=DEVICES))
    assert found.assignments == HOST | OWN["cuda"] | OWN["ascend"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_depth_of_calls(device: str) -> None:
    found = depth(10, (device,))
    assert found.assignments["torch.nn.max_call_depth"] == 10
    (row,) = found.rows
    assert row.status == "approximated"
    assert "nested module calls" in row.reason


@pytest.mark.parametrize("value", [1, 2000, 10_000])
def test_pythons_limit_leaves_room_for_the_calls(value: int) -> None:
    """What is assigned is what is needed at least; the switch keeps a limit that is higher already."""
    assert depth(value).assignments["python.recursion_limit"] >= FRAMES_PER_CALL * value


@pytest.mark.parametrize("value", [10**6, 10**9, 2**31 - 1, 2**32])
def test_the_limit_is_one_that_python_can_hold(value: int) -> None:
    """A C int; or the option is refused, but not with Python's OverflowError."""
    try:
        found = depth(value)
    except OptionError:
        return
    assert found.assignments["python.recursion_limit"] <= 2**31 - 1
