"""pynative_synchronize, max_call_depth: so that an error points at the line that caused it."""

from msctx.effects.base import Outcome, Want, approximated, effect, honoured

FRAMES_PER_CALL = 5
"""Python frames that one nested module call takes (``_wrapped_call_impl``, ``_call_impl``, ``inner``, ``forward`` …)."""


@effect("pynative_synchronize")
def pynative_synchronize(want: Want) -> Outcome:
    """Operators of a CPU are synchronous as it is; anomaly mode lets errors of the backward pass name the forward line.

    Anomaly mode's check for NaN is left off: that would change which programs run. The backward pass runs in the calling
    thread, since torch's dispatch modes (which synchronise the device after each operator) belong to one thread.
    """
    assignments = {
        "torch.anomaly_mode": want.value,
        "torch.autograd.multithreading": not want.value,
    }
    if want.value:
        assignments["torch.anomaly_mode.check_nan"] = False
    device = {"cuda": {"torch.cuda.synchronize_each_op": want.value}, "ascend": {"torch.npu.synchronize_each_op": want.value}}
    return honoured(assignments | device.get(want.device, {}))


@effect("max_call_depth")
def max_call_depth(want: Want) -> Outcome:
    frames = min(1000 + FRAMES_PER_CALL * want.value, 2**31 - 1)
    assignments = {"torch.nn.max_call_depth": want.value, "python.recursion_limit": frames}
    return approximated(
        assignments,
        "nested module calls are counted; plain Python functions only have Python's own limit, and Python 3.12 has a fixed one "
        "besides, some 230 modules deep",
    )
