"""``hccl_timeout``: which rank did not come to a collective, and where it was last.

While it is on, each rank leaves its step in the store of the process group, once a second at most, and one whose wait was too long
leaves word of that: so those that wait are known from the one that they wait for.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from msctx.errors import CollectiveError, MsctxError, text_of
from msctx.native import distributed
from msctx.native.distributed import in_words
from msctx.observers import steps
from msctx.observers.stalls import Calls, Collective, Watch
from msctx.observers.uncaught import Hook

SECONDS = 2.0
"""For all that is asked of the store; by so much an error may be later than the limit."""
EVERY = 1.0
"""Seconds between two that a rank leaves."""
GRACE = 0.5
"""Seconds of these in which the others that wait come to the same end."""
_GLOO = r"\bgloo/\S+\.cc:\d+\] .*"
"""How gloo's messages begin, whose words any library with connections may use; all of them are plain RuntimeErrors."""
OWN = (
    _GLOO + "Timed out waiting",
    r"wait timeout after \d+ms, keys: \S*//\w+//",  # of the store, in which the back end of a new group leaves addresses
    "Watchdog caught collective operation timeout",  # NCCL and HCCL; it names the rank that waits, not the one that did not come
    "Notify register times out",  # CANN, EI0002
)
"""Of the messages of a wait that was too long on this rank."""
SIGNS = (*OWN, "Application timeout caused pair closure", _GLOO + "Connection (closed|reset) by peer")
"""Also of gloo's where it was too long on another rank, which then closes its connections."""
OF = "msctx/last_steps"
NAMED = 8
"""Ranks that did not come whose last steps are named."""


def step_of(rank: int) -> str:
    """Where the last step of a rank is in the store."""
    return f"{distributed.of_start(OF)}/{rank}"


def waiting() -> str:
    """Where the store has the ranks whose wait was too long, in the order in which they have left word, as ``3``; ``-3``: that one
    had come too late, or waits no more. The last word counts."""
    return f"{distributed.of_start(OF)}/waiting"


class LastSteps(steps.Stepper):
    """*setting*: the seconds that a collective may wait."""

    def __init__(self, setting: int) -> None:
        super().__init__(setting)
        self._left = 0.0

    def begin(self) -> None:
        super().begin()
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        places = (sys, "excepthook", _shown), (c10d, "_update_default_pg", _before_end)
        self._hooks = [Hook(owner, name, shown) for owner, name, shown in places if hasattr(owner, name)]
        self._watch = Watch(self.setting, Calls(_leave_word, _take_word_back, _has_word, _report))
        if self.setting and distributed.has_nccl():
            self._watch.begin()

    def end(self) -> None:
        self._watch.end()
        for hook in self._hooks:
            hook.remove()
        super().end()

    def _ended(self, step: int) -> None:
        now = time.monotonic()
        if (rank := distributed.rank()) is not None and now - self._left >= EVERY and not distributed.is_silent("hccl_timeout"):
            self._left = now
            distributed.in_step("hccl_timeout", SECONDS, lambda: _leave(rank, step))


def _leave(rank: int, step: int) -> bool:
    _take_back()
    distributed.store().set(step_of(rank), f"{step} {time.strftime('%H:%M:%S', time.gmtime())}")
    return True


_waits = False
"""Whether this rank has left word of a wait, after which it has ended no step."""


SLOT = steps.Slot(LastSteps)


# --- what an exception means ------------------------------------------------------------------------------------------


def explained(error: BaseException) -> CollectiveError | None:
    """What an exception of a collective means, while hccl_timeout is in force."""
    if (seconds := SLOT.read()) is None or not _is_of_wait(error):
        return None
    known: CollectiveError | None = vars(error).pop(_KNOWN, None)  # not kept: as the cause of that it would hold itself
    if known is not None:
        return known
    if (rank := distributed.rank()) is None:
        return None
    name, place, group = _call(error.__traceback__)
    why = _why(rank, group, _has(OWN, error), GRACE)
    where = f"{name}{place} in step {steps.current()} of rank {rank}"
    return CollectiveError(f"hccl_timeout={seconds} s: {where} ended without the others: {why}")


def _why(rank: int, group: list[int] | None, has_waited: bool, grace: float) -> str:
    """*group*: the ranks that have to come, if they are known."""
    ranks = [*range(distributed.size())] if group is None else group
    found = distributed.within(SECONDS, lambda: _late(rank, ranks, has_waited, grace))
    if found is None:
        return "which rank did not come is unknown: the store of the process group gave no answer"
    if found[0]:
        why = _listed(found[0], "did not come")
        if group is None and distributed.groups() > 1:
            why += "; in which group it was is unknown, and ranks outside of that did not have to come"
        return why
    if not has_waited:
        return "the others had stopped waiting when this rank came"
    if found[1]:
        return f"the ranks of its group wait, too; of the others, {_listed(found[1], 'does not wait')}"
    return "all ranks wait, for each other or for one that has come too late"


def _shown(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of an exception that nobody has caught: it has passed no block, where the option holds for the whole process."""
    error = args[1]
    if (why := explained(error)) is None:
        return args
    why.__cause__ = error
    return type(why), why, None


_KNOWN = "_msctx_explained"


def _before_end(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of an exception on whose way out the program destroys the process group: later there is no store to ask."""
    error = sys.exc_info()[1]
    if error is not None and (why := explained(error)) is not None:
        setattr(error, _KNOWN, why)
    return args


def _is_of_wait(error: BaseException) -> bool:
    """Torch's are RuntimeErrors; a download whose connection was reset raises an OSError."""
    return isinstance(error, RuntimeError) and not isinstance(error, MsctxError) and _has(SIGNS, error)


def _has(signs: Sequence[str], error: BaseException) -> bool:
    return any(re.search(sign, text_of(error), re.DOTALL) for sign in signs)


def _listed(late: Mapping[int, str], what: str) -> str:
    texts = [f"{in_words([other])} {what}: {text}" for other, text in late.items() if text]
    if more := [other for other, text in late.items() if not text]:
        texts.append(f"{in_words(more)} {what}")
    return "; ".join(texts) + " (steps are written once a second)"


def _late(rank: int, ranks: list[int], has_waited: bool, grace: float) -> tuple[dict[int, str], dict[int, str]]:
    """Which of these ranks do not wait, too, and of some of them the last step; where all of them do, those of the other ranks.

    However many wait, it costs a few calls each. *grace*: the seconds that others have to leave word.
    """
    global _waits
    store = distributed.store()
    store.append(waiting(), f"{rank} ")
    time.sleep(grace)
    wait = _waiting_in(store) | {rank}
    late = [other for other in ranks if other not in wait]
    outside = [other for other in range(distributed.size()) if other not in wait] if has_waited and not late else []
    _waits = bool(late) or has_waited
    if not _waits:
        store.append(waiting(), f"-{rank} ")
    named = {other: _last(store, other) if number < NAMED else "" for number, other in enumerate(late or outside)}
    return (named, {}) if late else ({}, named)


def _waiting_in(store: Any) -> set[int]:
    found = set()
    for word in store.get(waiting()).decode().split():
        if word.startswith("-"):
            found.discard(int(word[1:]))
        else:
            found.add(int(word))
    return found


def _last(store: Any, rank: int) -> str:
    """By its own clock: those of two machines may differ."""
    if not store.check([step_of(rank)]):
        return "it had ended no step"
    step, moment = store.get(step_of(rank)).decode().split()
    return f"it had ended step {step} at {moment} UTC by its clock"


def _call(trace: TracebackType | None) -> tuple[str, str, list[int] | None]:
    """The collective that was called, the user's line, and the ranks that have to come, if its call tells; a backward pass calls them
    in threads of its own."""
    name, place, ranks = "a collective", "", None
    inside = os.path.join("torch", "")
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.endswith("distributed_c10d.py") and not code.co_name.startswith("_"):
            name = code.co_name if name == "a collective" else name
            ranks = ranks or _ranks(code.co_name, trace.tb_frame.f_locals)
        elif inside not in code.co_filename:
            place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        elif code.co_name == "backward":
            name = "a collective of the backward pass"
        trace = trace.tb_next
    return name, place, ranks


def _ranks(name: str, given: Mapping[str, Any]) -> list[int] | None:
    """Those for which this function of torch waits, called with such arguments."""
    if "group" not in given:
        return None
    from torch.distributed import get_process_group_ranks

    peer = {"recv": "src", "irecv": "src", "send": "dst", "isend": "dst"}.get(name, "")
    if (of_all := given.get(peer)) is not None:
        return [of_all]
    try:
        ranks = get_process_group_ranks(given["group"])
    except (KeyError, ValueError):  # it was destroyed meanwhile
        return None
    return ranks if (of_group := given.get(f"group_{peer}")) is None else [ranks[of_group]]


# --- waits that raise nothing -----------------------------------------------------------------------------------------


last_words: list[Callable[[CollectiveError], object]] = []
"""Called with a report: NCCL's watchdog then ends the process."""


def _leave_word() -> None:
    distributed.within(SECONDS, _append)  # the program may wait in the store itself, which says nothing about later steps


def _append() -> None:
    global _waits
    _waits = True
    distributed.store().append(waiting(), f"{distributed.rank()} ")


def _take_word_back() -> None:
    distributed.within(SECONDS, _take_back)


def _take_back() -> None:
    global _waits
    if _waits:
        _waits = False
        distributed.store().append(waiting(), f"-{distributed.rank()} ")


def _has_word() -> bool:
    return bool(distributed.within(SECONDS, _waiting_now))


def _waiting_now() -> set[int]:
    store = distributed.store()
    return _waiting_in(store) if store.check([waiting()]) else set()


def _report(waits: Collective) -> None:
    from msctx.observers import recorder  # here: it needs torch

    if (rank := distributed.rank()) is None:
        return
    place = f", whose program is at {waits.place}," if waits.place else ""
    where = f"{waits.name} in step {steps.current()} of rank {rank}{place} waits without the others"
    error = CollectiveError(f"hccl_timeout={SLOT.read()} s: {where}: {_why(rank, waits.ranks, True, 0.0)}")
    for leave in last_words:
        leave(error)
    recorder.write_all(str(error))
    with suppress(OSError, ValueError):
        print(f"{error}\n", end="", file=sys.stderr, flush=True)  # one write: ranks may share the pipe
