"""What holds outside every with-block: presets, YAML, MSCTX_*, the command line and set_context, until they are reset."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msctx import plan as planning
from msctx.effects import NEED_CORE, Facts
from msctx.errors import DeviceError, OptionError, Problem, StrictError
from msctx.notices import tell
from msctx.options import DEVICES, Layer, Settings
from msctx.options.layers import environment_layers, flatten, layer_of
from msctx.options.registry import exclusive
from msctx.plan import Plan

if TYPE_CHECKING:
    from msctx.apply import Hold

NOTHING = planning.make(Settings(), Facts())

_plans: OrderedDict[Any, Plan] = OrderedDict()


def plan_of(settings: Settings, facts: Facts) -> Plan:
    """Plans are pure, so the latest ones are kept."""
    key = (settings.key, facts)
    if (plan := _plans.get(key)) is None:
        plan = _plans[key] = planning.make(settings, facts)
        while len(_plans) > 64:
            _plans.popitem(last=False)
    return plan


def plan_here(settings: Settings) -> Plan:
    """What options come to on this machine."""
    from msctx import devices

    return plan_of(settings, devices.facts(settings))


def make_ready(settings: Settings) -> None:
    """Bring what the switches of a plan need: the native core may be built, which takes its time. What fails, plans tell."""
    from msctx import apply

    if any(name in NEED_CORE for name in settings):
        apply.prepare(plan_here(settings).written)


def explain(settings: Settings | Mapping[str, Any], device: str | None = None) -> Plan:
    """What options would come to, without entering anything.

    Args:
        settings: options by name, or layers already checked.
        device: ``"cpu"``, ``"cuda"`` or ``"ascend"``: plan for such a machine, whatever is here. Default: this machine.
    """
    if not isinstance(settings, Settings):
        settings = Settings([layer_of(settings, "explain")])
    if device is None:
        from msctx import devices

        free = devices.free_memory() if "max_device_memory" in settings else 0
        return plan_of(settings, replace(devices.facts(settings), free_memory=free))
    if device not in DEVICES:
        raise OptionError([Problem("device", f"{device!r} is not a device", "explain", ", ".join(DEVICES))])
    return plan_of(settings, Facts.only(device))


def refuse(plan: Plan) -> None:
    """Raise for a plan that must not be entered."""
    if plan.missing:
        from msctx import devices

        words = {device: word for word, device in planning.TARGETS.items()}
        raise DeviceError.missing(plan.target or "", [words[d] for d in devices.here()])
    if plan.strict and plan.failing:
        raise StrictError.of([str(row) for row in plan.failing])


def tell_failing(plan: Plan, own: Sequence[Layer] | None, hold: Hold) -> None:
    """One warning for each option that is not carried out; *own*: only for what these layers set."""
    spellings = None if own is None else {s for layer in own for s in layer.settings}
    for row in plan.failing:
        if spellings is None or row.spelling in spellings:
            tell(row.spelling, row.status + row.device + row.reason, str(row))
    for switch, reason in hold.late.items():
        tell(switch, reason, reason)


class Base:
    """The layers below all scopes, by level, and what they have written."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.levels: dict[str, Layer] = {}
        self.layers: tuple[Layer, ...] = ()  # the one layer that the levels come to
        self.version = 0  # counts the changes
        self.read_environment = False
        self.resets = 0  # counts how often everything was taken back
        self.plan = NOTHING
        self.hold: Hold | None = None

    def start(self) -> None:
        """Read MSCTX_* at the first use of msctx in this process, never at import."""
        if not self.read_environment:
            with self.lock:
                if not self.read_environment:
                    self.change(environment_layers(os.environ))
                    self.read_environment = True

    def change(self, levels: Mapping[str, Layer], *, absent: bool = False) -> list[str]:
        """Lay new values over each level's; return the switches that open scopes cover.

        Args:
            absent: a target that is not on this machine may be set: then the options are planned, and nothing is written
                until the target is one that is here.
        """
        if not any(layer.settings for layer in levels.values()):
            return []
        with self.lock:
            new = dict(self.levels)
            for level, layer in levels.items():
                new[level] = new.get(level, Layer()).under(layer)
                if problems := list(exclusive(new[level].settings, level)):
                    raise OptionError(problems)
            spellings = {spelling for layer in levels.values() for spelling in layer.settings}
            return self._become(new, spellings, absent=absent)

    def take_back(self, level: str, spellings: Collection[str]) -> None:
        """Take settings of one level back, and what the files hold that they name."""
        with self.lock:
            old = self.levels.get(level, Layer())
            kept = {k: s for k, s in old.settings.items() if k not in spellings and s.via not in spellings}
            if len(kept) < len(old.settings):
                self._become({**self.levels, level: Layer(kept, old.lost)}, absent=self.plan.missing)

    def reset(self) -> None:
        """Put back what was found before the first value was set."""
        with self.lock:
            if self.levels:
                self._become({})
            self.read_environment = False
            self.resets += 1

    @contextmanager
    def laid_under(self, levels: Mapping[str, Layer]) -> Iterator[Plan]:
        """Lay layers under everything a program sets itself (``msctx run``), and take them away with what it set.

        They are all there is below it: MSCTX_* is among them already.
        """
        with self.lock:
            self.read_environment = True
            before = dict(self.levels)
            self.change(levels)
        try:
            yield self.plan
        finally:
            with self.lock:
                self._become(before)
                self.read_environment = bool(before)
                self.resets += 1

    def _become(self, levels: dict[str, Layer], just_set: Collection[str] = (), *, absent: bool = False) -> list[str]:
        from msctx import apply

        merged = flatten(levels)
        settings = Settings([merged])
        make_ready(settings)
        plan = plan_here(settings) if settings else NOTHING
        if self.hold is None:
            self.hold = apply.Hold("set_context", base=True)
        if not plan.missing or not (absent or (self.plan.missing and "device_target" not in just_set)):
            refuse(plan)
        fresh = {switch for switch, sources in plan.sources.items() if sources & set(just_set)}
        with apply.uninterrupted():  # values and switches change together
            covered = apply.rebase(self.hold, plan.written, strict=plan.strict, fresh=fresh)
            plan = plan.without(self.hold.late)
            try:
                tell_failing(plan, None, self.hold)
            except BaseException:  # warnings turned into errors
                apply.rebase(self.hold, self.plan.written)
                raise
            self.levels, self.plan = levels, plan
            self.layers = (merged,) if merged.settings else ()
            self.version += 1
        return covered


BASE = Base()


def _after_fork() -> None:
    BASE.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
