"""The comparison itself: each choice is checked against float64, then timed beside torch's own path."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from msctx.compare import cases as subjects
from msctx.compare import identity
from msctx.compare.cases import Case, error_of
from msctx.compare.config import Comparison, combined
from msctx.compare.grid import ALGORITHMS, DIRECTIONS, Point, name_of, relevant
from msctx.compare.measure import NOISY, Entrant, Failed, Interrupted, Ratio, interleaved, seconds_of
from msctx.compare.model import load
from msctx.context import Context
from msctx.effects.precision_mode import PRECISION
from msctx.errors import MsctxError
from msctx.memory.meter import Meter
from msctx.notices import tell
from msctx.options import make_layer
from msctx.plan import DONE

TORCH, AGAIN = "", "\0"
"""torch's own path and its control among names of choices, which are never these."""
HOPELESS = 10
"""How many times as long as torch a choice takes in two runs when these are its figure."""
EXACT, ROUNDED = 1e-3, 0.02
"""The largest error of a choice that keeps the precision, and of one that lowers it, where the algorithm states no bound.

float32 is good for about 1e-6; gradients differ by more, as a ReLU or a maximum decides otherwise where two values are as good as
equal. bfloat16 rounds to 4e-3, and errors add up from layer to layer.
"""
ROUNDING = ("conv_allow_tf32", "matmul_allow_tf32", "conv_allow_hf32", "matmul_allow_hf32", "allow_fp32_emulation", *PRECISION)
"""Options that lower the precision."""
WORSE, MEANINGLESS = 4, 0.5
"""How many times torch's own error that of a choice may be where this is beyond the limit; torch's own that leaves nothing to
hold a choice against."""
CONFIRMED = 3
"""How many of a row's fastest choices are measured once more, until the fastest of all is one that was."""
ASKING = (*ALGORITHMS, "conv_algo_rules")
"""Options that ask for algorithms of convolution."""
DECIDING = ("normal", "performance")
"""Algorithms that stand for whichever msctx takes."""
LATE = "not measured: --quick had no time left"
NO_SAY, UNABLE, FAILED, SKIPPED, MEASURED = "no_say", "unable", "failed", "skipped", "measured"
"""What became of a choice in a row: none of its options applies there; it cannot run or is not carried out; it raised, or its
result was wrong; there was no time for it; it has its figures."""


@dataclass
class Checked:
    """What runs under a choice showed."""

    ran: str = ""
    error: float = float("inf")
    bound: float = 0.0
    workspace: int = 0
    peak: int | None = None
    reason: str = ""
    """Why there is nothing to time."""
    told: str = ""
    """What of the choice has no effect here."""
    status: str = MEASURED
    identity: identity.Identity = identity.TORCH
    """What it comes to: choices with one are measured as one."""


@dataclass
class Watch:
    """Progress of a comparison."""

    begin: Callable[[int], None] = lambda rows: None
    row: Callable[[str], None] = lambda name: None
    end_row: Callable[[], None] = lambda: None


@dataclass
class Outcome:
    rows: list[dict[str, Any]] = field(default_factory=list)
    partial: str = ""
    """Why rows are missing."""
    interrupted: bool = False
    """By Ctrl-C."""

    def interrupt(self) -> None:
        self.partial, self.interrupted = "interrupted", True


def compare(comparison: Comparison, watch: Watch | None = None) -> Outcome:
    """All rows of a comparison; what is interrupted keeps the rows so far and is marked so."""
    watch = watch or Watch()
    outcome = Outcome()
    base = Context(tuple(comparison.base.settings.layers), "comparison")
    deadline = None if comparison.total is None else time.perf_counter() + comparison.total
    try:
        with base:
            device = base.device
            waiting = deque(_cases(comparison, device))
            watch.begin(len(waiting))
            runner = Runner(comparison, device, deadline)
            while waiting:
                if runner.is_late():
                    outcome.partial = f"--quick ends after {comparison.total:.0f} seconds; the smaller rows were not measured"
                    break
                case = waiting.popleft()  # its tensors go with it
                watch.row(f"{case.name} {case.direction}")
                outcome.rows.append(runner.row(case))
                if runner.interrupted:
                    raise KeyboardInterrupt
                watch.end_row()
            else:
                runner.tell_unmatched()
    except KeyboardInterrupt:
        outcome.interrupt()
    return outcome


def _cases(comparison: Comparison, device: torch.device) -> Iterator[Case]:
    """The largest first where time is short, else in their own order."""
    if comparison.layers is None:
        model = load(comparison.of, comparison.file, comparison.place)
        yield from subjects.of_model(model.to(device), comparison.phases)
        return
    found = [case for layer in comparison.layers.layers for case in subjects.of_layer(layer, comparison.directions, device)]
    if comparison.total is not None:
        found.sort(key=lambda case: -case.operations * case.count)
    yield from found


class Runner:
    """Measures rows one by one, inside the options that hold for all."""

    def __init__(self, comparison: Comparison, device: torch.device, deadline: float | None = None) -> None:
        self._comparison, self._device, self._deadline = comparison, device, deadline
        self._impossible = combined(comparison.points)
        self.interrupted = False
        """By Ctrl-C, in a row that has its figures nevertheless."""
        self._unmatched: dict[str, list[set[str]]] = {}
        """Choice → for each case with convolutions, the warnings of rules that matched none there."""

    def is_late(self) -> bool:
        return self._deadline is not None and time.perf_counter() > self._deadline

    def row(self, case: Case) -> dict[str, Any]:
        row: dict[str, Any] = {
            **{key: getattr(case, key) for key in ("name", "direction", "problem", "count", "operations")},
            "baseline": {},
            "cells": [],
        }
        try:
            with case.scope():
                self._measure(case, row)
        except (Exception, SystemExit) as error:
            row["reason"] = f"it cannot run: {_line(error)}"
        return row

    def _measure(self, case: Case, row: dict[str, Any]) -> None:
        case.results()  # an error of the model's own is reported as such
        try:
            truth = case.truth()
        except Exception as error:
            row["reason"] = f"float64 cannot be computed: {_line(error)}"
            return
        if any(one.is_floating_point() and one.numel() and not one.isfinite().any() for one in truth):
            row["reason"] = "float64's own result has no finite value: there is nothing to hold a choice against"
            return
        plain = self._check(case, {}, truth, float("inf"))
        if plain.reason:
            row["reason"] = f"torch's own path: {plain.reason}"
            return
        if plain.error > MEANINGLESS:
            row["reason"] = f"torch's own result is {plain.error:.1e} off float64's: there is nothing to hold a choice against"
            return
        checked: dict[str, Checked] = {}
        asked: dict[tuple[tuple[str, str], ...], str] = {}
        names: dict[str, str] = {}
        """Point → the one that is measured for it, torch's own path where it comes to that."""
        leaders = {identity.TORCH: TORCH}
        for point in self._comparison.points:
            options = relevant(point.options, case.direction)
            key = tuple(sorted((name, repr(value)) for name, value in options.items()))
            first = asked.setdefault(key, point.name)
            if first == point.name:
                checked[first] = self._checked(point, options, case, truth, self._limit(point, plain.error))
            checked[point.name] = found = checked[first]
            names[point.name] = leaders.setdefault(found.identity, point.name) if not found.reason else point.name
        wanted = [p for p in self._comparison.points if names[p.name] == p.name and not checked[p.name].reason]
        try:
            timed = self._timed(case, wanted)
        except Exception as error:
            row["reason"] = f"torch's own path: {_line(error)}"
            return
        base, control = timed[TORCH], timed[AGAIN]
        assert isinstance(base, Ratio)
        assert isinstance(control, Ratio)
        row["baseline"] = {"ran": plain.ran, "ms": base.seconds * 1e3, "error": plain.error, "peak_bytes": plain.peak}
        row["baseline"]["times"] = _ms(base)
        row |= {"control": control.ratio, "control_spread": control.spread, "rounds": base.rounds}
        again = {} if self.interrupted else self._confirmed(case, timed)
        for point in self._comparison.points:
            leader = names[point.name]
            cell = _cell(
                point, relevant(point.options, case.direction), checked[point.name], timed.get(leader), again.get(leader)
            )
            row["cells"].append(cell if leader == point.name else cell | {"same_as": leader})
        ratios = [one for name, one in timed.items() if name not in (TORCH, AGAIN) and isinstance(one, Ratio)]
        spreads = [one.spread for one in ratios if one.spread is not None]
        wide = sum(spread > 2 * NOISY for spread in spreads)
        row["noisy"] = abs(control.ratio - 1) > NOISY or (control.spread or 0) > 2 * NOISY or 2 * wide > len(spreads) > 0

    def _limit(self, point: Point, error: float) -> float:
        """The error that a choice may have where torch has this one, and the algorithm states no bound."""
        limit = self._comparison.error_limit
        if limit is None:
            asked = {setting.option.name for setting in make_layer(point.options, "comparison").settings.values()}
            limit = ROUNDED if asked & set(ROUNDING) else EXACT
        return max(limit, WORSE * error)

    def _confirmed(self, case: Case, timed: Mapping[str, Ratio | Failed]) -> dict[str, Ratio | Failed]:
        """The fastest choices, measured once more: the largest of many figures is too large by what luck added to it.

        The smaller figure counts; where another choice is the fastest by that, its turn comes.
        """
        options = {point.name: point.options for point in self._comparison.points}
        figures = {
            name: one.ratio
            for name, one in timed.items()
            if name in options and isinstance(one, Ratio) and one.spread is not None
        }
        found: dict[str, Ratio | Failed] = {}
        for _ in range(CONFIRMED):
            best = max(figures, key=lambda name: figures[name], default=TORCH)
            if best == TORCH or figures[best] <= 1 or best in found or self.is_late():
                break
            context = self._context(options[best])
            entrants = [Entrant(TORCH, nullcontext, case.run), entrant("again", context, case)]
            try:
                with context:
                    if case.module is not None:
                        context.watch(case.module)
                found[best] = interleaved(entrants, self._comparison.seconds / 2, self._device, self.is_late)["again"]
            except Interrupted as interrupted:
                self.interrupted, found[best] = True, interrupted.found["again"]
            except Exception as error:  # torch's own: what was measured once is not to be relied on
                found[best] = Failed(MsctxError(f"torch's own path, when it was measured once more: {_line(error)}"))
            again = found[best]
            figures[best] = min(figures[best], again.ratio) if isinstance(again, Ratio) else 0.0
            if self.interrupted:
                break
        return found

    def _checked(
        self, point: Point, options: Mapping[str, Any], case: Case, truth: list[torch.Tensor], limit: float
    ) -> Checked:
        if reason := self._impossible.get(point.name):
            return Checked(reason=reason, status=UNABLE)
        if _has_no_say(point, options, case):
            return Checked(reason=f"none of its options applies to {case.direction}", status=NO_SAY)
        if self.is_late():
            return Checked(reason=LATE, status=SKIPPED)
        idle, is_all = self._not_carried_out(options)
        if is_all:
            return Checked(reason=idle, status=UNABLE)
        found = self._check(case, point.options, truth, limit)
        found.told = idle
        return found

    def _not_carried_out(self, options: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes of options that have no effect here, and whether that is all of them."""
        plan, settings = self._context(options).plan, list(make_layer(options, "comparison").settings.values())
        told = []
        for setting in settings:
            rows = [row for row in plan.rows if row.option == setting.option.name and row.device == plan.main_device]
            if not any(row.status in DONE for row in rows):
                why = f"{rows[0].status}: {rows[0].reason}" if rows else f"does not apply to {plan.main_device}"
                told.append(f"{setting.spelling} {why}")
        return "; ".join(told), bool(settings) and len(told) == len(settings)

    def _context(self, options: Mapping[str, Any], unmatched: Callable[[list[str]], None] = lambda found: None) -> Context:
        """What a choice runs under: an algorithm that cannot run gives way to torch's own, and the row shows it."""
        quiet = {"fallback": "silent"} if any(name_of(key) in ASKING for key in options) else {}
        if "fallback" in self._comparison.base.settings:
            quiet = {}
        layer = make_layer({**quiet, **options}, "comparison")
        return Context((layer,) if layer.settings else (), "comparison", unmatched=unmatched)

    def tell_unmatched(self) -> None:
        """Warn of rules that matched no convolution in any case."""
        for found in self._unmatched.values():
            for text in sorted(set.intersection(*found)):
                tell("conv_algo_rules", text, text)

    def _check(self, case: Case, options: Mapping[str, Any], truth: list[torch.Tensor], limit: float) -> Checked:
        """Two runs under a choice: one held against float64, which also tunes, and one whose memory is counted.

        Args:
            limit: of the error, where the algorithm states no bound.
        """
        found = Checked()
        try:
            unmatched: list[str] = []
            context = self._context(options, unmatched.extend)
            moved = identity.moved(context, is_compiled=case.module is not None)
            with _Pool() as counted, context:
                if case.module is not None:
                    context.watch(case.module)
                found.error = error_of(case.results(), truth, case.per_value)
                meter = Meter(self._device) if counted or self._device.type != "cpu" else None
                case.run()
                found.peak = meter.stop() if meter is not None else None
                choices, computed = context.choices(), context.precisions()
        except Exception as error:  # whatever it is, it is this choice's own
            found.reason, found.status = _line(error), FAILED
            return found
        if choices or unmatched:
            self._unmatched.setdefault(repr(options), []).append({*unmatched})
        mine = [row for row in choices if case.direction not in DIRECTIONS or row.direction == case.direction]
        found.workspace = max((row.workspace for row in mine), default=0)
        found.ran = _what_ran(mine, computed)
        found.identity = moved, identity.kernels(mine)
        if case.direction in DIRECTIONS:
            others = [row for row in mine if row.asked not in ("", *DECIDING) and row.ran != row.asked]
            names = {setting.option.name for setting in make_layer(options, "comparison").settings.values()}
            if others:
                found.reason, found.status = "; ".join(others[0].reasons) or f"{others[0].ran} ran in its place", UNABLE
            elif names == {"conv_algo_rules"} and not any(row.asked for row in mine):
                found.reason, found.status = "none of its rules applies to this layer", NO_SAY
        stated = max((row.error for row in mine), default=0.0) if case.direction in DIRECTIONS else 0.0
        found.bound = stated or limit
        if not found.reason and found.error > found.bound:
            found.status = FAILED
            is_other = found.error == float("inf")
            found.reason = (
                "its result is not finite, or has another form, where float64's is right"
                if is_other
                else f"its error of {found.error:.1e} is outside the bound of {found.bound:.1e}"
            )
        return found

    def _timed(self, case: Case, points: list[Point]) -> dict[str, Ratio | Failed]:
        plain = min(seconds_of(case.run, self._device) for _ in range(2))
        entrants = [Entrant(TORCH, nullcontext, case.run), Entrant(AGAIN, nullcontext, case.run)]
        found: dict[str, Ratio | Failed] = {}
        for point in points:
            context = self._context(point.options)
            try:
                with context:
                    if case.module is not None:
                        context.watch(case.module)
                    seconds = seconds_of(case.run, self._device)  # packs weights, compiles
                    if seconds > HOPELESS * plain:
                        seconds = seconds_of(case.run, self._device)
            except Exception as error:
                found[point.name] = Failed(error)
                continue
            if seconds > HOPELESS * plain:
                found[point.name] = Ratio(seconds, plain / seconds, None, 1)
            else:
                entrants.append(entrant(point.name, context, case))
        try:
            return interleaved(entrants, self._comparison.seconds, self._device, self.is_late) | found
        except Interrupted as interrupted:
            self.interrupted = True
            return interrupted.found | found


def entrant(name: str, context: Context, case: Case) -> Entrant:
    return Entrant(name, lambda: context, case.run)


def _has_no_say(point: Point, options: Mapping[str, Any], case: Case) -> bool:
    """Whether a choice cannot change a case at all."""
    if case.direction == "forward":
        options = {k: v for k, v in options.items() if name_of(k) not in ASKING}
    return not options and bool(point.options) and case.direction not in subjects.PHASES


def _ms(timed: Ratio) -> list[float]:
    return [float(f"{seconds * 1e3:.5g}") for seconds in timed.times]


def _cell(
    point: Point, asked: Mapping[str, Any], checked: Checked, timed: Ratio | Failed | None, again: Ratio | Failed | None
) -> dict[str, Any]:
    """A cell's figures, of both times that it was measured the smaller one; or why there are none."""
    cell: dict[str, Any] = {"point": point.name, "asked": dict(asked), "status": checked.status}
    if checked.ran:
        cell["ran"] = checked.ran
    if checked.error != float("inf"):
        cell |= {"error": checked.error, "bound": checked.bound}
    if checked.told:
        cell["told"] = checked.told
    for one in (timed, again):
        if isinstance(one, Failed) and not checked.reason:
            return cell | {"reason": _line(one.error), "status": FAILED}
    if checked.reason or not isinstance(timed, Ratio):
        return cell | {"reason": checked.reason or "not measured"} | ({} if checked.reason else {"status": SKIPPED})
    figure = timed
    if isinstance(again, Ratio):
        cell["measured"] = [timed.ratio, again.ratio]
        figure = min(timed, again, key=lambda one: one.ratio)
    return cell | {
        "ratio": figure.ratio,
        "spread": timed.spread,
        "ms": figure.seconds * 1e3,
        "noisy": timed.spread is not None and timed.spread > 2 * NOISY,
        "times": _ms(timed),
        "workspace": checked.workspace,
        "peak_bytes": checked.peak,
    }


def _what_ran(choices: list[Any], computed: Any) -> str:
    """The algorithms of convolutions with how often, and the dtypes of products under a precision policy."""
    ran = Counter[str]()
    for row in choices:
        ran[row.ran + (" (tf32)" if row.math == "tf32" else "")] += row.calls
    words = [name if len(ran) == 1 else f"{name} x{count}" for name, count in ran.most_common()]
    dtypes = Counter[str]()
    for row in computed:
        if row.operator in ("mm", "addmm", "bmm", "matmul", "linear", "conv2d", "convolution", "baddbmm") and row.why:
            dtypes[row.dtype] += row.calls
    words += [f"products in {name}" for name, _ in dtypes.most_common()]
    return ", ".join(words) or "torch"


def _line(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, MsctxError) else f"{type(error).__name__}: {first}".removesuffix(": ")


class _Pool(ExitStack):
    """With the pool of host memory, so that what a run takes can be counted; without where it cannot be built."""

    def __enter__(self) -> bool:  # type: ignore[override]
        super().__enter__()
        try:
            self.enter_context(Context((make_layer({"memory_optimize_level": "O0"}, "comparison"),), "comparison"))
        except MsctxError:
            return False
        return True
