"""The plan of any context: made, kept, and refused or warned of before it is entered."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from typing import Any, cast

from msctx import devices
from msctx import plan as planning
from msctx.errors import DeviceError, Diagnostic, OptionError, StrictError
from msctx.native import memory, watched_models
from msctx.native.counter_lifetimes import MET
from msctx.notices import warn
from msctx.options import Layer, Settings, find
from msctx.options.algorithm_policy import RULES
from msctx.options.layer_sources import layer_of, with_preset
from msctx.plan import Plan, Row
from msctx.themes import INVARIANT, NEED_CORE, SHOW_FREE, Facts

NOTHING = planning.make(Settings(), Facts())


def plan_of(settings: Settings, facts: Facts) -> Plan:
    """Plans are pure, so they are kept."""
    if (plan := settings.plans.get(facts)) is None:
        if len(settings.plans) > 8:  # free memory is a fact, too
            settings.plans.clear()
        plan = settings.plans[facts] = planning.make(settings, facts)
    return plan


@lru_cache(maxsize=512)
def within(outer: Settings, own: tuple[Layer, ...]) -> Settings:
    """Settings with layers laid over them: the same object each time, with its plans, as long as it is kept."""
    return Settings(own, outer) if own else outer


def plan_here(settings: Settings, shown: Iterable[Layer] = ()) -> Plan:
    """What options come to on this machine; where one of the layers *shown* has a cap, with the memory that is free now."""
    key = devices.here(), os.environ.get(devices.CUBLAS)
    if (plan := settings.plans.get(key)) is not None:
        return cast(Plan, plan)
    free = memory.free_bytes() if any(name in layer.settings for layer in shown for name in SHOW_FREE) else 0
    plan = plan_of(settings, devices.facts(settings, free))
    if CHANGING.isdisjoint(settings):
        settings.plans[key] = plan
    return plan


CHANGING = frozenset((*NEED_CORE, *SHOW_FREE, *INVARIANT, "seed_by_rank"))
"""The options whose plans depend on what changes in a process: the native core, free memory, MKL's mode, the rank."""


def ready_plan(settings: Settings, own: Iterable[Layer]) -> Plan:
    """:func:`plan_here`, with what its *own* layers need: the native core may be built, which takes its time. Plans report
    what fails."""
    plan = plan_here(settings, own)
    if all(NEED_CORE.isdisjoint(layer.settings) for layer in own):
        return plan
    from msctx.switches import prepare

    return plan_here(settings, own) if prepare(plan.written) else plan


def explain(
    preset: str | PathLike[str] | Settings | Mapping[str, Any] | None = None,
    /,
    device: str | None = None,
    **options: Any,
) -> Plan:
    """The plan of only these options, without entering anything; options in force around are left out.

    Args:
        preset: a preset, as :func:`context` takes it; or options as a dictionary.
        device: ``"cpu"``, ``"cuda"`` or ``"ascend"``: plan for only this device; one that is not here has all that it needs.
            Default: this machine.
        options: options by name.
    """
    if isinstance(preset, Settings):
        settings = preset
    else:
        given = {**preset, **options} if isinstance(preset, Mapping) else with_preset(preset, options)
        settings = Settings([layer_of(given, "explain")])
    if device is None:
        plan = plan_here(settings, settings.layers)
        from msctx.context import ledger
        from msctx.switches import SWITCHES

        early = [s for name in plan.written if (s := SWITCHES[name]).lasts]
        ledger.check_writable(early, plan.written, seen := ledger.Hold("explain", base=True), strict=False)
        return plan.without(seen.late)
    if devices.has(named := planning.device_named(device)):
        return plan_of(settings, replace(devices.facts(settings), devices=(named,)))
    return plan_of(settings, Facts((named,)))


def refuse(plan: Plan) -> None:
    """Raise for a plan that must not be entered."""
    if plan.missing:
        words = {device: word for word, device in planning.TARGETS.items()}
        raise DeviceError.missing(plan.target or "", [words[d] for d in devices.here()])
    if wrong := [row for row in plan.failing if row.is_error]:
        raise OptionError(
            [Diagnostic(row.spelling, row.reason, row.origin, suggestion=f"set it, or leave {row.option} out") for row in wrong]
        )
    if plan.strict and (wrong := [*plan.failing, *plan.incomplete]):
        raise StrictError.of([str(row) for row in wrong])
    if plan.unserved:
        raise StrictError.of([str(row) for row in plan.unserved], 'fallback="error"')


def warn_failing(plan: Plan, own: Sequence[Layer] | None, outer: Plan = NOTHING, told: Sequence[Row] = ()) -> None:
    """One warning for each option without effect that was not *told*; *own*: only for what these layers set, and what took effect in
    the *outer* plan and is so no longer."""
    failing = [row for row in (*plan.failing, *plan.incomplete) if row not in told]
    spellings = None if own is None else {*outer.applied, *(s for layer in own for s in layer.settings)}
    for row in failing:
        if spellings is None or row.spelling in spellings:
            warn(str(row))


Moment = defaultdict[str, int]


def now() -> Moment:
    """How often what options act on had been met, and models had begun or ceased to be acted on."""
    return defaultdict(int, MET, times=watched_models.times)  # each context calls it: a Counter would take ten times as long


def report(found: Iterable[str], plan: Plan, *, only_warn: bool = False) -> None:
    """What has found nothing to act on: errors under strict, rules also under ``fallback="error"``; else warnings."""
    wrong = []
    for text in found:
        option = text.partition(":")[0].partition("=")[0]
        must_act = find(option) is not None if plan.strict else plan.without_fallback and option in RULES
        if must_act and not only_warn:
            wrong.append(text)
        else:
            warn(text)
    if wrong:
        requested = "strict=True" if plan.strict else 'fallback="error"'
        raise StrictError("\n  ".join([f"{requested}, and these options had no effect:", *wrong]))
