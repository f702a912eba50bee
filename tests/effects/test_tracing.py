"""pynative_synchronize, max_call_depth: on each device, and Python's recursion limit beside them."""

import pytest
from plans import check, planned

from msctx.effects.tracing import FRAMES_PER_CALL
from msctx.errors import OptionError
from msctx.options import DEVICES

ON = {"torch.anomaly_mode": True, "torch.autograd.multithreading": False, "torch.anomaly_mode.check_nan": False}
OFF = {"torch.anomaly_mode": False, "torch.autograd.multithreading": True}
OWN = {"cpu": {}, "cuda": {"torch.cuda.synchronize_each_op": True}, "ascend": {"torch.npu.synchronize_each_op": True}}
NAME = "pynative_synchronize"


def test_operators_are_synchronous_and_asynchronous_again() -> None:
    """Anomaly mode's check for NaN is left as it is found."""
    check((d, {NAME: True}, {NAME: ("honoured", ON | OWN[d], "")}) for d in DEVICES)
    check((d, {NAME: False}, {NAME: ("honoured", OFF | dict.fromkeys(OWN[d], False), "")}) for d in DEVICES)
    assert planned({NAME: True}, on=DEVICES).assignments == ON | OWN["cuda"] | OWN["ascend"]


@pytest.mark.parametrize("value", [1, 2000, 10_000, 10**9, 2**31 - 1, 2**32])
def test_pythons_limit_leaves_room_for_the_calls(value: int) -> None:
    """What is assigned is what is needed at least, and a C int; the switch keeps a limit that is higher already."""
    for device in DEVICES:
        try:
            found = planned({"max_call_depth": value}, on=device)
        except OptionError:
            assert value > 2**31 - 1, "refused, but not with Python's OverflowError"
            return
        assert min(FRAMES_PER_CALL * value, 2**31 - 1) <= found.assignments["python.recursion_limit"] <= 2**31 - 1
        assert found.assignments["torch.nn.max_call_depth"] == value
        (row,) = found.rows
        assert (row.status, "nested module calls" in row.reason) == ("approximated", True)
