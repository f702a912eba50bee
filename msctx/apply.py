"""HOW, in fact: writes assignments to switches and puts back what was found. Knows no option's name.

Every write is entered in one ledger, per switch (for a switch that each thread has for itself: per switch and thread) a stack of
those who hold it, the base layer lowest. From the ledger follow the rules of concurrency: a switch of the whole process that an
open scope of another thread holds cannot be taken, and a change of the base under an open scope changes what that scope
will put back.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from msctx.errors import MsctxError, MsctxWarning, RestoreError, ScopeError, StrictError, SwitchError
from msctx.notices import user_frame
from msctx.switches import SWITCHES, Switch


@dataclass(slots=True)
class _Record:
    """One switch as one holder found and wrote it."""

    switch: Switch
    put_back: Callable[[], None]
    """Brings back what was found, or what the base has become since."""
    wrote: Any
    """What the switch read after the write."""


@dataclass(slots=True, eq=False)
class Hold:
    """What one scope (or the base) has written and will put back."""

    owner: str
    """Who writes, as it is to be told: ``with-block at train.py:12``."""
    thread: int = field(default_factory=threading.get_ident)
    who: threading.Thread = field(default_factory=threading.current_thread)
    base: bool = False
    orphan: bool = False
    """Its thread is gone (this process was forked from another thread): nobody can conflict with it."""
    records: dict[str, _Record] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    """What was written and is left as it is: not to be written again for another option's sake."""
    late: dict[str, str] = field(default_factory=dict)
    """Switch → why it could not be written any more."""


_lock = threading.RLock()
_ledger: dict[Any, list[Hold]] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    mine = threading.get_ident()
    for holds in _ledger.values():
        for hold in holds:
            hold.orphan = hold.thread != mine


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _key(switch: Switch, thread: int | None = None) -> Any:
    return (switch.name, thread or threading.get_ident()) if switch.scope == "thread" else switch.name


class _Waiting(list[Any]):
    """Stands in for the handler of SIGINT: keeps what it is called with."""

    def __call__(self, *call: Any) -> None:
        self.append(call)


@contextmanager
def uninterrupted() -> Iterator[Callable[[], None]]:
    """Put Ctrl-C off until the block is done, so that it cannot fall between a write and its entry in the ledger.

    Yields a function that lets one that is waiting through at once: a block that can still undo its work calls it last. Inside
    another such block it does nothing: the outer one decides.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler) or isinstance(handler, _Waiting):
        yield lambda: None
        return
    waiting = _Waiting()

    def deliver() -> None:
        while waiting:
            handler(*waiting.pop(0))

    signal.signal(signal.SIGINT, waiting)
    try:
        yield deliver
    finally:
        signal.signal(signal.SIGINT, handler)
        deliver()


def prepare(assignments: Mapping[str, Any]) -> None:
    """Bring what writing *assignments* needs and may take long; may be interrupted. What fails, later plans tell."""
    for name, value in assignments.items():
        if value and (bring := SWITCHES[name].prepare):
            with suppress(MsctxError):
                bring()


def apply(assignments: Mapping[str, Any], owner: str, *, strict: bool = False) -> Hold:
    """Write *assignments* in order, as one scope. On any failure everything written is put back first.

    Raises:
        ScopeError: a switch is held by an open scope of another thread.
        StrictError: strict, and a switch can no longer be written or could not be put back.
        SwitchError: a switch did not take its value.
    """
    hold = Hold(owner)
    with _lock, uninterrupted() as deliver:
        switches = [SWITCHES[name] for name in assignments]
        _check_threads(switches, hold)
        _check_writable(switches, assignments, hold, strict)
        try:
            for switch in switches:
                if switch.name not in hold.late:
                    _write(switch, assignments[switch.name], hold)
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
            deliver()
        except BaseException:
            undo(hold, quiet=True)
            raise
    return hold


def _check_threads(switches: list[Switch], hold: Hold) -> None:
    for switch in switches:
        holds = _ledger.get(_key(switch))
        if (
            holds
            and holds[-1].thread != hold.thread
            and not (holds[-1].base or holds[-1].orphan or not holds[-1].who.is_alive())
        ):
            raise ScopeError(
                f"{hold.owner}: {switch.name} belongs to the whole process, and the {holds[-1].owner} of another thread, which "
                "is still open, has set it. Enter one context around both threads and carry it over with "
                "msctx.current().bind(fn), or close the other scope first. Nothing was changed."
            )


def _check_writable(switches: list[Switch], assignments: Mapping[str, Any], hold: Hold, strict: bool) -> None:
    """Find what can no longer be written, and (in a scope) what could not be put back, before anything is written."""
    for switch in switches:
        value = assignments[switch.name]
        if not switch.is_satisfied(value) and (reason := switch.blocked(value)):
            hold.late[switch.name] = reason
    if strict:
        lasting = [] if hold.base else [s for s in switches if s.restore == "never" and not s.is_satisfied(assignments[s.name])]
        reasons = [*hold.late.values(), *(f"{s.name} cannot be put back (it holds from {_until(s)})" for s in lasting)]
        if reasons:
            raise StrictError.of(reasons)


def _until(switch: Switch) -> str:
    return f"{switch.only_before} on" if switch.only_before else "then on"


def _write(switch: Switch, value: Any, hold: Hold) -> None:
    """Write one switch that *hold* does not hold yet."""
    record = None
    if switch.restore == "exact":
        found = switch.take()
        hold.records[switch.name] = record = _Record(switch, lambda: switch.put_back(found), None)
        _ledger.setdefault(_key(switch), []).append(hold)
    if not switch.is_satisfied(value):
        before = switch.read()
        if reason := _set(switch, value):
            hold.late[switch.name] = reason
        elif switch.restore == "never" and not hold.base:
            try:
                _warn_stays(switch, value)
            except MsctxWarning:  # warnings turned into errors: nobody has read the variable yet
                with suppress(RuntimeError):
                    switch.set(before)
                raise
        elif switch.restore == "kept":
            hold.kept[switch.name] = value
    if record is not None:
        record.wrote = switch.read()


def _set(switch: Switch, value: Any) -> str:
    """Set a switch and read it back; return why it is too late for that, or ``""``."""
    try:
        switch.set(value)
    except RuntimeError as error:
        if switch.only_before:
            return f"{switch.name} can only be set before {switch.only_before}"
        raise SwitchError(f"{switch.name} did not take {value!r}: {error}. Nothing was changed.") from error
    if not switch.is_satisfied(value) and switch.restore != "kept":
        raise SwitchError(f"{switch.name} did not take {value!r}: it reads {switch.read()!r}. Nothing was changed.")
    return ""


def _warn_stays(switch: Switch, value: Any) -> None:
    text = f"{switch.name}={value!r} stays after this with-block: it is read only before {switch.only_before}"
    warnings.warn(text + ". set_context or `msctx run` say so openly.", MsctxWarning, stacklevel=user_frame()[1])


def undo(hold: Hold, *, strict: bool = False, quiet: bool = False) -> None:
    """Put back what *hold* found, in reverse order; one failure does not keep the others from being put back.

    Raises:
        RestoreError: something could not be put back; or, when strict, had been changed by somebody else.
    """
    failed: list[str] = []
    foreign: list[str] = []
    with _lock, uninterrupted():
        for name, record in reversed(list(hold.records.items())):
            try:
                if not quiet and (now := record.switch.read()) != record.wrote:
                    foreign.append(f"{name}: {hold.owner} wrote {record.wrote!r}, found {now!r} at exit")
                record.put_back()
            except Exception as error:
                failed.append(f"{name}: {error}")
            _drop(record.switch, hold)
    if failed:
        raise RestoreError("could not be put back:\n" + "\n".join(f"  {line}" for line in failed))
    if foreign:
        text = "somebody else changed, inside the scope, what the context had set; what was found at entry is back:\n"
        text += "\n".join(f"  {line}" for line in foreign)
        if strict:
            raise RestoreError(text)
        warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])


@contextmanager
def visiting(assignments: Mapping[str, Any]) -> Iterator[None]:
    """Set, for a while, what this thread has for itself of a scope that another thread holds."""
    hold = apply({n: v for n, v in assignments.items() if SWITCHES[n].scope == "thread"}, "bound function")
    found: dict[str, Any] = {}
    try:
        for name, value in assignments.items():
            if SWITCHES[name].scope == "inherited" and SWITCHES[name].read() != value:
                found[name] = SWITCHES[name].take()
                SWITCHES[name].set(value)
        yield
    finally:
        for name, state in found.items():
            SWITCHES[name].put_back(state)
        undo(hold)


def rebase(hold: Hold, assignments: Mapping[str, Any], *, strict: bool = False, fresh: Collection[str] = ()) -> list[str]:
    """Make *assignments* the whole of what the base holds; on failure it holds what it held.

    A switch that an open scope holds is not written: the scope will put back the base's new value when it closes. Returns the
    names of those switches.

    Args:
        fresh: switches that somebody has just asked for: a seed is sown again only then.
    """
    undone: list[Callable[[], None]] = []
    covered: list[str] = []
    with _lock, uninterrupted() as deliver:
        _forget_dead_thread(hold)
        names = [*assignments, *(name for name in hold.records if name not in assignments)]
        known = {name for name, value in hold.kept.items() if name not in fresh and assignments.get(name) == value}
        switches = [SWITCHES[name] for name in names if name not in known]
        hold.late.clear()
        _check_base_thread(hold, switches)
        _check_writable([s for s in switches if s.name in assignments], assignments, hold, strict)
        try:
            for switch in switches:
                if switch.name not in hold.late and _rebase_one(switch, hold, assignments, undone):
                    covered.append(switch.name)
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
            deliver()
        except BaseException:
            for step in reversed(undone):
                step()
            raise
    return covered


def _forget_dead_thread(hold: Hold) -> None:
    """What a thread had for itself went with it."""
    if hold.who.is_alive():  # its number may belong to another thread by now
        return
    for record in [r for r in hold.records.values() if r.switch.scope == "thread"]:
        _drop(record.switch, hold)


def _check_base_thread(hold: Hold, switches: list[Switch]) -> None:
    """What each thread has for itself must be put back by the thread that set it."""
    for switch in switches:
        if switch.name in hold.records and switch.scope == "thread" and hold.thread != threading.get_ident():
            raise ScopeError(f"{switch.name} was set by set_context in another thread; change or reset it there")
    hold.thread, hold.who = threading.get_ident(), threading.current_thread()


def _rebase_one(switch: Switch, hold: Hold, assignments: Mapping[str, Any], undone: list[Callable[[], None]]) -> bool:
    """Bring one switch to the base's new value; tell whether an open scope covers it."""
    holds = _ledger.get(_key(switch), [])
    above = next((h for h in holds if not h.base), None)
    if above is not None:
        _rebase_below(switch, hold, above.records[switch.name], assignments, undone)
        return True
    record = hold.records.get(switch.name)
    if record is None:
        undone.append(lambda: _take_back(switch, hold))
        _write(switch, assignments[switch.name], hold)
    elif switch.name in assignments:
        before, wrote = switch.take(), record.wrote
        undone += [lambda: setattr(record, "wrote", wrote), lambda: switch.put_back(before)]
        _write_again(switch, assignments[switch.name], record)
    else:
        before = switch.take()
        undone += [lambda: _enter(switch, hold, record), lambda: switch.put_back(before)]
        _take_back(switch, hold)
    return False


def _rebase_below(
    switch: Switch, hold: Hold, lowest: _Record, assignments: Mapping[str, Any], undone: list[Callable[[], None]]
) -> None:
    """The same under an open scope: what that scope will put back changes, the switch itself does not."""
    found, record = lowest.put_back, hold.records.get(switch.name)
    undone.append(lambda: setattr(lowest, "put_back", found))
    if switch.name not in assignments:
        assert record is not None
        lowest.put_back = record.put_back
        undone.append(lambda: _enter(switch, hold, record))
        _drop(switch, hold)
        return
    value = assignments[switch.name]
    if record is None:
        record = _Record(switch, found, value)
        undone.append(lambda: _drop(switch, hold))
        _enter(switch, hold, record)
    else:
        wrote = record.wrote
        undone.append(lambda: setattr(record, "wrote", wrote))
    record.wrote = value
    lowest.put_back = lambda: switch.set(value)


def _write_again(switch: Switch, value: Any, record: _Record) -> None:
    if not switch.is_satisfied(value):
        _set(switch, value)
    record.wrote = switch.read()


def _take_back(switch: Switch, hold: Hold) -> None:
    """Put back what the base found, if it holds the switch."""
    if switch.name in hold.records:
        try:
            hold.records[switch.name].put_back()
        except Exception as error:
            raise RestoreError(f"{switch.name} could not be put back: {error}") from error
        _drop(switch, hold)


def _enter(switch: Switch, hold: Hold, record: _Record) -> None:
    """Hold a switch below everybody else."""
    if switch.name in hold.records:
        return
    hold.records[switch.name] = record
    _ledger.setdefault(_key(switch, hold.thread), []).insert(0, hold)


def _drop(switch: Switch, hold: Hold) -> None:
    """Hold a switch no longer."""
    del hold.records[switch.name]
    key = _key(switch, hold.thread)
    holds = _ledger.get(key, [])
    if hold in holds:  # not where a signal's handler raised before it was entered
        holds.remove(hold)
    if not holds:
        _ledger.pop(key, None)
