"""HOW, on paper: pure, (options, facts about the machine) → Plan. Imports no torch and changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from msctx.errors import Diagnostic, OptionError
from msctx.options import DEVICES, OPTIONS, Layer, Setting, Settings
from msctx.options.algorithm_policy import plain
from msctx.tables import Table
from msctx.themes import AS_FOUND, BY_NAME, Facts, On, Outcome, translate
from msctx.themes.base import reason

TARGETS = {"CPU": "cpu", "GPU": "cuda", "Ascend": "ascend"}
"""MindSpore's names of devices → ours."""
DONE = ("honoured", "approximated")
FAILING = ("refused", "inert")
UNTRIED = "Ascend: never run on a chip"


@dataclass(frozen=True, kw_only=True)
class Row(Outcome):
    """One option on one device: what was requested, by whom, and what comes of it.

    ``status`` is one of ``honoured``, ``approximated`` (``reason``: what differs), ``inert`` (deprecated, or without a
    meaning on this device), or ``refused`` (cannot be done here).
    """

    option: str
    device: str
    value: Any
    origin: str
    spelling: str
    winner: str = ""  # the spelling of the setting that took its place

    def __str__(self) -> str:
        return f"{self.spelling}={self.value!r} on {self.device}: {self.status}" + f": {self.reason}" * bool(self.reason)

    @property
    def shown(self) -> str:
        """The value; before a number its word, if it has one."""
        words = (word for word, value in getattr(OPTIONS[self.option].kind, "aliases", ()) if value == self.value)
        word = next((str(word) for word in words if type(self.value) is int and str(word).isupper()), "")
        return f"{word} ({self.value})" if word else str(self.value)

    def does(self) -> list[str]:
        """The switches that it sets, as people read them."""
        return [f"{switch} = {_brief(value)}" for switch, value in self.assignments.items()]

    def as_dict(self) -> dict[str, Any]:
        return {
            "option": self.option,
            "spelling": self.spelling,
            "device": self.device,
            "value": self.value,
            "origin": self.origin,
            "status": self.status,
            "switches": {switch: plain(value) for switch, value in self.assignments.items()},
            "reason": self.reason,
            "overridden_by": self.winner or None,
        }


def _brief(value: Any) -> str:
    """A value as text: of a policy that has no text itself, the fields that are not at their defaults."""
    if not is_dataclass(value) or type(value).__str__ is not object.__str__:
        return str(value)
    given = [(field.name, own) for field in fields(value) if (own := getattr(value, field.name)) != field.default]
    return f"{type(value).__name__}({', '.join(f'{name}={_brief(own)}' for name, own in given)})"


@dataclass(frozen=True, repr=False)
class Plan(Table):
    """The result of options on this machine: rows for people, assignments for :mod:`msctx.context.ledger`. Prints as a table."""

    EMPTY = "no options are set"

    rows: tuple[Row, ...]
    target: str | None  # ``device_target`` in MindSpore's words, or ``None`` if it is not set
    device_id: int | None
    main_device: str  # the device that counts most: the target's, else the accelerator that is present, else the CPU
    missing: bool  # whether the target is not on this machine: such a plan is a preview, and cannot be entered
    strict: bool

    @cached_property
    def assignments(self) -> dict[str, Any]:
        """Switch → value, in the order in which they are written."""
        return {switch: value for row in self.rows for switch, value in row.assignments.items()}

    @property
    def written(self) -> dict[str, Any]:
        """What of the assignments is made: nothing while the target is not on this machine."""
        return {} if self.missing else self.assignments

    @cached_property
    def sources(self) -> dict[str, frozenset[str]]:
        """Switch → the spellings of the options that set it."""
        found: dict[str, set[str]] = {}
        for row in self.rows:
            for switch in row.assignments:
                found.setdefault(switch, set()).add(row.spelling)
        return {switch: frozenset(names) for switch, names in found.items()}

    def beyond(self, outer: Plan, own: Iterable[Layer]) -> dict[str, Any]:
        """What a scope wants: what its *own* layers set, and what else its plan has otherwise than the plan around it."""
        mine = {spelling for layer in own for spelling in layer.settings}
        found = {switch: AS_FOUND for switch in reversed(outer.written) if switch not in self.assignments}
        return found | {
            switch: value
            for switch, value in self.assignments.items()
            if not mine.isdisjoint(self.sources[switch]) or outer.written.get(switch, AS_FOUND) != value
        }

    @cached_property
    def applied(self) -> tuple[str, ...]:
        """The spellings of the options that take effect where it counts."""
        failing = {row.spelling for row in self.failing}
        return tuple(dict.fromkeys(r.spelling for r in self.rows if r.status in DONE and r.spelling not in failing))

    @property
    def counts(self) -> str:
        """How many options take effect where it counts, in all and by status."""
        how = {row.spelling: row.status for row in sorted(self.rows, key=self._counts) if row.status in DONE}
        found = [how[spelling] for spelling in self.applied]
        told = ", ".join(f"{found.count(status)} {status}" for status in DONE if status in found)
        return f"{len(found)} of {len({row.spelling for row in self.rows})} options take effect{f' ({told})' * bool(told)}"

    @cached_property
    def failing(self) -> tuple[Row, ...]:
        """The rows of options without effect where it counts: on the target, else on the accelerator that is present,
        else on the CPU. What the main device merely has no use for is not failing if another device applies it.
        """
        return tuple(row for row in self.rows if row.status in FAILING and not row.shadowed and self._counts(row))

    @cached_property
    def incomplete(self) -> tuple[Row, ...]:
        """The rows of files of which some entries do nothing where it counts."""
        return tuple(row for row in self.rows if row.idle and self._counts(row))

    @cached_property
    def without_fallback(self) -> frozenset[str]:
        """The devices on which ``fallback="error"`` holds."""
        rows = (row for row in self.rows if row.option == "fallback" and row.value == "error")
        return frozenset(row.device for row in rows if not row.winner)

    @cached_property
    def unserved(self) -> list[Row]:
        """The rows of algorithms that no call can run, where a call that does not is to be an error."""
        devices = self.without_fallback
        return [row for row in self.failing if row.option in BY_NAME and row.status == "refused" and row.device in devices]

    def _counts(self, row: Row) -> bool:
        same = [r for r in self.rows if r.spelling == row.spelling]
        if row.device != self.main_device and any(r.device == self.main_device for r in same):
            return False
        return row.status != "inert" or not any(r.status in DONE for r in same)

    def without(self, late: Mapping[str, str], otherwise: str = "refused") -> Plan:
        """This plan as it came out where some switches could not be written (switch → why).

        Args:
            otherwise: the status of an option of which nothing is left.
        """

        def left_of(row: Row) -> Row:
            if not (reasons := dict.fromkeys(late[switch] for switch in row.assignments if switch in late)):
                return row
            left = {switch: value for switch, value in row.assignments.items() if switch not in late}
            return replace(row, assignments=left, status="approximated" if left else otherwise, reason="; ".join(reasons))

        return replace(self, rows=tuple(map(left_of, self.rows))) if late else self

    def _table(self) -> tuple[list[str], Iterator[list[str]]]:
        def cells(row: Row) -> list[str]:
            does = "\n".join([*row.does(), row.reason]).strip()
            return [row.spelling, row.shown, row.origin, row.device, row.status, does]

        return ["option", "value", "from", "device", "status", "switches, or why"], map(cells, self.rows)

    def _notes(self) -> list[str]:
        preview = [f"preview only: no {self.target} here; entering it raises DeviceError"] * self.missing
        return [*preview, *[UNTRIED] * any(row.device == "ascend" for row in self.rows)]

    @cached_property
    def digest(self) -> str:
        """Equal if the same options with the same values have the same result, whoever set them."""
        rows = sorted([r.option, r.device, r.spelling, repr(plain(r.value)), r.status, r.winner] for r in self.rows)
        switches = sorted((name, repr(plain(value))) for name, value in self.assignments.items())
        return hashlib.sha256(json.dumps([rows, switches]).encode()).hexdigest()[:16]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        return {
            "device_target": self.target,
            "device_id": self.device_id,
            "target_is_here": not self.missing,
            "strict": self.strict,
            "options": self.as_dicts(),
        }


def make(settings: Settings, facts: Facts) -> Plan:
    """Translate options for every device of *facts* (and the target, though it be absent)."""
    offline, named, strict = (settings.get(name) for name in ("use_off_line", "device_target", "strict"))
    target = "CPU" if offline is not None and offline.value is False else named.value if named else None
    wanted = TARGETS[target] if target else None
    devices = [d for d in DEVICES if d in facts.devices or d == wanted]
    main = wanted or devices[-1]
    device_id = settings.get("session_device_id", main) or settings.get("device_id", main)
    on: dict[str, On] = {}
    rows = [row for device in devices for row in _rows(on.get(device) or On(device, settings, facts, main, on))]
    rows = [*_in_step(rows, main), *_absent(settings, on[main], devices)]
    # the device first: what is set for "the current device" must find it
    order = {name: i for i, name in enumerate(dict.fromkeys(["device_target", "device_id", "session_device_id", *settings]))}
    return Plan(
        rows=tuple(sorted(rows, key=lambda r: order[r.option])),
        target=target,
        device_id=device_id.value if device_id else None,
        main_device=main,
        missing=wanted not in (None, "cpu", *facts.devices),
        strict=bool(strict and strict.value),
    )


def _in_step(rows: list[Row], main: str) -> Iterator[Row]:
    """Devices share some switches: where a group of one device requests another value there, the main device's row decides."""
    deciding: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.device != main):
        for switch in row.assignments:
            deciding.setdefault(switch, row)
    for row in rows:
        others = {switch: by for switch in row.assignments if (by := deciding[switch]).device != row.device}
        lost = {switch: by for switch, by in others.items() if by.assignments[switch] != row.assignments[switch]}
        if not lost:
            yield row
            continue
        own = any(deciding[switch] is row for switch in row.assignments)
        left = {switch: value for switch, value in row.assignments.items() if own and switch not in lost}
        switch, by = next(iter(lost.items()))
        reason = f"overridden by {by.spelling}={by.value!r} on {by.device} from {by.origin}: the devices share {switch}"
        yield replace(row, assignments=left, status="approximated" if own else "inert", reason=reason)


def device_named(word: str) -> str:
    """A device by one of the words that ``device_target`` takes, in upper or lower case."""
    words = dict(getattr(OPTIONS["device_target"].kind, "aliases", ()))
    if (device := TARGETS.get(words.get(str(word).lower(), ""))) is None:
        raise OptionError([Diagnostic("device", f"{word!r} is not a device", allowed=", ".join(DEVICES))])
    return device


def _rows(on: On) -> Iterable[Row]:
    outcomes = translate(on)
    silent = {name for name, outcome in outcomes.items() if outcome is None}  # they mean another device
    for name, setting in on.found.items():
        if (outcome := outcomes[name]) is not None:
            yield _row(setting, on.device, outcome)
    for setting, winner, expected in on.source.overridden(on.device):
        if winner.option.name not in silent:
            reason = f"overridden by {winner.spelling}={winner.value!r} from {winner.origin}"
            yield _row(setting, on.device, Outcome("inert", {}, reason, shadowed=expected), winner.spelling)


def _row(setting: Setting, device: str, outcome: Outcome, winner: str = "") -> Row:
    given = {"option": setting.option.name, "value": setting.value, "origin": setting.origin, "spelling": setting.spelling}
    return Row(**given, device=device, winner=winner, **vars(outcome))


def _absent(settings: Settings, main: On, devices: Iterable[str]) -> Iterable[Row]:
    """Groups of devices that are not here: they wait for a machine that has one, and no warning is due."""
    words = {"cpu": "this plan leaves the CPU out", "cuda": "no CUDA device here", "ascend": "no Ascend device here"}
    for device in sorted(settings.devices - set(devices)):
        mine = [found[0] for found in settings.on(device).values()] + [o.setting for o in settings.overridden(device)]
        for setting in mine:
            if setting.device == device:
                flat = Layer({setting.option.name: replace(setting, spelling=setting.option.name)})
                found = translate(On(main.device, Settings([flat], settings), main.facts)).get(setting.option.name)
                fix = f"written as {setting.option.name} it acts on this device" if found and found.status in DONE else ""
                yield _row(setting, device, Outcome("inert", {}, reason(words[device], fix), shadowed=True))
