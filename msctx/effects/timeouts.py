"""How long a process waits: for the other ranks, for streams and events."""

from __future__ import annotations

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, not_built, refused
from msctx.options.option import ASCEND

NO_STREAMS = "a CPU has no streams and no events that anybody waits for; hccl_timeout limits how long collectives wait"
BY_NCCL = "NCCL's watchdog ends the process by itself: its message does not name the rank that did not come"


@effect("hccl_timeout")
def hccl_timeout(want: Want) -> Outcome:
    """Of the process group, and of those that are made inside the block; 0 is as long as the back ends can count."""
    if want.device == "ascend":
        return not_built(ASCEND)
    assignments = dict.fromkeys(("torch.distributed.timeout", "observers.last_steps"), want.value)
    return honoured(assignments) if want.device == "cpu" else approximated(assignments, BY_NCCL)


@effect("op_wait_timeout", "stream_sync_timeout", "event_sync_timeout")
def waiting(want: Want) -> Outcome:
    if want.device == "cpu":
        return refused(NO_STREAMS)
    return not_built(ASCEND if want.device == "ascend" else "waits with a deadline on CUDA")
