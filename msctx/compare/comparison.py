"""The comparison itself: each choice is checked against float64, then timed beside torch's own path."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from msctx.compare import timed_cases as subjects
from msctx.compare.config import ALGORITHMS, PHASES, Comparison, name_of, relevant
from msctx.compare.result_and_recommendation import INTERRUPTED, Cell, Result, Row, result_of
from msctx.compare.timed_cases import Case, error_of, load
from msctx.compare.timing import NOISY, Entrant, Ratio, interleaved, ratio_between, seconds_of
from msctx.context import Context
from msctx.errors import MsctxError, MsctxWarning, text_of
from msctx.options import make_layer
from msctx.options.algorithm_policy import PRODUCT, REQUESTED, RULES
from msctx.options.precision_policy import PRECISION
from msctx.plan import DONE
from msctx.run.launch import run_point
from msctx.run.record import why
from msctx.run.runner import terminable
from msctx.run.sweep import words_of
from msctx.state_and_environment import environment

TORCH, AGAIN = "", "\0"
"""torch's own path and its control (A/A) among names of choices, which are never these."""
HOPELESS = 10
"""A choice that takes so many times as long as torch in its first runs is not measured."""
EXACT, ROUNDED = 1e-3, 0.02
"""The largest error of a choice that keeps the precision, and of one that lowers it, where the algorithm states no bound: gradients
of float32 differ where a ReLU decides otherwise between equal values; bfloat16 rounds to 4e-3, and errors add up."""
ROUNDING = ("conv_allow_tf32", "matmul_allow_tf32", "conv_allow_hf32", "matmul_allow_hf32", "allow_fp32_emulation", *PRECISION)
"""Options that lower the precision."""
WORSE, MEANINGLESS = 4, 0.5
"""How many times torch's own error that of a choice may be where this is beyond the limit; torch's own that leaves nothing to
compare with."""
DECIDING = ("normal", "performance")
"""Algorithms that stand for whichever msctx takes."""
OUR_KEYS = {"status", "started", "seconds", "restored", "run_dir", "error", "left_changed"}
Watch = Callable[[int, int, str], None]
"""Called with how many rows or runs are done, of how many, and what comes now."""


def run(comparison: Comparison, watch: Watch = lambda done, of, name: None) -> Result:
    """A comparison from its description to its result; what is interrupted keeps the rows so far and is marked so."""
    if comparison.subject == "experiment":
        return _run_experiment(comparison, watch)
    rows: list[Row] = []
    partial = ""
    deadline = time.perf_counter() + comparison.total
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), Context(tuple(comparison.base.settings.layers), "comparison") as base:
            waiting = deque(_cases(comparison, base.device))
            while waiting and not partial:
                case = waiting.popleft()  # its tensors go with it
                watch(len(rows), len(rows) + 1 + len(waiting), f"{case.name} {case.direction}")
                rows.append(_Measuring(comparison, base.device, case).row())
                if waiting and time.perf_counter() > deadline:
                    partial = f"--quick ends after {comparison.total:.0f} seconds; leave it out to measure the other rows, too"
    except KeyboardInterrupt:
        partial = INTERRUPTED
    return result_of(comparison, rows, environment(), partial)


def _cases(comparison: Comparison, device: torch.device) -> Iterator[Case]:
    """The largest first where time is short, else in their own order."""
    if comparison.layers is None:
        model = load(comparison.of, comparison.file, comparison.place)
        yield from subjects.of_model(model.to(device), comparison.keys["phases"])
        return
    layers = comparison.layers.layers
    if comparison.given.quick:
        layers = tuple(sorted(layers, key=lambda layer: -layer.operations * layer.count))
    for layer in layers:
        yield from subjects.of_layer(layer, comparison.keys["directions"], device)


class _Measuring:
    """Measures one row, inside the options that hold for all."""

    def __init__(self, comparison: Comparison, device: torch.device, case: Case) -> None:
        self._comparison, self._device, self._case = comparison, device, case

    def row(self) -> Row:
        case = self._case
        row = Row(name=case.name, direction=case.direction, problem=case.problem, count=case.count)
        try:
            with case.scope(), warnings.catch_warnings():
                warnings.simplefilter("ignore", MsctxWarning)  # the row names options without effect
                self._measure(row)
        except (Exception, SystemExit) as error:
            row.reason = f"it cannot run: {_line(error)}"
        return row

    def _measure(self, row: Row) -> None:
        case = self._case
        case.results()  # an error of the model's own is reported as such
        try:
            truth = case.truth()
        except Exception as error:
            row.reason = f"float64 cannot be computed: {_line(error)}"
            return
        plain = self._check(Cell(), {}, truth, float("inf"))
        if not all(tensor.isfinite().all() for tensor in truth):
            row.reason = "float64's own result is not finite: there is nothing to compare with"
        elif plain.reason:
            row.reason = f"torch's own path: {plain.reason}"
        elif plain.error is None or plain.error > MEANINGLESS:
            off = "is not finite" if plain.error is None else f"is {plain.error:.1e} off float64's"
            row.reason = f"torch's own result {off}: there is nothing to compare with"
        if row.reason:
            return
        entrants = [Entrant(TORCH, nullcontext, case.run), Entrant(AGAIN, nullcontext, case.run)]
        cells = []
        for point in self._comparison.points:
            cell = self._checked(point.name, point.options, truth, plain)
            cells.append(cell)
            if not cell.reason:
                context = self._context(point.options)
                entrants.append(Entrant(point.name, lambda context=context: context, case.run))  # type: ignore[misc]
                with _watching(context, case):
                    pass  # it knows the model from now on
        _fill(row, plain, cells, interleaved(entrants, self._comparison.keys["seconds"], self._device))

    def _checked(self, name: str, options: Mapping[str, Any], truth: list[torch.Tensor], plain: Cell) -> Cell:
        """A choice without its figures, which *plain*, torch's own path, decides about."""
        cell = Cell(point=name, requested=relevant(options, self._case.direction), status="unable")
        if not cell.requested and options and self._case.direction not in PHASES:
            cell.status, cell.reason = "no_say", f"none of its options applies to {self._case.direction}"
            return cell
        try:
            idle, is_all = self._no_effect(cell.requested)
        except MsctxError as error:  # options that cannot stand together
            idle, is_all = _line(error), True
        if is_all:
            cell.reason = idle
            return cell
        if idle:
            cell.no_effect = idle
        limit = self._comparison.keys["error_limit"] or (ROUNDED if {*map(name_of, options)} & {*ROUNDING} else EXACT)
        cell = self._check(cell, options, truth, max(limit, WORSE * (plain.error or 0.0)))
        if not cell.reason and cell.ms > HOPELESS * plain.ms:
            cell.status, cell.reason = "slow", f"not measured: it takes {cell.ms / plain.ms:.0f} times as long as torch"
        return cell

    def _no_effect(self, options: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes of options that have no effect here, and whether that is all of them."""
        plan, settings = self._context(options).plan, list(make_layer(options, "comparison").settings.values())
        reasons = []
        for setting in settings:
            rows = [row for row in plan.rows if row.option == setting.option.name and row.device == plan.main_device]
            if not any(row.status in DONE for row in rows):
                why = f"{rows[0].status}: {rows[0].reason}" if rows else f"does not apply to {plan.main_device}"
                reasons.append(f"{setting.spelling} {why}")
        return "; ".join(reasons), bool(settings) and len(reasons) == len(settings)

    def _context(self, options: Mapping[str, Any]) -> Context:
        """What a choice runs under: an algorithm that cannot run gives way to torch's own, and the row shows it."""
        asks = any(name_of(key) in (*ALGORITHMS, *RULES) for key in options)
        silent = {"fallback": "silent"} if asks and "fallback" not in self._comparison.base.settings else {}
        layer = make_layer({**silent, **options}, "comparison")
        return Context((layer,) if layer.settings else (), "comparison")

    def _check(self, cell: Cell, options: Mapping[str, Any], truth: list[torch.Tensor], limit: float) -> Cell:
        """Runs under a choice: one held against float64, which also tunes, and some that show how long it takes.

        Args:
            limit: of the error, where the algorithm states no bound.
        """
        case, cell.status = self._case, "measured"
        try:
            with _watching(context := self._context(options), case):
                error = error_of(case.results(), truth, case.per_value)
                choices, computed = context.choices(), context.precisions()
                cell.ms = 1e3 * min(seconds_of(case.run, self._device) for _ in range(3))
        except Exception as error_:  # whatever it is, it is this choice's own
            cell.reason, cell.status = _line(error_), "failed"
            return cell
        direction = PRODUCT if case.direction == "forward" else case.direction
        of_layer = direction in REQUESTED
        mine = [row for row in choices if not of_layer or row.direction == direction]
        cell.workspace, cell.ran = max((row.workspace for row in mine), default=0), _what_ran(mine, computed)
        bound = (max((row.error or 0.0 for row in mine), default=0.0) if of_layer else 0.0) or limit
        if error != float("inf"):
            cell.error, cell.bound = error, bound
        others = [row for row in mine if row.requested not in ("", *DECIDING) and row.ran != row.requested]
        names = {*map(name_of, options)}
        if of_layer and others:
            cell.reason, cell.status = "; ".join(others[0].reasons) or f"{others[0].ran} ran in its place", "unable"
        elif of_layer and names and names <= {*RULES} and not any(row.requested for row in mine):
            cell.reason, cell.status = "none of its rules applies to this layer", "no_say"
        elif error > bound:
            cell.reason, cell.status = f"its error of {error:.1e} is outside the bound of {bound:.1e}", "failed"
        return cell


def _fill(row: Row, plain: Cell, cells: list[Cell], timed: Mapping[str, Ratio | Exception]) -> None:
    """Put down the figures of a row: torch's own path, its control, and the choices without a reason to have none."""
    if isinstance(control := timed[AGAIN], Exception):
        raise control
    for cell, found in [(plain, timed[TORCH]), *((cell, timed.get(cell.point)) for cell in cells if not cell.reason)]:
        if isinstance(found, Ratio):
            cell.ratio, cell.ms, cell.spread, cell.times = found.ratio, found.seconds * 1e3, found.spread, found.ms
        elif found is not None:
            cell.reason, cell.status = _line(found), "failed"
    row.baseline, row.cells = plain, cells
    row.control, row.control_spread, row.rounds = control.ratio, control.spread, control.rounds
    row.noisy = abs(control.ratio - 1) > NOISY or (control.spread or 0) > 2 * NOISY


@contextmanager
def _watching(context: Context, case: Case) -> Iterator[None]:
    """A context that knows the case's model, now and whenever it is entered again."""
    with context:
        if case.module is not None:
            context.watch(case.module)
        yield


def _what_ran(choices: list[Any], computed: Any) -> str:
    """The algorithms with how often, and the dtypes of products under a precision policy."""
    ran, dtypes = Counter[str](), Counter[str]()
    for row in choices:
        ran[row.ran + (" (tf32)" if row.math == "tf32" else "")] += row.calls
    for row in computed:
        if row.operator in ("mm", "addmm", "bmm", "matmul", "linear", "conv2d", "convolution", "baddbmm") and row.why:
            dtypes[row.dtype] += row.calls
    words = [name if len(ran) == 1 else f"{name} x{count}" for name, count in ran.most_common()]
    return ", ".join([*words, *(f"products in {name}" for name, _ in dtypes.most_common())]) or "torch"


def _line(error: BaseException) -> str:
    first = text_of(error).strip().partition("\n")[0]
    return first if isinstance(error, MsctxError) else f"{type(error).__name__}: {first}".removesuffix(": ")


def _run_experiment(comparison: Comparison, watch: Watch) -> Result:
    """One row: the time of the whole run. Between the points the order changes from round to round.

    Each choice runs once before, to warm up and to tune, which is not counted; with ``--quick`` it runs just once.
    """
    choices: dict[str, Mapping[str, Any]] = {TORCH: {}, AGAIN: {}, **{one.name: one.options for one in comparison.points}}
    rounds = range(0 if comparison.given.quick else -1, comparison.keys["repetitions"])
    runs = [(number, name) for number in rounds for name in list(choices)[:: 1 if number % 2 == 0 else -1]]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    partial, late = "", f"--quick ends after {comparison.total:.0f} seconds; leave it out to run the other choices, too"
    deadline = time.perf_counter() + comparison.total
    with tempfile.TemporaryDirectory(prefix="msctx-compare-") as folder, terminable():
        try:
            for done, (number, name) in enumerate(runs):
                watch(done, len(runs), {TORCH: "torch", AGAIN: "torch again"}.get(name, name))
                if time.perf_counter() > deadline:
                    partial = late
                elif not _failure(found[name]) and not _failure(found[TORCH]):
                    words = [*comparison.given.overrides, *words_of(choices[name])]
                    result = run_point(comparison.of, words, Path(folder, str(done)))
                    if number >= 0 or result["status"] != "completed":
                        found[name].append(result)
        except KeyboardInterrupt:
            partial = INTERRUPTED
    return result_of(comparison, [_row_of_runs(comparison, found, partial or "it did not run")], environment(), partial)


def _row_of_runs(comparison: Comparison, found: Mapping[str, list[dict[str, Any]]], late: str) -> Row:
    row = Row(name=comparison.of, direction="run", problem="a whole run")
    plain, again = _seconds(found[TORCH]), _seconds(found[AGAIN])
    if not plain or not again:
        row.reason = _failure(found[TORCH]) or _failure(found[AGAIN]) or late
        return row
    timed, cells = {}, []
    for name, runs in found.items():
        cell = Cell(point=name, requested=next((dict(one.options) for one in comparison.points if one.name == name), {}))
        returned = runs[0] if runs else {}
        cell.metrics = {k: v for k, v in returned.items() if k not in OUR_KEYS and isinstance(v, int | float | str)}
        if reason := _failure(runs):
            cell.status, cell.reason = "failed", reason
        elif not runs:
            cell.status, cell.reason = "skipped", late
        else:
            timed[name] = ratio_between(plain, _seconds(runs))
            cell.status = "measured"
        cells.append(cell)
    _fill(row, cells[0], cells[2:], timed)
    return row


def _seconds(results: list[dict[str, Any]]) -> list[float]:
    return [max(float(result["seconds"]), 1e-3) for result in results if result.get("status") == "completed"]


def _failure(results: list[dict[str, Any]]) -> str:
    """The error of the run that failed, if one did."""
    return next((why(result) for result in results if result.get("status") != "completed"), "")
