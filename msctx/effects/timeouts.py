"""How long a process waits: for the other ranks, for streams and events."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import STAYS, Outcome, Want, approximated, as_it_is, effect, honoured, inert, refused

NO_STREAMS = "a CPU has no streams and no events that anybody waits for; hccl_timeout limits how long collectives wait"
FIRST_GROUP = "torch_npu gives it to the device when the first process group of HCCL is made, and not before"
OF_STREAMS = "torch.npu.synchronize() waits for the whole device, which has a limit of its own (ACL_DEVICE_SYNC_TIMEOUT)"
NO_LIMIT = (
    "CUDA does not limit how long a stream waits for an event: the program's wait, synchronize() of torch.cuda.Event, is limited, as "
    "by event_sync_timeout"
)
BY_POLLING = (
    "the driver has no such limit: synchronize() of torch.cuda.Stream, torch.cuda.Event and torch.npu.Event polls instead; "
    "item() and waits inside torch, for a torch.Event and for a whole device have no limit"
)
BY_GLOO = "recv() in an existing gloo group keeps the timeout that the group was created with"
BY_NCCL = "NCCL's watchdog ends the process and raises nothing. The Flight Recorder and torchfrtrace name the missing rank"

AFTER_HCCL = 30
"""Seconds, as torch_npu has them between HCCL's limit and that of waits for events."""
WATCHDOG = (
    f"torch_npu's watchdog, the timeout of the process group, ends the process {AFTER_HCCL} s later: at the same time, as torch_npu "
    "warns, HCCL might not log what it waited for. Without any limit (0) torch_npu warns all the same"
)


@effect("hccl_timeout")
def hccl_timeout(want: Want) -> Outcome:
    """Of the process groups, and of those that are made inside the block; 0 is as long as the back ends can count."""
    has_hccl = want.device == "ascend" or "ascend" in want.facts.devices
    limit = want.value + AFTER_HCCL * (has_hccl and want.value > 0)
    assignments: dict[str, Any] = {"torch.distributed.timeout": limit}
    if want.device == "ascend":
        assignments["env.HCCL_EXEC_TIMEOUT"] = str(want.value)
        return honoured(assignments, f"{STAYS}, since HCCL reads it once: HCCL_EXEC_TIMEOUT; {WATCHDOG}")
    return approximated(assignments, BY_GLOO if want.device == "cpu" else BY_NCCL)


@effect("op_wait_timeout")
def op_wait_timeout(want: Want) -> Outcome:
    if want.device != "ascend":
        return refused(NO_STREAMS) if want.device == "cpu" else _of_events(want)
    return honoured(
        {"env.HCCL_EVENT_TIMEOUT": str(want.value)},
        f"{STAYS}, since torch_npu reads it once: HCCL_EVENT_TIMEOUT; {FIRST_GROUP}",
    )


@effect("stream_sync_timeout", "event_sync_timeout")
def sync_timeout(want: Want) -> Outcome:
    if want.device == "cpu":
        return as_it_is(NO_STREAMS) if want.value < 0 else refused(NO_STREAMS)
    if want.option.name == "event_sync_timeout":
        return _of_events(want)
    if want.device == "ascend":
        return honoured({"env.ACL_STREAM_TIMEOUT": str(want.value)}, OF_STREAMS)
    return _polled("torch.cuda.stream_sync_timeout", want.value)


def _of_events(want: Want) -> Outcome:
    """Of the limits that waiting for events has, on CUDA two, the shorter one holds."""
    seconds = want.other("op_wait_timeout") if want.device == "cuda" else None
    limits = {"event_sync_timeout": want.other("event_sync_timeout", -1), "op_wait_timeout": 1000 * (seconds or -1)}
    least = min((name for name, limit in limits.items() if limit > 0), key=limits.__getitem__, default=want.option.name)
    if limits[want.option.name] != limits[least]:
        return inert(f"overridden by {least}={want.other(least)}, which is shorter")
    switch = "torch.npu.event_sync_timeout" if want.device == "ascend" else "torch.cuda.event_sync_timeout"
    return _polled(switch, limits[least], NO_LIMIT if want.option.name == "op_wait_timeout" else BY_POLLING)


def _polled(switch: str, milliseconds: int, differs: str = BY_POLLING) -> Outcome:
    return approximated({switch: milliseconds}, differs) if milliseconds > 0 else honoured({switch: None})
