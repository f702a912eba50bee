"""``hccl_timeout``: which rank did not come to a collective, and where it was last.

While it is on, each rank leaves its step in the store of the process group, once a second at most, and one whose wait was too long
leaves word of that: so those that wait are known from the one that they wait for.
"""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from msctx.errors import CollectiveError, text_of
from msctx.native import distributed
from msctx.native.distributed import in_words
from msctx.observers import steps

SECONDS = 2.0
"""For all that is asked of the store."""
EVERY = 1.0
"""Seconds between two that a rank leaves."""
GRACE = 0.5
"""Seconds in which the others that wait come to the same end."""
SIGNS = (
    "Timed out waiting",
    "timeout caused pair closure",
    "Connection closed by peer",
    "Connection reset by peer",
    "wait timeout",
)
"""Of gloo's messages: a wait was too long, here or on another rank, which then closes its connections."""
OF = "msctx/last_steps"


class LastSteps(steps.Stepper):
    """*setting*: the seconds that a collective may wait."""

    def __init__(self, setting: int) -> None:
        super().__init__(setting)
        self._left = 0.0

    def _ended(self, step: int) -> None:
        now = time.monotonic()
        if (rank := distributed.rank()) is not None and now - self._left >= EVERY:
            self._left = now
            distributed.within(SECONDS, lambda: distributed.store().set(f"{OF}/{rank}", f"{step} {time.time()}"))


SLOT = steps.Slot(LastSteps)


# --- what an exception means ------------------------------------------------------------------------------------------


def explained(error: BaseException) -> CollectiveError | None:
    """What an exception of a collective means, while hccl_timeout is in force."""
    if (
        (seconds := SLOT.read()) is None
        or (rank := distributed.rank()) is None
        or not any(sign in text_of(error) for sign in SIGNS)
    ):
        return None
    others = distributed.within(SECONDS + GRACE, lambda: _others(rank)) or {}
    late = {other: text for other, text in others.items() if text is not None}
    if late:
        why = "; ".join(f"{in_words([other])} did not come: {text}" for other, text in late.items())
    elif others:
        why = "the others had stopped waiting when this rank came"
    else:
        why = "which rank did not come is unknown: the store of the process group gave no answer"
    where = f"{_operator(error.__traceback__)} in step {steps.current()} of rank {rank}"
    return CollectiveError(f"hccl_timeout={seconds} s: {where} ended without the others: {why}")


def _others(rank: int) -> dict[int, str | None]:
    """Each other rank's last step, or ``None`` where it waits, too."""
    store = distributed.store()
    store.set(f"{OF}/{rank}/waits", "1")
    time.sleep(GRACE)
    found: dict[int, str | None] = {}
    for other in range(distributed.size()):
        if other != rank:
            found[other] = None if store.check([f"{OF}/{other}/waits"]) else _last(store, other)
    return found


def _last(store: Any, rank: int) -> str:
    if not store.check([f"{OF}/{rank}"]):
        return "it had ended no step"
    step, moment = store.get(f"{OF}/{rank}").decode().split()
    return f"{max(0.0, time.time() - float(moment)):.0f} s ago it had ended step {step} (steps are written once a second)"


def _operator(trace: TracebackType | None) -> str:
    """The collective that was called, with the user's line; a backward pass calls them in threads of its own."""
    name, place = "a collective", ""
    inside = os.path.join("torch", "")
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.endswith("distributed_c10d.py") and not code.co_name.startswith("_"):
            name = code.co_name if name == "a collective" else name
        elif inside not in code.co_filename:
            place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        elif code.co_name == "backward":
            name = "a collective of the backward pass"
        trace = trace.tb_next
    return f"{name}{place}"
