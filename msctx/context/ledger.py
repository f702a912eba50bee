"""HOW, in fact: writes assignments to switches and puts back what was found. Knows no option's name.

Every write is entered in the one table of :mod:`msctx.context.holds`. From it follow the rules of concurrency: a process-wide switch
that an open scope of another thread holds cannot be taken. The base lies below all scopes, and changes only while none is open.

Callers defer Ctrl-C (:mod:`msctx.signals`), so that nothing comes between a write and its entry in the table.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from msctx import notices
from msctx.context.holds import HELD, LOCK, Record, all_holds, drop, entry_of, hold_only, insert, lowest_of, merge_stranded
from msctx.context.holds import Hold as Hold
from msctx.effects.base import AS_FOUND
from msctx.errors import MsctxError, MsctxWarning, NativeError, RestoreError, ScopeError, StrictError, SwitchError
from msctx.notices import user_frame
from msctx.observers.steps import replacing
from msctx.switches import SWITCHES as SWITCHES
from msctx.switches import Switch


def prepare(assignments: Mapping[str, Any]) -> None:
    """Bring what writing *assignments* needs and may take long; may be interrupted. Later plans report what fails."""
    for name, value in assignments.items():
        if value and (bring := SWITCHES[name].prepare):
            with suppress(MsctxError):
                bring()


# --- scopes -----------------------------------------------------------------------------------------------------------


def apply(wants: Mapping[str, Any], owner: str, *, strict: bool = False) -> Hold:
    """Bring switches to what is wanted, in order, as one scope. On any failure everything written is put back first.

    Args:
        wants: switch → the value to write, or :data:`AS_FOUND` for what an outer scope or the base has set and this one has not.

    Raises:
        ScopeError: a switch is held by an open scope of another thread.
        StrictError: strict, and a switch can no longer be written or could not be put back.
        SwitchError: a switch did not take its value.
    """
    hold = Hold(owner)
    with LOCK, replacing():
        found = [(SWITCHES[name], want) for name, want in wants.items()]
        switches = _early_first(switch for switch, want in found if want is not AS_FOUND or switch.restore == "exact")
        _check_threads(switches, hold)
        _check_writable([s for s in switches if wants[s.name] is not AS_FOUND], wants, hold, strict)
        unread: list[Callable[[], None]] = []
        try:
            for switch in switches:
                if switch.name not in hold.late:
                    _finish(switch)
                    if switch.restore == "never":
                        unread.append(_unread(switch))
                    _write(switch, wants[switch.name], hold)
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
        except BaseException:
            for put_back in reversed(unread):
                put_back()
            hold.leaves.clear()
            undo(hold, quiet=True)
            raise
    return hold


def _unread(switch: Switch) -> Callable[[], None]:
    """What brings back a switch that is read later: as long as nobody is inside, nobody has."""
    put_back = partial(switch.put_back, switch.take())

    def bring_back() -> None:
        with suppress(Exception):  # those that can be set once
            put_back()

    return bring_back


def _early_first(switches: Iterable[Switch]) -> list[Switch]:
    """In their order, but for those that only take effect early: another one may be what comes too late for them."""
    return sorted(switches, key=lambda switch: not switch.only_before)


def _check_threads(switches: list[Switch], hold: Hold) -> None:
    for switch in switches if HELD else ():
        holds = HELD.get(entry_of(switch))
        if holds and holds[-1].thread != hold.thread and not (holds[-1].base or holds[-1].orphan or holds[-1].is_stranded):
            raise ScopeError(
                f"{hold.owner}: {switch.name} belongs to the whole process, and the {holds[-1].owner} of another thread, which "
                "is still open, has set it. Enter one context around both threads and carry it over with "
                "msctx.current().bind(fn), or close the other scope first. Nothing was changed."
            )


def _check_writable(switches: list[Switch], assignments: Mapping[str, Any], hold: Hold, strict: bool) -> None:
    """Find what can no longer be written, and (in a scope) what could not be put back, before anything is written."""
    unserved = [s for s in switches if (s.blocked or s.restore == "never") and not s.is_satisfied(assignments[s.name])]
    for switch in unserved:
        if switch.blocked and (reason := switch.blocked(assignments[switch.name])):
            hold.late[switch.name] = reason
    lasting = [s for s in unserved if s.restore == "never" and not hold.base]
    if strict:
        reasons = [*hold.late.values(), *(f"{s.name} cannot be put back ({_why_it_lasts(s)})" for s in lasting)]
        if reasons:
            raise StrictError.of(reasons)
    for switch in lasting:
        if switch.name not in hold.late:
            value = assignments[switch.name]
            text = f"{switch.name}={value!r}, once set, stays after this with-block: {_why_it_lasts(switch)}"
            warnings.warn(text + ". Set it with set_context or `msctx run` instead.", MsctxWarning, stacklevel=user_frame()[1])


def _why_it_lasts(switch: Switch) -> str:
    return switch.lasts or f"it is read only before {switch.only_before}"


def _write(switch: Switch, want: Any, hold: Hold) -> None:
    """Bring one switch to what *hold*, which does not hold it yet, wants of it."""
    name, record, lowest, back = switch.name, None, None, None
    if (holds := HELD.get(key := entry_of(switch))) and (lowest := lowest_of(switch)) and holds[-1].records[name].want != want:
        back = lowest.put_back
    if want is AS_FOUND and lowest is None:
        return  # what set it out there is not in force in this thread
    if switch.restore in ("exact", "closing"):
        hold.records[name] = record = Record(switch, _to_put_back(switch), want)
        if holds:
            merge_stranded(holds, name)
            insert(holds, hold)
        else:
            HELD[key] = [hold]
    is_text_new = switch.kept is not None and (switch.kept.given is None or not switch.is_satisfied(want))
    if switch.kept is not None and is_text_new:
        hold.leaves[name] = switch.kept.forget
    if reason := _set(switch, want) if is_text_new else _bring(switch, want, back):
        hold.late[name] = reason
    elif switch.restore == "kept":
        hold.kept[name] = want
    if record is not None:
        record.wrote = switch.read()


def _to_put_back(switch: Switch) -> Callable[[], None]:
    """What brings back the state that a switch has now."""
    put_back = partial(switch.put_back, switch.take())
    return partial(_for, threading.current_thread(), put_back) if switch.scope == "inherited" else put_back


def _for(thread: threading.Thread, put_back: Callable[[], None]) -> None:
    """What a thread found for itself is no other thread's: without it, new threads alone start again with what was found."""
    if thread is threading.current_thread():
        put_back()
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put_back).result()


def _bring(switch: Switch, want: Any, back: Callable[[], None] | None) -> str:
    """Bring a switch to what is wanted; *back*: to what it was before anybody wrote it. Returns why it is too late, or ``""``."""
    if back is not None and (want is AS_FOUND or switch.family):
        _go_back(switch, back)
    return "" if want is AS_FOUND or switch.is_satisfied(want) else _set(switch, want)


def _go_back(switch: Switch, back: Callable[[], None]) -> None:
    """Bring a switch to what it was before anybody wrote it, and with it those that share its state: then what is wanted of these
    is written again."""
    family = {}
    for key, holds in HELD.items() if switch.family else ():
        other = SWITCHES[key[0] if isinstance(key, tuple) else key]
        if other.family == switch.family and key == entry_of(other) and (lowest := lowest_of(other)) is not None:
            family[other.name] = lowest.put_back, holds[-1].records[other.name].want
    family.setdefault(switch.name, (back, AS_FOUND))
    for name, (put_back, _) in reversed(family.items()):
        try:
            put_back()
        except Exception as error:
            raise RestoreError(f"{name} could not be put back: {error}") from error
    for name, (_, want) in family.items():
        if name != switch.name and want is not AS_FOUND and not SWITCHES[name].is_satisfied(want):
            _set(SWITCHES[name], want)


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
    if not switch.is_satisfied(value) and switch.restore != "kept":
        raise SwitchError(f"{switch.name} did not take {value!r}: it reads {switch.read()!r}. Nothing was changed.")
    return ""


def undo(hold: Hold, *, strict: bool = False, quiet: bool = False) -> None:
    """Put back what *hold* found, in reverse order; nothing that is raised keeps the rest from being put back.

    What could not be put back stays in the ledger: for the scope around, whoever takes the switch next, and :func:`settle`.

    Raises:
        RestoreError: something could not be put back; or, when strict, had been changed by somebody else.
    """
    waiting: list[tuple[str, str, str]] = []
    with LOCK, notices.put_off(waiting), replacing():
        hold.closed = True
        foreign = [] if quiet else _changed(hold)
        failed, interruption = _put_back(hold)
        _forget(hold, hold.leaves)
    raise_failed(failed, interruption)
    if not quiet:
        notices.warn_put_off(waiting)
    if foreign:
        text = f"Other code changed inside the {hold.owner} what it had set: part of the block ran without it. "
        text += "\n".join(["The values from before the block are restored:", *(f"  {line}" for line in foreign)])
        if strict:
            raise RestoreError(text)
        warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])


def _forget(hold: Hold, names: Iterable[str]) -> None:
    for name in [*names]:
        hold.leaves.pop(name)()


def _changed(hold: Hold) -> list[str]:
    """What somebody else has changed of what *hold* wrote."""
    found: list[str] = []
    for name, record in reversed(hold.records.items()):
        try:
            now = record.switch.read()
        except Exception:  # putting it back shows what is wrong
            continue
        if now != record.wrote:
            found.append(f"{name}: set {record.wrote!r}, found {now!r} at exit")
    return found


def _put_back(hold: Hold) -> tuple[list[str], BaseException | None]:
    return run_all({name: partial(_give_back, record, hold) for name, record in reversed(hold.records.items())})


def run_all(steps: Mapping[str, Callable[[], None]]) -> tuple[list[str], BaseException | None]:
    """Run each step, by its switch; returns those that failed, and an interruption, which is to be raised at the end."""
    failed: list[str] = []
    interruption: BaseException | None = None
    for name, step in steps.items():
        try:
            step()
        except Exception as error:
            failed.append(f"{name}: {error}")
        except BaseException as error:
            interruption = interruption or error
    return failed, interruption


def raise_failed(failed: list[str], interruption: BaseException | None) -> None:
    if interruption is not None:
        raise interruption
    if failed:
        raise RestoreError("could not be put back:\n" + "\n".join(f"  {line}" for line in failed))


def _give_back(record: Record, hold: Hold) -> None:
    """Put one switch back, or leave it to the scope above to do so when it closes; hold it no longer."""
    switch = record.switch
    holds = HELD.get(entry_of(switch, record.who.ident), [])
    if switch.scope != "thread" or record.who is threading.current_thread():  # else it went with its thread
        if hold in holds and holds[-1] is not hold:
            _finish(switch, hold)
        if hold in holds and holds[-1] is not hold:
            above = holds[holds.index(hold) + 1].records[switch.name]
            is_anothers = switch.scope == "inherited" and above.who is not record.who
            above.put_back = partial(_both, above.put_back, record.put_back) if is_anothers else record.put_back
        else:
            record.put_back()
    drop(switch, hold)


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    first()
    then()


def _finish(switch: Switch, below: Hold | None = None) -> None:
    """Put back what the innermost scopes that were left could not: that time a signal or an error came between."""
    while (holds := HELD.get(entry_of(switch))) and holds[-1].closed and holds[-1] is not below:
        with suppress(Exception):
            holds[-1].records[switch.name].put_back()
        drop(switch, holds[-1])


def settle() -> None:
    """Restore what nobody will: of scopes whose threads have ended inside them, or that were left and could not restore it."""
    failed: list[str] = []
    interruption: BaseException | None = None
    with LOCK, replacing():
        for hold in reversed(all_holds()):
            if hold.is_stranded or (hold.is_here and not hold.base):
                hold.closed = True
                lines, error = _put_back(hold)
                failed += lines
                interruption = interruption or error
    raise_failed(failed, interruption)


# --- the base ---------------------------------------------------------------------------------------------------------


def rebase(
    hold: Hold,
    assignments: Mapping[str, Any],
    *,
    strict: bool = False,
    fresh: Collection[str] = (),
    sources: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Make *assignments* the whole of what the base holds; on failure it holds what it held. No scope is open.

    Args:
        fresh: switches that somebody has just asked for: a seed is sown again only then.
        sources: switch → the options that set it, for messages.
    """
    undone: dict[str, Callable[[], None]] = {}
    with LOCK, replacing():
        for gone in [r for r in hold.records.values() if r.switch.scope == "thread" and not r.who.is_alive()]:
            drop(gone.switch, hold)  # what a thread had for itself went with it, and its number may be another's by now
        elsewhere = {name for name, record in hold.records.items() if record.is_elsewhere}
        for name in elsewhere:
            is_asked = hold.records[name].switch.scope == "thread" and name in fresh
            if is_asked or assignments.get(name, AS_FOUND) != hold.records[name].want:
                options = ", ".join(sorted(sources.get(name, ()))) or name
                raise ScopeError(f"{options} was set by set_context in another thread; change or reset it there")
        theirs = {name for name in elsewhere if hold.records[name].switch.scope == "thread"}
        names = [n for n in (*assignments, *(n for n in reversed(hold.records) if n not in assignments)) if n not in theirs]
        known = {name for name, value in hold.kept.items() if name not in fresh and assignments.get(name) == value}
        switches = _early_first(SWITCHES[name] for name in names if name not in known)
        hold.late.clear()
        hold.thread, hold.who = threading.get_ident(), threading.current_thread()
        _check_writable([s for s in switches if s.name in assignments], assignments, hold, strict)
        try:
            for switch in switches:
                _finish(switch)
                undone[switch.name] = _remembered(switch, hold)
                record, want = hold.records.get(switch.name), assignments.get(switch.name, AS_FOUND)
                if switch.name not in assignments or switch.name in hold.late:
                    if record is not None:
                        raise_failed(*run_all({switch.name: partial(_give_back, record, hold)}))
                elif record is None:
                    _write(switch, want, hold)
                elif not record.is_elsewhere and (record.want != want or not switch.is_satisfied(want)):
                    _bring(switch, want, record.put_back if record.want != want else None)
                    record.want, record.wrote = want, switch.read()
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
            _forget(hold, hold.leaves.keys() - assignments.keys())
        except BaseException as error:
            failed, interruption = run_all(dict(reversed(undone.items())))
            if interruption is not None:
                raise interruption from error
            if failed:
                first = str(error).removesuffix(" Nothing was changed.")
                raise RestoreError("\n  ".join((f"{first} And could not be put back:", *failed))) from error
            raise


def _remembered(switch: Switch, base: Hold) -> Callable[[], None]:
    """What brings a switch, and what *base* has of it, back to what it is now."""
    name, entered, kept = switch.name, [*HELD.get(entry_of(switch), [])], dict(base.kept)
    record = replace(base.records[name]) if name in base.records else None
    put_back = _unread(switch) if switch.restore == "never" else partial(switch.put_back, switch.take())

    def bring_back() -> None:
        if switch.restore != "kept":
            put_back()  # first: what cannot be put back stays held
        base.kept = kept
        base.records.pop(name, None)
        if record is not None:
            base.records[name] = record
        hold_only(switch, entered)

    return bring_back
