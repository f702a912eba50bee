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
from msctx.compare.cases import Case, error_of
from msctx.compare.config import Comparison, combined
from msctx.compare.grid import ALGORITHMS, DIRECTIONS, Point, asked_algorithm, relevant
from msctx.compare.measure import NOISY, Entrant, Ratio, interleaved, seconds_of
from msctx.compare.model import load
from msctx.context import Context
from msctx.errors import MsctxError
from msctx.memory.meter import Meter
from msctx.options import make_layer
from msctx.plan import DONE

TORCH, AGAIN = "torch", "torch again"
HOPELESS = 10
"""How many times as long as torch a choice takes in two runs when these are its figure."""
WORSE = 4
"""How many times torch's own error that of a choice may be where this is beyond the limit."""
ASKING = (*ALGORITHMS, "conv_algo_rules")
"""Options that ask for algorithms of convolution."""


@dataclass
class Checked:
    """What one run under a choice showed."""

    ran: str = ""
    error: float = float("inf")
    bound: float = 0.0
    workspace: int = 0
    peak: int | None = None
    reason: str = ""
    """Why there is nothing to time."""
    told: str = ""
    """What of the choice has no effect here."""


@dataclass
class Watch:
    """What is told while a comparison runs; raises KeyboardInterrupt where somebody wants it to end."""

    begin: Callable[[int], None] = lambda rows: None
    row: Callable[[str], None] = lambda name: None
    end_row: Callable[[], None] = lambda: None


@dataclass
class Outcome:
    rows: list[dict[str, Any]] = field(default_factory=list)
    partial: str = ""
    """Why rows are missing."""


def compare(comparison: Comparison, watch: Watch | None = None) -> Outcome:
    """All rows of a comparison; what is interrupted keeps the rows so far, and says so."""
    watch = watch or Watch()
    outcome = Outcome()
    base = Context(tuple(comparison.base.settings.layers), "comparison")
    began = time.perf_counter()
    try:
        with base:
            device = base.device
            waiting = deque(_cases(comparison, device))
            watch.begin(len(waiting))
            runner = Runner(comparison, device)
            while waiting:
                case = waiting.popleft()  # its tensors go with it
                if comparison.total is not None and time.perf_counter() - began > comparison.total:
                    outcome.partial = f"--quick ends after {comparison.total:.0f} seconds; the smaller rows were not measured"
                    break
                watch.row(f"{case.name} {case.direction}")
                outcome.rows.append(runner.row(case))
                watch.end_row()
    except KeyboardInterrupt:
        outcome.partial = "interrupted"
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
    def __init__(self, comparison: Comparison, device: torch.device) -> None:
        self._comparison, self._device = comparison, device
        self._impossible = combined(comparison.points)

    def row(self, case: Case) -> dict[str, Any]:
        row: dict[str, Any] = {
            **{key: getattr(case, key) for key in ("name", "direction", "problem", "count", "operations")},
            "baseline": {},
            "cells": [],
        }
        try:
            truth = case.truth()
        except Exception as error:
            row["reason"] = f"float64 cannot be computed: {_line(error)}"
            return row
        checked = {TORCH: self._check(case, {}, truth, float("inf"))}
        plain = checked[TORCH]
        limit = max(self._comparison.error_limit, WORSE * plain.error)
        if plain.reason:
            row["reason"] = f"torch's own path: {plain.reason}"
            return row
        names: dict[str, str] = {}  # point → the point that has the same say here
        asked: dict[tuple[tuple[str, str], ...], str] = {}
        for point in self._comparison.points:
            key = tuple(sorted((name, repr(value)) for name, value in relevant(point.options, case.direction).items()))
            names[point.name] = asked.setdefault(key, point.name)
            if names[point.name] == point.name:
                reason = self._impossible.get(point.name) or self._has_no_say(point, case)
                if not reason:
                    idle, is_all = self._not_carried_out(relevant(point.options, case.direction))
                    reason = idle if is_all else ""
                checked[point.name] = Checked(reason=reason) if reason else self._check(case, point.options, truth, limit)
                checked[point.name].told = "" if reason else idle
        timed = self._timed(
            case, [p for p in self._comparison.points if names[p.name] == p.name and not checked[p.name].reason]
        )
        row["baseline"] = {"ran": plain.ran, "ms": timed[TORCH].seconds * 1e3, "error": plain.error, "peak_bytes": plain.peak}
        row["control"] = timed[AGAIN].ratio
        row["noisy"] = abs(timed[AGAIN].ratio - 1) > NOISY or (timed[AGAIN].spread or 0) > 2 * NOISY
        row["rounds"] = timed[TORCH].rounds
        row["cells"] = [
            _cell(p, relevant(p.options, case.direction), checked[names[p.name]], timed.get(names[p.name]))
            for p in self._comparison.points
        ]
        return row

    def _has_no_say(self, point: Point, case: Case) -> str:
        """Why a choice cannot change a case at all."""
        if case.direction not in (*DIRECTIONS, "forward"):
            return ""
        left = relevant(point.options, case.direction if case.direction in DIRECTIONS else "none")
        if case.direction == "forward":
            left = {k: v for k, v in left.items() if not k.endswith(tuple(f"conv_{d}_algo" for d in DIRECTIONS))}
        return "" if left or not point.options else f"no option of it speaks of {case.direction}"

    def _not_carried_out(self, options: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes of options that have no effect here, and whether that is all of them."""
        plan, settings = self._context(options).plan, list(make_layer(options, "comparison").settings.values())
        told = []
        for setting in settings:
            rows = [row for row in plan.rows if row.option == setting.option.name and row.device == plan.main_device]
            if not any(row.status in DONE for row in rows):
                why = f"{rows[0].status}: {rows[0].reason}" if rows else f"says nothing of {plan.main_device}"
                told.append(f"{setting.spelling} {why}")
        return "; ".join(told), bool(settings) and len(told) == len(settings)

    def _context(self, options: Mapping[str, Any]) -> Context:
        """What a choice runs under: an algorithm that cannot run gives way to torch's own, and the row says so."""
        quiet = {"fallback": "silent"} if any(key.endswith(ASKING) for key in options) else {}
        if "fallback" in self._comparison.base.settings:
            quiet = {}
        layer = make_layer({**quiet, **options}, "comparison")
        return Context((layer,) if layer.settings else (), "comparison")

    def _check(self, case: Case, options: Mapping[str, Any], truth: list[torch.Tensor], limit: float) -> Checked:
        """One run under a choice, with its memory counted, held against float64.

        Args:
            limit: of the error, where the algorithm states no bound.
        """
        found = Checked()
        try:
            context = self._context(options)
            with _Pool() as counted, context:
                if case.module is not None:
                    context.watch(case.module)
                meter = Meter(self._device) if counted or self._device.type != "cpu" else None
                results = case.run()
                found.peak = meter.stop() if meter is not None else None
                found.error = error_of(results, truth, case.per_tensor)
                del results
                choices, computed = context.choices(), context.precisions()
        except (MsctxError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            found.reason = _line(error)
            return found
        mine = [row for row in choices if case.direction not in DIRECTIONS or row.direction == case.direction]
        found.workspace = max((row.workspace for row in mine), default=0)
        found.ran = _what_ran(mine, computed)
        algorithm = asked_algorithm(options, case.direction)
        if algorithm not in ("", "normal", "performance") and mine and all(row.provider == "torch" for row in mine):
            found.reason = "; ".join(mine[0].reasons) or "torch's own path ran"
        stated = max((row.error for row in mine), default=0.0) if case.direction in DIRECTIONS else 0.0
        found.bound = stated or limit
        if not found.reason and found.error == float("inf"):
            found.reason = "its result is not finite, or has another form, where float64's is right"
        elif not found.reason and found.error > found.bound:
            found.reason = f"its error of {found.error:.1e} is outside the bound of {found.bound:.1e}"
        return found

    def _timed(self, case: Case, points: list[Point]) -> dict[str, Ratio]:
        plain = min(seconds_of(case.run, self._device) for _ in range(2))
        entrants = [Entrant(TORCH, nullcontext, case.run), Entrant(AGAIN, nullcontext, case.run)]
        hopeless: dict[str, Ratio] = {}
        for point in points:
            context = self._context(point.options)
            with context:
                if case.module is not None:
                    context.watch(case.module)
                seconds = seconds_of(case.run, self._device)  # tunes, packs weights, compiles
                if seconds > HOPELESS * plain:
                    seconds = seconds_of(case.run, self._device)
            if seconds > HOPELESS * plain:
                hopeless[point.name] = Ratio(seconds, plain / seconds, None, 1)
            else:
                entrants.append(Entrant(point.name, lambda context=context: context, case.run))
        return interleaved(entrants, self._comparison.seconds, self._device) | hopeless


def _cell(point: Point, asked: Mapping[str, Any], checked: Checked, timed: Ratio | None) -> dict[str, Any]:
    cell: dict[str, Any] = {"point": point.name, "asked": dict(asked)}
    if checked.ran:
        cell["ran"] = checked.ran
    if checked.error != float("inf"):
        cell |= {"error": checked.error, "bound": checked.bound}
    if checked.reason or timed is None:
        return cell | {"reason": checked.reason or "not measured"}
    cell |= {"told": checked.told} if checked.told else {}
    return cell | {
        "ratio": timed.ratio,
        "spread": timed.spread,
        "ms": timed.seconds * 1e3,
        "noisy": timed.spread is not None and timed.spread > 2 * NOISY,
        "workspace": checked.workspace,
        "peak_bytes": checked.peak,
    }


def _what_ran(choices: list[Any], computed: Any) -> str:
    """The algorithms of convolutions with how often, and the dtypes of products under a precision policy."""
    ran = Counter[str]()
    for row in choices:
        ran[row.ran + (f" ({row.math})" if row.math in ("tf32",) else "")] += row.calls
    words = [name if len(ran) == 1 else f"{name} x{count}" for name, count in ran.most_common()]
    dtypes = Counter[str]()
    for row in computed:
        if row.operator in ("mm", "addmm", "bmm", "matmul", "linear", "conv2d", "convolution", "baddbmm") and row.why:
            dtypes[row.dtype] += row.calls
    words += [f"products in {name}" for name, _ in dtypes.most_common()]
    return ", ".join(words) or "torch"


def _line(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if not isinstance(error, MsctxError) else first


class _Pool(ExitStack):
    """With the pool of host memory, so that what a run takes can be counted; without where it cannot be built."""

    def __enter__(self) -> bool:  # type: ignore[override]
        super().__enter__()
        try:
            self.enter_context(Context((make_layer({"memory_optimize_level": "O0"}, "comparison"),), "comparison"))
        except MsctxError:
            return False
        return True
