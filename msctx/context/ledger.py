"""Writes assignments to switches and restores what was found. Knows no option.

A scope, or the base below all scopes, is a :class:`Hold`: of each switch that it wrote, the state that it found. It cannot take a
process-wide switch that an open scope of another thread holds. The base changes only while no scope is open. Callers defer Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from msctx import notices
from msctx.errors import NativeError, RestoreError, ScopeError, StrictError, SwitchError
from msctx.switches import SWITCHES, Switch
from msctx.switches.base import EXACT, RESTORED, TWICE, UNDOABLE, LateError
from msctx.themes.base import AS_FOUND


@dataclass(slots=True)
class Record:
    """One switch: the state that a scope found, what it wants (a value, or :data:`AS_FOUND`), and what the switch read after that."""

    switch: Switch
    who: threading.Thread
    found: Any
    want: Any
    wrote: Any = None


@dataclass(slots=True, eq=False)
class Hold:
    """What one scope, or the base, has written and will restore. *late*: switch → why it could not be written any more."""

    name: str
    base: bool = False
    who: threading.Thread = field(default_factory=threading.current_thread)
    records: dict[str, Record] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    sources: Mapping[str, Collection[str]] = field(default_factory=dict)  # switch → the options that set it, for messages

    def of_others(self) -> list[Record]:
        """What is set for another thread, or by one that others may follow."""
        here = threading.current_thread()
        return [one for one in [*self.records.values()] if one.switch.scope != "process" and one.who is not here]

    def missed(self) -> list[str]:
        """The switches of these that do not act in this thread."""
        there = [one.switch for one in self.of_others() if not one.switch.is_satisfied(one.want)]
        holds = {switch.name: HELD.get(key(switch, threading.current_thread())) for switch in there}
        return [name for name, found in holds.items() if not found or found[-1].base]


LOCK = threading.RLock()
HELD: dict[tuple[str, threading.Thread | None], list[Hold]] = {}
"""Switch, and its thread if each has its own → who holds it, the outermost first."""


def key(switch: Switch, who: threading.Thread) -> tuple[str, threading.Thread | None]:
    return switch.name, who if switch.scope == "thread" else None


def _hold(record: Record, hold: Hold) -> None:
    hold.records[record.switch.name] = record
    HELD.setdefault(key(record.switch, record.who), []).append(hold)


def apply(wants: Mapping[str, Any], hold: Hold, *, strict: bool = False, fresh: Collection[str] = ()) -> Hold:
    """Make *wants* the whole of what *hold* has: that of a new scope, or the base. On any failure nothing is changed.

    *wants*: switch → the value to write, in order; or :data:`AS_FOUND` for what only an outer scope or the base has set. *fresh*:
    switches that were just set: a seed of the base is set again only then.
    """
    with LOCK:
        told, hold.late, hold.who = {*hold.late.items()}, {}, threading.current_thread()
        wanted = [s for n, want in wants.items() if (s := SWITCHES[n]).restore in EXACT or want is not AS_FOUND]
        wanted.sort(key=lambda switch: switch.restore in UNDOABLE)  # another switch may make it too late for these
        todo = [*wanted, *(SWITCHES[name] for name in reversed(hold.records) if name not in wants)]
        if HELD:
            _check_threads(todo, hold)
        check_writable([s for s in wanted if wants[s.name] is not AS_FOUND], wants, hold, strict)
        steps: list[tuple[Any, ...]] = []
        try:
            for switch in todo:
                record, state = hold.records.get(switch.name), switch.take()
                steps.append((switch, state, hold, record and replace(record), True))
                if switch.name in wants and switch.name not in hold.late:
                    _write(switch, wants[switch.name], state, hold, switch.name in fresh)
                elif record:
                    _each(put_back, [(switch, record.found, hold)])
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
            for why in [why for name, why in hold.late.items() if name in fresh or (name, why) not in told]:
                notices.warn(why)
        except BaseException as error:
            _each(put_back, reversed(steps), error)
            raise
    return hold


def check_base(wants: Mapping[str, Any], base: Hold, fresh: Collection[str]) -> None:
    """Raise if what another thread has of the base for itself is to change; forget what ended with its thread."""
    for record in base.of_others():
        name, is_own = record.switch.name, record.switch.scope == "thread"
        if not record.who.is_alive():
            if is_own:
                put_back(record.switch, record.found, base)
        elif (is_own and name in fresh) or wants.get(name, AS_FOUND) != record.want:
            raise ScopeError(
                f"{', '.join(sorted(base.sources.get(name, ()))) or name} was set by set_context in another thread; change or "
                "reset it there. Nothing was changed."
            )


def _check_threads(switches: list[Switch], hold: Hold) -> None:
    """Raise if an open scope of another thread holds one of them; restore what a thread left that has ended."""
    for switch in switches:
        if (holds := HELD.get(key(switch, hold.who))) and (top := holds[-1]).who is not hold.who and not top.base:
            if top.who.is_alive():
                raise ScopeError.held(hold.name, switch.name, top.name)
            settle()


def check_writable(switches: list[Switch], wants: Mapping[str, Any], hold: Hold, strict: bool) -> None:
    """Find what can no longer be written, and (in a scope) what could not be restored, before anything is written."""
    unserved = [s for s in switches if (s.blocked or s.restore not in UNDOABLE) and not s.is_satisfied(wants[s.name])]
    hold.late.update({s.name: why for s in unserved if s.blocked and (why := s.blocked(wants[s.name]))})
    lasting = [s for s in unserved if s.lasts and not hold.base]
    if strict and hold.late:
        raise StrictError.of([*hold.late.values()])
    if strict and lasting:
        named = [(", ".join(sorted(hold.sources.get(s.name, [s.name]))), s) for s in lasting]
        reasons = [f"{options}: {s.name} cannot be restored ({s.lasts})" for options, s in named]
        raise StrictError.of(reasons, what="would stay after a with-block; msctx.set_context and `msctx run` set them")
    for switch in lasting:
        if switch.name not in hold.late:
            text = f"{switch.name}={wants[switch.name]!r}, if it can still be set, stays after this with-block: {switch.lasts}"
            notices.warn(f"{text}. Set it with set_context or `msctx run` instead.")


def _write(switch: Switch, want: Any, state: Any, hold: Hold, is_fresh: bool) -> None:
    """Write one switch for *hold*, which finds this *state* unless it has a record of it."""
    holds, record = HELD.get(key(switch, hold.who), []), hold.records.get(switch.name)
    if want is AS_FOUND and not holds:
        return  # what set it out there is not in force in this thread
    is_kept = record is not None and (switch.restore == "kept" or record.who is not hold.who)
    if record and record.want == want and not is_fresh and (is_kept or switch.is_satisfied(want)):
        return
    goes_back = holds and holds[-1].records[switch.name].want != want and (want is AS_FOUND or switch.restore in TWICE)
    if record is None and (hold.base or switch.restore in RESTORED):
        _hold(record := Record(switch, hold.who, state, want), hold)
    if record:
        record.want = want
    if goes_back:
        _go_back(switch, hold.who)
    now = switch.read() if goes_back or switch.state else state
    if want is not AS_FOUND and not switch.is_satisfied(want, now):
        try:
            switch.set(want)
        except LateError as error:
            hold.late[switch.name] = str(error)
        except NativeError:
            raise
        except RuntimeError as error:
            raise SwitchError.refused(switch.name, want, str(error)) from error
        else:
            if not switch.is_satisfied(want, now := switch.read()) and switch.restore != "kept":
                raise SwitchError.refused(switch.name, want, f"it reads {now!r}")
    if record:
        record.wrote = now


def _go_back(switch: Switch, who: threading.Thread) -> None:
    """Restore what was found first, where writes depend on it for all such switches; then write what is wanted of the others."""
    kin = [s for name, _ in HELD if (s := SWITCHES[name]) is switch or s.restore == switch.restore == "together"]
    held = [(other, holds) for other in dict.fromkeys(kin) if (holds := HELD.get(key(other, who)))]
    _each(Switch.put_back, ((other, holds[0].records[other.name].found) for other, holds in reversed(held)))
    for other, holds in held:
        want = holds[-1].records[other.name].want
        if other is not switch and want is not AS_FOUND and not other.is_satisfied(want):
            other.set(want)


def undo(hold: Hold, *, strict: bool = False, quiet: bool = False) -> None:
    """Restore what *hold* found, in reverse order; nothing that is raised keeps the rest from being restored."""
    with notices.put_off(), LOCK:
        records = [*reversed(hold.records.values())]
        foreign = [text for record in records if (text := _foreign(record))] if not quiet else []
        _each(put_back, ((record.switch, record.found, hold) for record in records))
    if foreign:
        error = RestoreError.changed(hold.name, foreign)
        if strict:
            raise error
        notices.warn(str(error))


def _foreign(record: Record) -> str:
    """What other code has made of a switch since it was written."""
    try:
        now = record.switch.read()
    except Exception:  # restoring it shows what is wrong
        return ""
    return "" if now == record.wrote else f"  {record.switch.name}: set {record.wrote!r}, found {now!r} at exit"


def _each(call: Callable[..., object], steps: Iterable[tuple[Any, ...]], cause: BaseException | None = None) -> None:
    """Call it for each step, which begins with a switch or a hold, and raise at the end what one has raised. *cause*: why."""
    failed = []
    for step in steps:
        try:
            call(*step)
        except Exception as error:
            failed.append(f"\n  {step[0].name}: {error}")
    if failed:
        first = f"{str(cause).removesuffix(' Nothing was changed.')} And " if cause else ""
        raise RestoreError(f"{first}could not be restored:{''.join(failed)}") from cause


def put_back(switch: Switch, state: Any, hold: Hold, record: Record | None = None, undone: bool = False) -> None:
    """Restore one switch, of which *hold* has this *record* from then on. *undone*: as if it had not been written."""
    is_here = switch.scope != "thread"
    if (now := hold.records.pop(switch.name, None)) is not None:
        is_here = is_here or now.who is threading.current_thread()  # else it went with its thread
        if hold in (holds := HELD.get(place := key(switch, now.who), [])):  # a visit does not stand there
            holds.remove(hold)
        if not holds:
            HELD.pop(place, None)
    if record is not None:
        _hold(record, hold)
    if switch.restore in RESTORED and (is_here or undone):
        switch.put_back(state)
    elif undone and switch.lasts:
        with suppress(Exception):  # nobody was inside, so nobody has read it
            switch.put_back(state)


def settle() -> None:
    """Restore what nobody will: of scopes whose threads have ended inside them."""
    with LOCK:
        ended = dict.fromkeys(h for holds in HELD.values() for h in holds if not (h.base or h.who.is_alive()))
        _each(partial(undo, quiet=True), ((hold,) for hold in ended))
