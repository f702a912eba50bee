"""Writes assignments to switches and restores what was found. Knows no option.

A scope, or the base below all scopes, is a :class:`Hold`: for each switch that it wrote, the state that it found. A scope cannot
take a process-wide switch that an open scope of another thread holds. The base changes only while no scope is open.

Callers defer Ctrl-C (:mod:`msctx.signals`), so that nothing comes between a write and its record.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from msctx import locks, notices
from msctx.errors import MsctxError, NativeError, RestoreError, ScopeError, StrictError, SwitchError
from msctx.observers.steps import replacing
from msctx.switches import SWITCHES, Switch
from msctx.themes.base import AS_FOUND


@dataclass(slots=True)
class Record:
    """One switch, as one scope or the base found and wrote it."""

    switch: Switch
    found: Any
    """The state before the write, which is restored."""
    want: Any
    """A value, or :data:`AS_FOUND`."""
    wrote: Any = None
    """What the switch read after the write."""
    who: threading.Thread = field(default_factory=threading.current_thread)


@dataclass(slots=True, eq=False)
class Hold:
    """What one scope, or the base, has written and will restore."""

    owner: str
    """Who writes, as messages name it: ``with-block at train.py:12``."""
    base: bool = False
    who: threading.Thread = field(default_factory=threading.current_thread)
    closed: bool = False
    """It was left. What it still has could not be restored."""
    records: dict[str, Record] = field(default_factory=dict)
    sources: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Switch → the options that set it, for messages."""
    late: dict[str, str] = field(default_factory=dict)
    """Switch → why it could not be written any more."""

    @property
    def is_stranded(self) -> bool:
        """Whether nobody will leave it any more."""
        return not self.base and (self.closed or not self.who.is_alive())


LOCK = locks.reentrant()
HELD: dict[tuple[str, threading.Thread | None], list[Hold]] = {}
"""Switch, and its thread if each has its own → who holds it, the outermost first."""


def _after_fork() -> None:
    """A forked child was born with what other threads of its parent had set."""
    for key, holds in [*HELD.items()]:
        holds[:] = [hold for hold in holds if hold.base or hold.who is threading.current_thread()]
        if not holds:
            del HELD[key]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def holders(switch: Switch, thread: threading.Thread | None = None) -> list[Hold]:
    """Who holds a switch in this thread, the outermost first."""
    return HELD.get(_key(switch, thread), [])


def _key(switch: Switch, thread: threading.Thread | None = None) -> tuple[str, threading.Thread | None]:
    return switch.name, (thread or threading.current_thread()) if switch.scope == "thread" else None


def prepare(assignments: Mapping[str, Any]) -> None:
    """Bring what writing *assignments* needs and may take long; may be interrupted. Later plans report what fails."""
    for name, value in assignments.items():
        if value and (bring := SWITCHES[name].prepare):
            with suppress(MsctxError):
                bring()


# --- scopes -----------------------------------------------------------------------------------------------------------


def apply(wants: Mapping[str, Any], hold: Hold, *, strict: bool = False, fresh: Collection[str] = ()) -> Hold:
    """Make *wants* the whole of what *hold* has: that of a new scope, or the base. On any failure nothing is changed.

    Args:
        wants: switch → the value to write, in order; or :data:`AS_FOUND` for what an outer scope or the base has set and this scope
            has not.
        fresh: switches that were just set: a seed of the base is set again only then.

    Raises:
        ScopeError: a switch is held by an open scope of another thread.
        StrictError: strict, and a switch can no longer be written or could not be restored.
        SwitchError: a switch did not take its value.
    """
    with LOCK, replacing():
        wanted = [name for name, want in wants.items() if want is not AS_FOUND or SWITCHES[name].restore == "exact"]
        names = [*wanted, *(name for name in reversed(hold.records) if name not in wants)]
        switches = sorted(
            (SWITCHES[name] for name in names), key=lambda s: not s.only_before
        )  # another may come too late for them
        switches = [s for s in switches if not _is_elsewhere(s, wants, hold, fresh)]
        hold.late.clear()
        hold.who = threading.current_thread()
        _check_writable([s for s in switches if wants.get(s.name, AS_FOUND) is not AS_FOUND], wants, hold, strict)
        undone: list[tuple[str, Callable[[], None]]] = []
        try:
            for switch in switches:
                _finish(switch)
                record = hold.records.get(switch.name)
                undone.append((switch.name, partial(_bring_back, switch, switch.take(), record and replace(record), hold)))
                if switch.name in wants and switch.name not in hold.late:
                    _write(switch, wants[switch.name], hold, switch.name in fresh)
                elif record is not None:
                    _raise_failed(*_run([(switch.name, partial(_restore, record, hold))]))
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
        except BaseException as error:
            failed, interruption = _run(reversed(undone))
            if interruption is not None:
                raise interruption from error
            if failed:
                first = str(error).removesuffix(" Nothing was changed.")
                raise RestoreError("\n  ".join((f"{first} And could not be put back:", *failed))) from error
            raise
        for record in [r for r in hold.records.values() if r.switch.restore in ("never", "kept") and not hold.base]:
            _drop(record, hold)
    return hold


def _is_elsewhere(switch: Switch, wants: Mapping[str, Any], hold: Hold, fresh: Collection[str]) -> bool:
    """Whether another thread has the value of the base for itself. Raises if a scope of another thread, or that, is in the way."""
    holds, record = holders(switch), hold.records.get(switch.name)
    if holds and holds[-1].who is not threading.current_thread() and not (holds[-1].base or holds[-1].is_stranded):
        raise ScopeError(
            f"{hold.owner}: {switch.name} belongs to the whole process, and the {holds[-1].owner} of another thread, which "
            "is still open, has set it. Enter one context around both threads and carry it over with "
            "msctx.current().bind(fn), or close the other scope first. Nothing was changed."
        )
    if record is None or switch.scope == "process" or record.who is threading.current_thread():
        return False
    if not record.who.is_alive():
        if switch.scope == "thread":
            _drop(record, hold)
        return False
    if (switch.scope == "thread" and switch.name in fresh) or wants.get(switch.name, AS_FOUND) != record.want:
        options = ", ".join(sorted(hold.sources.get(switch.name, ()))) or switch.name
        raise ScopeError(f"{options} was set by set_context in another thread; change or reset it there. Nothing was changed.")
    return True


def _check_writable(switches: list[Switch], wants: Mapping[str, Any], hold: Hold, strict: bool) -> None:
    """Find what can no longer be written, and (in a scope) what could not be restored, before anything is written."""
    unserved = [s for s in switches if (s.blocked or s.restore == "never") and not s.is_satisfied(wants[s.name])]
    hold.late.update(_blocked(unserved, wants))
    never = [s for s in unserved if s.restore == "never" and not hold.base]
    lasting = {s.name: s.lasts or f"it is read only before {s.only_before}" for s in never}
    if strict and (reasons := [*hold.late.values(), *(f"{name} cannot be put back ({why})" for name, why in lasting.items())]):
        raise StrictError.of(reasons)
    for name, why in lasting.items():
        if name not in hold.late:
            text = f"{name}={wants[name]!r}, if it can still be set, stays after this with-block: {why}. "
            notices.warn(text + "Set it with set_context or `msctx run` instead.")


def _blocked(switches: Iterable[Switch], wants: Mapping[str, Any]) -> dict[str, str]:
    return {s.name: why for s in switches if s.blocked and (why := s.blocked(wants[s.name]))}


def too_late(wants: Mapping[str, Any]) -> dict[str, str]:
    """Which switches can be written early only, and no longer take their value: switch → why."""
    early = (switch for name in wants if (switch := SWITCHES[name]).restore == "never")
    return _blocked((switch for switch in early if not switch.is_satisfied(wants[switch.name])), wants)


def _write(switch: Switch, want: Any, hold: Hold, is_fresh: bool) -> None:
    """Write one switch for *hold*, and record what was found."""
    holds, record = holders(switch), hold.records.get(switch.name)
    if want is AS_FOUND and not holds:
        return  # what set it out there is not in force in this thread
    if record is not None and record.want == want and not is_fresh and (switch.restore == "kept" or switch.is_satisfied(want)):
        return
    is_changed = bool(holds) and holds[-1].records[switch.name].want != want
    if record is None:
        record = hold.records[switch.name] = Record(switch, switch.take(), want)
        HELD.setdefault(_key(switch, record.who), []).append(hold)
    record.want = want
    if is_changed and (want is AS_FOUND or switch.family):
        _go_back(switch)
    if want is not AS_FOUND and not switch.is_satisfied(want) and (reason := _set(switch, want)):
        hold.late[switch.name] = reason
    record.wrote = switch.read()


def _go_back(switch: Switch) -> None:
    """Restore what was found first, for a switch and those that share its state; then write again what is wanted of the others."""
    kin = [
        SWITCHES[name] for name, _ in HELD if name == switch.name or (switch.family and SWITCHES[name].family == switch.family)
    ]
    kin = [other for other in kin if holders(other)]
    for other in reversed(kin):
        try:
            other.put_back(holders(other)[0].records[other.name].found)
        except Exception as error:
            raise RestoreError(f"{other.name} could not be put back: {error}") from error
    for other in kin:
        want = holders(other)[-1].records[other.name].want
        if other is not switch and want is not AS_FOUND and not other.is_satisfied(want):
            _set(other, want)


def _set(switch: Switch, value: Any) -> str:
    """Set a switch and read it back; return why it is too late for that, or ``""``."""
    try:
        switch.set(value)
    except NativeError:
        raise
    except RuntimeError as error:
        if switch.only_before:
            return f"{switch.name} can only be set before {switch.only_before}: {switch.read()!r} stays in force"
        raise SwitchError(f"{switch.name} did not take {value!r}: {error}. Nothing was changed.") from error
    if switch.restore != "kept" and not switch.is_satisfied(value):
        raise SwitchError(f"{switch.name} did not take {value!r}: it reads {switch.read()!r}. Nothing was changed.")
    return ""


def undo(hold: Hold, *, strict: bool = False, quiet: bool = False) -> None:
    """Restore what *hold* found, in reverse order; nothing that is raised keeps the rest from being restored.

    What could not be restored stays in *hold*, for whoever takes the switch next, and for :func:`settle`.

    Raises:
        RestoreError: something could not be restored; or, when strict, had been changed by somebody else.
    """
    with notices.put_off(), LOCK, replacing():
        hold.closed = True
        foreign = [] if quiet else _changed(hold)
        _raise_failed(*_run((r.switch.name, partial(_restore, r, hold)) for r in [*reversed(hold.records.values())]))
    if foreign:
        text = f"Other code changed inside the {hold.owner} what it had set: part of the block ran without it. "
        text += "\n".join(["The values from before the block are restored:", *(f"  {line}" for line in foreign)])
        if strict:
            raise RestoreError(text)
        notices.warn(text)


def _changed(hold: Hold) -> list[str]:
    """What somebody else has changed of what *hold* wrote."""
    found: list[str] = []
    for record in reversed(hold.records.values()):
        with suppress(Exception):  # restoring it shows what is wrong
            if (now := record.switch.read()) != record.wrote:
                found.append(f"{record.switch.name}: set {record.wrote!r}, found {now!r} at exit")
    return found


def _run(steps: Iterable[tuple[str, Callable[[], None]]]) -> tuple[list[str], BaseException | None]:
    """Run each step, by its switch; returns those that failed, and an interruption, which is to be raised at the end."""
    failed: list[str] = []
    interruption: BaseException | None = None
    for name, step in steps:
        try:
            step()
        except Exception as error:
            failed.append(f"{name}: {error}")
        except BaseException as error:
            interruption = interruption or error
    return failed, interruption


def _raise_failed(failed: list[str], interruption: BaseException | None) -> None:
    if interruption is not None:
        raise interruption
    if failed:
        raise RestoreError("could not be put back:\n" + "\n".join(f"  {line}" for line in failed))


def _restore(record: Record, hold: Hold) -> None:
    """Restore one switch, and hold it no longer."""
    if record.switch.scope != "thread" or record.who is threading.current_thread():  # else it went with its thread
        _finish(record.switch, hold)
        if record.switch.restore in ("exact", "closing"):
            record.switch.put_back(record.found)
    _drop(record, hold)


def _finish(switch: Switch, below: Hold | None = None) -> None:
    """Restore what those on top did not, who will not leave any more: their threads have ended, or a restore failed."""
    while (holds := holders(switch)) and holds[-1] is not below and holds[-1].is_stranded:
        record = holds[-1].records[switch.name]
        with suppress(Exception):
            switch.put_back(record.found)
        _drop(record, holds[-1])


def _drop(record: Record, hold: Hold) -> None:
    hold.records.pop(record.switch.name, None)
    if hold in (holds := holders(record.switch, record.who)):  # a visit does not stand there
        holds.remove(hold)
    if not holds:
        HELD.pop(_key(record.switch, record.who), None)


def settle() -> None:
    """Restore what nobody will: of scopes whose threads have ended inside them, or that were left and could not restore it."""
    with LOCK, replacing():
        holds = {hold: None for holds in HELD.values() for hold in holds if not hold.base}
        here = [hold for hold in holds if hold.is_stranded or hold.who is threading.current_thread()]
        for hold in here:
            hold.closed = True
        steps = _run((r.switch.name, partial(_restore, r, hold)) for hold in here for r in [*reversed(hold.records.values())])
    _raise_failed(*steps)


def visit(assignments: Mapping[str, Any]) -> Hold:
    """Set in this thread, for a bound function, what each thread has for itself of a scope that another thread holds."""
    own = {name: want for name, want in assignments.items() if SWITCHES[name].scope == "thread"}
    hold = apply(own, Hold("bound function"))
    try:
        with LOCK:
            for (name, _), holds in HELD.items():
                switch, there = SWITCHES[name], holds[-1].records[name].wrote
                if switch.scope == "inherited" and switch.read() != there:
                    hold.records[name] = Record(switch, switch.take(), there, there)
                    switch.set(there)
    except BaseException:
        undo(hold, quiet=True)
        raise
    return hold


def _bring_back(switch: Switch, state: Any, record: Record | None, hold: Hold) -> None:
    """Bring a switch, and what *hold* has of it, back to what they were."""
    with suppress(Exception) if switch.restore == "never" else nullcontext():  # as long as nobody is inside, nobody has read it
        if switch.restore != "kept":
            switch.put_back(state)  # first: what cannot be restored stays held
    if (now := hold.records.get(switch.name)) is not None:
        _drop(now, hold)
    if record is not None:
        hold.records[switch.name] = record
        HELD.setdefault(_key(switch, record.who), []).append(hold)
