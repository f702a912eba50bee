"""A change of the base: each switch is laid anew for the base and for the open scopes above it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msctx import apply
from msctx.effects.base import AS_FOUND
from msctx.errors import RestoreError, ScopeError, StrictError
from msctx.signals import uninterrupted
from msctx.switches import Switch


def rebase(
    hold: apply.Hold,
    assignments: Mapping[str, Any],
    *,
    strict: bool = False,
    fresh: Collection[str] = (),
    above: Sequence[tuple[apply.Hold, Mapping[str, Any]]] = (),
) -> list[str]:
    """Make *assignments* the whole of what the base holds; on failure it holds what it held.

    Returns the names of the switches that open scopes want otherwise: those do not change before the scopes close.

    Args:
        fresh: switches that somebody has just asked for: a seed is sown again only then.
        above: open scopes, the outermost first, and what they want over the new base.
    """
    undone: dict[str, Callable[[], None]] = {}
    covered: list[str] = []
    with apply._lock, uninterrupted() as deliver:
        _forget_dead_thread(hold)
        names = [*assignments, *(name for name in reversed(hold.records) if name not in assignments)]
        known = {name for name, value in hold.kept.items() if name not in fresh and assignments.get(name) == value}
        switches = [apply.SWITCHES[name] for name in names if name not in known]
        hold.late.clear()
        _check_base_thread(hold, switches)
        apply._check_writable([s for s in switches if s.name in assignments], assignments, hold, strict)
        wanted: dict[apply.Hold, Mapping[str, Any]] = {hold: {n: v for n, v in assignments.items() if n not in hold.late}}
        wanted |= {scope: wants for scope, wants in above if not scope.closed}
        touched = dict.fromkeys((*(s.name for s in switches), *(n for h in [*wanted][1:] for n in (*wanted[h], *h.records))))
        try:
            for name in touched:
                if apply.SWITCHES[name].restore == "exact":
                    covered += [name] if _lay_anew(apply.SWITCHES[name], hold, wanted, undone) else []
                elif apply.SWITCHES[name] in switches:
                    _rebase_alone(apply.SWITCHES[name], hold, wanted[hold], undone)
            if strict and hold.late:
                raise StrictError.of(sorted(hold.late.values()))
            deliver()
        except BaseException as error:
            failed, interruption = apply.try_all(dict(reversed(undone.items())))
            if interruption is not None and not isinstance(interruption, Exception):
                raise interruption from error
            if failed:
                first = str(error).removesuffix(" Nothing was changed.")
                raise RestoreError("\n  ".join((f"{first} And could not be put back:", *failed))) from error
            raise
    return covered


def _forget_dead_thread(hold: apply.Hold) -> None:
    """What a thread had for itself went with it."""
    if hold.who.is_alive():  # its number may belong to another thread by now
        return
    for record in [r for r in hold.records.values() if r.switch.scope == "thread"]:
        apply._drop(record.switch, hold)


def _check_base_thread(hold: apply.Hold, switches: list[Switch]) -> None:
    """What each thread has for itself must be put back by the thread that set it."""
    for switch in switches:
        if switch.name in hold.records and switch.scope == "thread" and hold.thread != threading.get_ident():
            raise ScopeError(f"{switch.name} was set by set_context in another thread; change or reset it there")
    hold.thread, hold.who = threading.get_ident(), threading.current_thread()


def _rebase_alone(
    switch: Switch, hold: apply.Hold, assignments: Mapping[str, Any], undone: dict[str, Callable[[], None]]
) -> None:
    """Bring one switch that scopes do not hand down to each other to the base's new value."""
    undone[switch.name] = _remembered(switch, hold)
    if switch.name not in assignments:
        if switch.name in hold.records:
            apply._give_back(hold.records[switch.name], hold)
    elif switch.name not in hold.records:
        apply._write(switch, assignments[switch.name], hold)


def _lay_anew(
    switch: Switch, base: apply.Hold, wanted: Mapping[apply.Hold, Mapping[str, Any]], undone: dict[str, Callable[[], None]]
) -> bool:
    """Bring one switch to what the base and the scopes above it want by now; returns whether a scope keeps the base's change back.

    Scopes that are not among those *wanted* keep what they have.
    """
    name, holds = switch.name, [*apply._ledger.get(apply._key(switch), [])]
    here = [h for h in wanted if h is base or switch.scope != "thread" or h.who is threading.current_thread()]
    before = {hold: hold.records[name].want for hold in holds}
    after = {hold: wanted[hold][name] for hold in here if name in wanted[hold]}
    after |= {hold: want for hold, want in before.items() if hold not in wanted}
    after = dict(sorted(after.items(), key=lambda found: found[0].number))
    in_force, wants = ([*chain.values()][-1] if chain else AS_FOUND for chain in (before, after))
    if [*before.items()] == [*after.items()]:
        if base in after and holds[-1] is base and not switch.is_satisfied(wants):  # somebody has changed it since
            undone[name] = _remembered(switch, base)
            apply._bring(switch, wants, base.records[name].put_back)
        return False
    undone[name] = _remembered(switch, *holds, *after)
    back = holds[0].records[name].put_back if holds else partial(switch.put_back, switch.take())
    for hold in holds:
        if hold not in after:
            del hold.records[name]
    under, below = dict(zip([*before][1:], before.items(), strict=False)), None
    for hold, want in after.items():
        record = hold.records.setdefault(name, apply._Record(switch, back, want, want))
        if below is None:
            record.put_back = back
        elif under.get(hold) != (below, after[below]):
            record.put_back = partial(_hand_down, below.records[name], back)
        if record.want != want:
            record.want = record.wrote = want
        below = hold
    apply._ledger[apply._key(switch)] = [*after]
    if not after:
        del apply._ledger[apply._key(switch)]
    if wants != in_force:
        apply._bring(switch, wants, back)
    if below is not None:
        below.records[name].wrote = switch.read()
    return below not in (None, base) and wants == in_force and before.get(base, AS_FOUND) != after.get(base, AS_FOUND)


def _hand_down(below: apply._Record, back: Callable[[], None]) -> None:
    """The scope above closes: what is held below it by now is in force."""
    apply._bring(below.switch, below.want, back)
    below.wrote = below.switch.read()


def _remembered(switch: Switch, *holds: apply.Hold) -> Callable[[], None]:
    """What brings a switch, and what *holds* have of it, back to what it is now."""
    key, name = apply._key(switch), switch.name
    entered, kept = [*apply._ledger.get(key, [])], {hold: dict(hold.kept) for hold in holds}
    records = {hold: (hold.records[name], replace(hold.records[name])) for hold in holds if name in hold.records}
    state = switch.take() if switch.restore in ("exact", "closing") else None

    def bring_back() -> None:
        if switch.restore in ("exact", "closing"):
            switch.put_back(state)  # first: what cannot be put back stays held
        for hold in holds:
            hold.kept = kept[hold]
            hold.records.pop(name, None)
            if hold in records:  # the same record: the scope above may refer to it
                hold.records[name], was = records[hold]
                hold.records[name].put_back, hold.records[name].want, hold.records[name].wrote = (
                    was.put_back,
                    was.want,
                    was.wrote,
                )
        apply._ledger[key] = entered
        if not entered:
            del apply._ledger[key]

    return bring_back
