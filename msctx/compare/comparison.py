"""The comparison itself: each choice is checked against float64, then timed beside torch's own path."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from msctx.compare import cases as subjects
from msctx.compare import finite, identity
from msctx.compare.cases import Case, error_of
from msctx.compare.config import Comparison, combined
from msctx.compare.grid import ALGORITHMS, PHASES, Point, name_of, relevant
from msctx.compare.measure import NOISY, Entrant, Failed, Interrupted, Ratio, interleaved, seconds_of
from msctx.compare.model import load
from msctx.compare.result import FAILED, NO_SAY, SKIPPED, UNABLE, Baseline, Cell, Outcome, Row, Status
from msctx.context import Context
from msctx.effects.precision_mode import PRECISION
from msctx.errors import MsctxError, text_of
from msctx.memory.meter import Meter
from msctx.notices import warn, warn_or_print
from msctx.options import make_layer
from msctx.options.conv_rules import ASKED, PRODUCT, RULES
from msctx.plan import DONE

TORCH, AGAIN = "", "\0"
"""torch's own path and its control among names of choices, which are never these."""
HOPELESS = 10
"""How many times as long as torch a choice takes in each of its first runs when the fastest of these is its figure."""
TRIES = 5
"""First runs of a choice, fewer where they take long: one packs weights or compiles, and another process may disturb the next."""
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
ASKING = (*ALGORITHMS, "matmul_algo", *RULES)
"""Options that ask for algorithms."""
DECIDING = ("normal", "performance")
"""Algorithms that stand for whichever msctx takes."""
NOT_FINITE = "is not finite, or has another form, where float64's is right"
LATE = "not measured: --quick had no time left; leave it out"


@dataclass
class Watch:
    """Progress of a comparison."""

    begin: Callable[[int], None] = lambda rows: None
    row: Callable[[str], None] = lambda name: None
    end_row: Callable[[], None] = lambda: None


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
                    outcome.partial = (
                        f"--quick ends after {comparison.total:.0f} seconds; leave it out to measure the other rows, too"
                    )
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
        yield from subjects.of_model(model.to(device), comparison.keys.phases)
        return
    found = [
        case for layer in comparison.layers.layers for case in subjects.of_layer(layer, comparison.keys.directions, device)
    ]
    if comparison.total is not None:
        found.sort(key=lambda case: -case.operations * case.count)
    yield from found


class Runner:
    """Measures rows one by one, inside the options that hold for all."""

    def __init__(self, comparison: Comparison, device: torch.device, deadline: float | None = None) -> None:
        self._comparison, self._device, self._deadline = comparison, device, deadline
        self._points = comparison.points
        self._impossible = combined(comparison.points)
        self.interrupted = False
        """By Ctrl-C, in a row that has its figures nevertheless."""
        self._unmatched: dict[str, list[set[str]]] = {}
        """Choice → for each case with convolutions, the warnings of rules that matched none there."""

    def is_late(self) -> bool:
        return self._deadline is not None and time.perf_counter() > self._deadline

    def row(self, case: Case) -> Row:
        row = Row(
            name=case.name,
            direction=case.direction,
            problem=case.problem,
            count=case.count,
            operations=case.operations,
            baseline=Baseline(),
            cells=[],
        )
        try:
            with case.scope():
                self._measure(case, row)
        except _Unmeasurable as why:
            row.reason = str(why)
        except (Exception, SystemExit) as error:
            row.reason = f"it cannot run: {_line(error)}"
        return row

    def _measure(self, case: Case, row: Row) -> None:
        own = case.results()  # an error of the model's own is reported as such
        where = finite.place(case) if finite.others(own) else ""
        first = f"; NaN or infinity comes up first {where}" if where else ""
        with _because("float64 cannot be computed"):
            truth = case.truth()
        if any(map(finite.has_none, truth)):
            raise _Unmeasurable(f"float64's own result has no finite value: there is nothing to hold a choice against{first}")
        plain, _ = self._check(case, Point(TORCH, {}), truth, float("inf"))
        if plain.reason:
            raise _Unmeasurable(f"torch's own path: {plain.reason}{first}")
        error = float("inf") if plain.error is None else plain.error
        if error > MEANINGLESS:
            off = NOT_FINITE if error == float("inf") else f"is {error:.1e} off float64's"
            raise _Unmeasurable(f"torch's own result {off}: there is nothing to hold a choice against{first}")
        if where:
            total, of = finite.others(own), sum(one.numel() for one in own)
            text = (
                f"{case.name} {case.direction}: {total} of {of} values of its own result are NaN or infinite, the first {where}"
            )
            warn_or_print("compare", text, f"{text}; errors count the finite values alone")
        leaders = self._check_all(case, row, truth, error)
        wanted = [p for p, cell in zip(self._points, row.cells, strict=True) if leaders[p.name] == p.name and not cell.reason]
        with _because("torch's own path"):
            timed = self._timed(case, wanted)
        base, control = timed[TORCH], timed[AGAIN]
        assert isinstance(base, Ratio)
        assert isinstance(control, Ratio)
        row.baseline = Baseline(ran=plain.ran, ms=base.seconds * 1e3, error=error, peak_bytes=plain.peak_bytes, times=base.ms)
        row.control, row.control_spread, row.rounds = control.ratio, control.spread, base.rounds
        again = {} if self.interrupted else self._confirmed(case, timed)
        for cell in row.cells:
            leader = leaders[cell.point]
            _add_figures(cell, timed.get(leader), again.get(leader))
            if leader != cell.point:
                cell.same_as = leader
        others = [one for name, one in timed.items() if name not in (TORCH, AGAIN) and isinstance(one, Ratio)]
        spreads = [one.spread for one in others if one.spread is not None]
        wide = sum(spread > 2 * NOISY for spread in spreads)
        row.noisy = abs(control.ratio - 1) > NOISY or (control.spread or 0) > 2 * NOISY or 2 * wide > len(spreads) > 0

    def _check_all(self, case: Case, row: Row, truth: list[torch.Tensor], error: float) -> dict[str, str]:
        """A cell for each choice, without its figures; returns the choice that is measured for each: torch's own path where it
        comes to that.

        Args:
            error: torch's own.
        """
        alike: dict[str, tuple[Cell, identity.Identity]] = {}
        measured_as = {identity.TORCH: TORCH}
        leaders: dict[str, str] = {}
        for point in self._points:
            asked = relevant(point.options, case.direction)
            key = repr(sorted(asked.items()))
            if key not in alike:
                alike[key] = self._checked(point, asked, case, truth, self._limit(point, error))
            cell, comes_to = alike[key]
            row.cells.append(cell.model_copy(update={"point": point.name}))
            leaders[point.name] = point.name if cell.reason else measured_as.setdefault(comes_to, point.name)
        return leaders

    def _limit(self, point: Point, error: float) -> float:
        """The error that a choice may have where torch has this one, and the algorithm states no bound."""
        limit = self._comparison.keys.error_limit
        if limit is None:
            asked = {setting.option.name for setting in make_layer(point.options, "comparison").settings.values()}
            limit = ROUNDED if asked & set(ROUNDING) else EXACT
        return max(limit, WORSE * error)

    def _confirmed(self, case: Case, timed: Mapping[str, Ratio | Failed]) -> dict[str, Ratio | Failed]:
        """The fastest choices, measured once more: the largest of many figures is too large by what luck added to it.

        The smaller figure counts; where another choice is the fastest by that, its turn comes.
        """
        options = {point.name: point.options for point in self._points}
        figures = {
            name: one.ratio
            for name, one in timed.items()
            if name in options and isinstance(one, Ratio) and one.spread is not None
        }
        found: dict[str, Ratio | Failed] = {}
        for _ in range(CONFIRMED):
            best = max(figures, key=lambda name: figures[name], default=TORCH)
            if best == TORCH or figures[best] <= 1 or best in found or self.is_late() or self.interrupted:
                break
            context = self._context(options[best])
            entrants = [Entrant(TORCH, nullcontext, case.run), entrant("again", context, case)]
            try:
                with _watching(context, case):
                    pass  # it knows the model from now on
                found[best] = interleaved(entrants, self._comparison.keys.seconds / 2, self._device, self.is_late)["again"]
            except Interrupted as interrupted:
                self.interrupted, found[best] = True, interrupted.found["again"]
            except Exception as error:  # torch's own: what was measured once is not to be relied on
                found[best] = Failed(MsctxError(f"torch's own path, when it was measured once more: {_line(error)}"))
            again = found[best]
            figures[best] = min(figures[best], again.ratio) if isinstance(again, Ratio) else 0.0
        return found

    def _checked(
        self, point: Point, asked: Mapping[str, Any], case: Case, truth: list[torch.Tensor], limit: float
    ) -> tuple[Cell, identity.Identity]:
        def without_time(status: Status, reason: str) -> tuple[Cell, identity.Identity]:
            return Cell(point=point.name, asked=dict(asked), status=status, reason=reason), identity.TORCH

        if reason := self._impossible.get(point.name):
            return without_time(UNABLE, reason)
        if _has_no_say(point, asked, case):
            return without_time(NO_SAY, f"none of its options applies to {case.direction}")
        if self.is_late():
            return without_time(SKIPPED, LATE)
        idle, is_all = self._not_carried_out(asked)
        if is_all:
            return without_time(UNABLE, idle)
        cell, comes_to = self._check(case, point, truth, limit)
        cell.asked = dict(asked)
        if idle:
            cell.not_carried_out = idle
        return cell, comes_to

    def _not_carried_out(self, options: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes of options that have no effect here, and whether that is all of them."""
        plan, settings = self._context(options).plan, list(make_layer(options, "comparison").settings.values())
        reasons = []
        for setting in settings:
            rows = [row for row in plan.rows if row.option == setting.option.name and row.device == plan.main_device]
            if not any(row.status in DONE for row in rows):
                why = f"{rows[0].status}: {rows[0].reason}" if rows else f"does not apply to {plan.main_device}"
                reasons.append(f"{setting.spelling} {why}")
        return "; ".join(reasons), bool(settings) and len(reasons) == len(settings)

    def _context(self, options: Mapping[str, Any], unmatched: Callable[[list[str]], None] = lambda found: None) -> Context:
        """What a choice runs under: an algorithm that cannot run gives way to torch's own, and the row shows it."""
        asks = any(name_of(key) in ASKING for key in options) and "fallback" not in self._comparison.base.settings
        layer = make_layer({**({"fallback": "silent"} if asks else {}), **options}, "comparison")
        return Context((layer,) if layer.settings else (), "comparison", unmatched=unmatched)

    def tell_unmatched(self) -> None:
        """Warn of rules that matched nothing in any case."""
        for found in self._unmatched.values():
            for text in sorted(set.intersection(*found)):
                warn(text.partition(":")[0], text, text)

    def _check(self, case: Case, point: Point, truth: list[torch.Tensor], limit: float) -> tuple[Cell, identity.Identity]:
        """Two runs under a choice: one held against float64, which also tunes, and one whose memory is counted.

        Args:
            limit: of the error, where the algorithm states no bound.

        Returns:
            The cell without its figures, and what the choice comes to: choices with one identity are measured as one.
        """
        cell = Cell(point=point.name, asked={}, status="measured")
        try:
            unmatched: list[str] = []
            context = self._context(point.options, unmatched.extend)
            moved = identity.moved(context, is_compiled=case.module is not None)
            with _pool() as counted, _watching(context, case):
                error = error_of(case.results(), truth, case.per_value)
                meter = Meter(self._device) if counted or self._device.type != "cpu" else None
                case.run()
                cell.peak_bytes = meter.stop() if meter is not None else None
                choices, computed = context.choices(), context.precisions()
        except Exception as error_:  # whatever it is, it is this choice's own
            cell.reason, cell.status = _line(error_), FAILED
            return cell, identity.TORCH
        if choices or unmatched:
            self._unmatched.setdefault(repr(point.options), []).append({*unmatched})
        direction = PRODUCT if case.direction == "forward" else case.direction
        of_layer = direction in ASKED
        mine = [row for row in choices if not of_layer or row.direction == direction]
        cell.workspace = max((row.workspace for row in mine), default=0)
        cell.ran = _what_ran(mine, computed)
        bound = max((row.error or 0.0 for row in mine), default=0.0) if of_layer else 0.0
        bound = bound or limit
        if error != float("inf"):
            cell.error, cell.bound = error, bound
        others = [row for row in mine if row.asked not in ("", *DECIDING) and row.ran != row.asked]
        names = {setting.option.name for setting in make_layer(point.options, "comparison").settings.values()}
        if of_layer and others:
            cell.reason, cell.status = "; ".join(others[0].reasons) or f"{others[0].ran} ran in its place", UNABLE
        elif of_layer and names and names <= {*RULES} and not any(row.asked for row in mine):
            cell.reason, cell.status = "none of its rules applies to this layer", NO_SAY
        elif error > bound:
            cell.reason, cell.status = f"its error of {error:.1e} is outside the bound of {bound:.1e}", FAILED
            if error == float("inf"):
                cell.reason = f"its result {NOT_FINITE}"
        return cell, (moved, identity.kernels(mine))

    def _timed(self, case: Case, points: list[Point]) -> dict[str, Ratio | Failed]:
        plain = min(seconds_of(case.run, self._device) for _ in range(2))
        entrants = [Entrant(TORCH, nullcontext, case.run), Entrant(AGAIN, nullcontext, case.run)]
        found: dict[str, Ratio | Failed] = {}
        for point in points:
            context = self._context(point.options)
            try:
                with _watching(context, case):
                    seconds = self._first_runs(case, HOPELESS * plain)
            except Exception as error:
                found[point.name] = Failed(error)
                continue
            if seconds > HOPELESS * plain:
                found[point.name] = Ratio(seconds, plain / seconds, None, 1)
            else:
                entrants.append(entrant(point.name, context, case))
        try:
            return interleaved(entrants, self._comparison.keys.seconds, self._device, self.is_late) | found
        except Interrupted as interrupted:
            self.interrupted = True
            return interrupted.found | found

    def _first_runs(self, case: Case, hopeless: float) -> float:
        """Seconds of the fastest of a choice's first runs, which end with one that takes no longer than *hopeless*."""
        runs = [seconds_of(case.run, self._device)]
        while min(runs) > hopeless and (len(runs) < 2 or (len(runs) < TRIES and sum(runs) < self._comparison.keys.seconds)):
            runs.append(seconds_of(case.run, self._device))
        return min(runs)


def entrant(name: str, context: Context, case: Case) -> Entrant:
    return Entrant(name, lambda: context, case.run)


@contextmanager
def _watching(context: Context, case: Case) -> Iterator[None]:
    """A context that knows the case's model, now and whenever it is entered again."""
    with context:
        if case.module is not None:
            context.watch(case.module)
        yield


class _Unmeasurable(Exception):
    """Why a row has no figures at all."""


@contextmanager
def _because(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _Unmeasurable(f"{what}: {_line(error)}") from None


def _has_no_say(point: Point, asked: Mapping[str, Any], case: Case) -> bool:
    """Whether a choice cannot change a case at all."""
    return not asked and bool(point.options) and case.direction not in PHASES


def _add_figures(cell: Cell, timed: Ratio | Failed | None, again: Ratio | Failed | None) -> None:
    """A cell's figures, of both times that it was measured the smaller one; or why there are none."""
    if cell.reason:
        return
    failed = next((one for one in (timed, again) if isinstance(one, Failed)), None)
    if failed is not None:
        cell.reason, cell.status = _line(failed.error), FAILED
    elif not isinstance(timed, Ratio):
        cell.reason, cell.status = "not measured", SKIPPED
    else:
        figure = timed
        if isinstance(again, Ratio):
            cell.measured = [timed.ratio, again.ratio]
            figure = min(timed, again, key=lambda one: one.ratio)
        cell.ratio, cell.ms = figure.ratio, figure.seconds * 1e3
        cell.spread, cell.times = timed.spread, timed.ms
        cell.noisy = timed.spread is not None and timed.spread > 2 * NOISY


def _what_ran(choices: list[Any], computed: Any) -> str:
    """The algorithms of convolutions with how often, and the dtypes of products under a precision policy."""
    ran, dtypes = Counter[str](), Counter[str]()
    for row in choices:
        ran[row.ran + (" (tf32)" if row.math == "tf32" else "")] += row.calls
    for row in computed:
        if row.operator in ("mm", "addmm", "bmm", "matmul", "linear", "conv2d", "convolution", "baddbmm") and row.why:
            dtypes[row.dtype] += row.calls
    words = [counted(ran)] if ran else []
    return ", ".join([*words, *(f"products in {name}" for name, _ in dtypes.most_common())]) or "torch"


def counted(ran: Counter[str]) -> str:
    """Names with how often each occurs, where there are several."""
    return ", ".join(name if len(ran) == 1 else f"{name} x{count}" for name, count in ran.most_common())


def _line(error: BaseException) -> str:
    first = text_of(error).strip().partition("\n")[0]
    return first if isinstance(error, MsctxError) else f"{type(error).__name__}: {first}".removesuffix(": ")


@contextmanager
def _pool() -> Iterator[bool]:
    """With the pool of host memory, so that what a run takes can be counted; gives ``False`` where it cannot be built."""
    with ExitStack() as stack:
        try:
            stack.enter_context(Context((make_layer({"memory_optimize_level": "O0"}, "comparison"),), "comparison"))
        except MsctxError:
            yield False
        else:
            yield True
