"""The fastest setting of each layer of a model such that the whole model's error stays within a budget.

Only the model itself shows what a layer's error does to the result, so each setting is judged by running it. All layers begin
with their fastest algorithm, and lowered where a choice has a precision_mode that lowers; then those that harm the result most for
the time that they gain take their next fastest algorithm, torch's own path in the end, and float32, until it fits. It is timed
beside the best setting for all layers that fits, in the same turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from msctx.compare import capture
from msctx.compare.cases import Case, error_of, of_layer, of_model
from msctx.compare.choose import is_gain, rests
from msctx.compare.comparison import ASKING, Runner, Watch, entrant
from msctx.compare.config import Comparison
from msctx.compare.grid import DIRECTIONS, Point, asked_algorithm, besides, name_of
from msctx.compare.measure import PROVEN, Entrant, Ratio, interleaved, is_faster, margin
from msctx.compare.model import Model, load
from msctx.compare.result import Best, Budget, ByLayer, ForAll, Result, Row
from msctx.compare.summary import recommend
from msctx.context import Context
from msctx.errors import named
from msctx.native.choices import ConvProblem
from msctx.options import make_layer
from msctx.options.conv_rules import PRODUCT, option_of
from msctx.options.precision_rules import LOW, mode_of

PRECISION, LOWERED = "precision", "lowered"
Place = tuple[str, str]
"""The path of a module, and a direction, a product or :data:`PRECISION`."""
Candidates = dict[Place, list[tuple[str, float]]]
"""Place → the algorithms that spare time there, or that it is lowered, each with how many ms; the fastest first."""
QUICK = 15.0
"""Seconds of searching with ``--quick``."""
FILE = "best-dtypes.cfg"
"""What keeps layers in float32, beside best.yaml."""


@dataclass(frozen=True)
class Setting:
    """What each layer computes with; one that is not in it has torch's own path, in float32."""

    each: Mapping[Place, str] = field(default_factory=dict)
    """Place → its algorithm, or that it is lowered."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What holds for all layers."""
    lowered: frozenset[str] = frozenset()
    """The modules that the options lower unless a file keeps them."""

    @property
    def kept(self) -> list[str]:
        """The modules that stay in float32."""
        return sorted(path for path in self.lowered if (path, PRECISION) not in self.each)

    @property
    def rules(self) -> dict[str, dict[str, str]]:
        """conv_algo_rules; what is kept in float32 is left to torch, since its algorithms were measured lowered."""
        rules: dict[str, dict[str, str]] = {}
        for (path, direction), algorithm in self.each.items():
            if direction in DIRECTIONS and path not in self.kept:
                rules.setdefault(path, {})[direction] = algorithm
        return rules

    @property
    def products(self) -> dict[str, str]:
        """The same of matmul_algo_rules."""
        found = {path: name for (path, direction), name in self.each.items() if direction == PRODUCT}
        return {path: name for path, name in found.items() if path not in self.kept}

    @property
    def dtypes(self) -> str:
        """A file for customize_dtypes: input, weight and bias of these modules are float32, and so is what they give."""
        return "".join(f"{path}::InputDtype:float32,float32,float32,OutputDtype:float32\n" for path in self.kept)

    def set_by(self, file: str) -> dict[str, Any]:
        """The options that bring it about, where a file holds the dtypes."""
        rules = {"conv_algo_rules": self.rules, "matmul_algo_rules": self.products}
        rules = {name: each for name, each in rules.items() if each}
        return {**self.options, **rules, **({"customize_dtypes": file} if self.kept else {})}


def find(comparison: Comparison, budget: float, result: Result, watch: Watch | None = None) -> None:
    """Put down the setting layer by layer, beside the best one for all layers that fits, and recommend the better one; or the
    reason why there is none.

    Args:
        comparison: of a model.
        result: what the comparison of its points found.
    """
    row = result.rows[0]
    result.budget = found = Budget(budget=budget, phase=row.direction)
    if not row.baseline.ms:
        found.reason = row.reason
        return
    (watch or Watch()).row("budget")
    deadline = None if comparison.total is None else time.perf_counter() + QUICK
    try:
        with Context(tuple(comparison.base.settings.layers), "budget") as base:
            model = load(comparison.of, comparison.file, comparison.place).to(base.device)
            (case,) = of_model(model, [row.direction])
            with case.scope(), tempfile.TemporaryDirectory(prefix="msctx-budget-") as folder:
                _Search(comparison, model, case, base.device, Path(folder), deadline).into(result, found)
    except _Late:
        found.reason = f"the search takes longer than the {QUICK:.0f} seconds of --quick; leave it out"
    except Exception as error:
        found.reason = named(error).partition("\n")[0]


class _Late(Exception):
    pass


class _Search:
    def __init__(
        self, comparison: Comparison, model: Model, case: Case, device: torch.device, folder: Path, deadline: float | None
    ) -> None:
        self._comparison, self._model, self._case, self._device = comparison, model, case, device
        self._file, self._deadline = folder / FILE, deadline
        self._truth = case.truth()
        self._directions = DIRECTIONS if case.direction == "training" else DIRECTIONS[:1]
        self._tried = 0

    def into(self, result: Result, found: Budget) -> None:
        own = self._error(Setting())
        finalists: list[tuple[Setting, float]] = []
        for rest in rests(point.options for point in self._comparison.points):
            candidates = self._precisions(rest) | self._algorithms(rest)
            lowered = frozenset(path for path, kind in candidates if kind == PRECISION)
            setting, error = self._within(found.budget, candidates, Setting({}, rest, lowered))
            if (setting.each or rest) and error <= found.budget:
                finalists.append((setting, error))
        row = next(row for row in result.rows if row.direction == self._case.direction)
        fits = [cell for cell in row.timed if cell.error is not None and cell.error <= found.budget]
        uniform = max(fits, key=lambda cell: cell.ratio, default=None)
        if not finalists and uniform is None and own > found.budget:
            found.reason = (
                f"no setting meets the budget: the error of torch's own path is {own:.1e}, and no choice has less; raise the budget "
                "above that"
            )
            return
        settings = [setting for setting, _ in finalists] + ([Setting(options=uniform.asked)] if uniform else [])
        ratios = self._ratios([self._context(setting) for setting in settings])
        found.per_layer, found.uniform, found.tried = ByLayer(error=own), ForAll(error=own), self._tried
        by_layer, for_all = Setting(), Setting()
        best = max(range(len(finalists)), key=lambda number: ratios[number], default=None)
        if best is not None and ratios[best] > 1:
            by_layer, error = finalists[best]
            found.per_layer = ByLayer(
                ratio=ratios[best],
                error=error,
                rules=by_layer.rules,
                products=by_layer.products,
                float32=by_layer.kept,
                options=dict(by_layer.options),
            )
        if uniform is not None and ratios[-1] > 1:
            for_all = settings[-1]
            found.uniform = ForAll(point=uniform.point, ratio=ratios[-1], error=uniform.error or 0.0, options=uniform.asked)
        # what holds for all is simpler, and so is taken where it is as fast
        taken, ratio, point = for_all, found.uniform.ratio, found.uniform.point
        if found.per_layer.ratio > ratio * (1 + PROVEN) or not for_all.options:
            taken, ratio, point = by_layer, found.per_layer.ratio, ""
        points = [point if one is row else "" for one in result.rows]
        recommend(result, Best(ratio=ratio, points=points, options=taken.set_by(FILE)))
        result.files = {FILE: taken.dtypes} if taken.kept else {}

    def _precisions(self, rest: Mapping[str, Any]) -> Candidates:
        """For each module whose layers the options lower, what that spares in ms.

        All of them are there: one that spares nothing alone may spare the casts between others, but is the first to be kept.
        """
        asked = {setting.option.name: setting.value for setting in make_layer(rest, "budget").settings.values()}
        if mode_of(asked) not in LOW or "customize_dtypes" in asked or "customize_dtypes" in self._comparison.base.settings:
            return {}
        spared = self._spared([Point(LOWERED, rest)])
        found: dict[Place, float] = {}
        for layer in capture.problems(self._model):
            if layer.problem.dtype != "float32" or not layer.name or ":" in layer.name:
                continue
            for case in of_layer(layer, self._directions, self._device):
                place = layer.name, PRECISION
                found[place] = found.get(place, 1e-6) + spared(case).get(LOWERED, 0.0)
        return {place: [(LOWERED, ms)] for place, ms in found.items()}

    def _algorithms(self, rest: Mapping[str, Any]) -> Candidates:
        """For each convolution of the model and direction, and each product of a module, the algorithms that spare time there.

        A module that computes several problems has the sums over them, of algorithms that spare time in all. The rule of a product
        holds for its gradients, too, which are not timed.
        """
        layers = [layer for layer in capture.problems(self._model) if layer.name and ":" not in layer.name]
        points = [point.options for point in self._comparison.points if besides(point.options) == rest]
        found: dict[Place, dict[str, float]] = {}
        for direction in (*self._directions, PRODUCT):
            names = {asked_algorithm(options, direction) for options in points} - {""}
            spared = self._spared([Point(name, {option_of(direction): name}) for name in sorted(names)])
            with self._context(Setting(options=rest)):  # beside torch's own path under the same other options
                for layer in layers if names else ():
                    if isinstance(layer.problem, ConvProblem) == (direction == PRODUCT):
                        continue
                    (case,) = of_layer(layer, [direction], self._device)
                    place, here = (layer.name, direction), spared(case)
                    before = found.get(place, dict.fromkeys(here, 0.0))
                    found[place] = {name: ms + before[name] for name, ms in here.items() if name in before}
        return {place: sorted(each.items(), key=lambda one: -one[1]) for place, each in found.items() if each}

    def _spared(self, points: Sequence[Point]) -> Callable[[Case], dict[str, float]]:
        """A function that measures what each point spares in a case, once for each problem."""
        runner = Runner(replace(self._comparison, points=tuple(points)), self._device, self._deadline)
        known: dict[Place, dict[str, float]] = {}

        def of(case: Case) -> dict[str, float]:
            key = case.problem, case.direction
            if key not in known:
                known[key] = _spared(runner.row(case))
            return known[key]

        return of

    def _within(self, budget: float, candidates: Candidates, start: Setting) -> tuple[Setting, float]:
        """The fastest setting found that fits, and its error; that of the best try where none fits."""
        left = {place: list(each) for place, each in candidates.items()}
        harm: dict[tuple[Place, str], float] = {}
        while True:
            setting = replace(start, each={place: each[0][0] for place, each in left.items()})
            error = self._error(setting)
            if error <= budget or not left:
                return setting, error
            for place, each in left.items():
                name, ms = each[0]
                if (place, name) not in harm:
                    alone = {place: name} | ({(place[0], PRECISION): LOWERED} if place[0] in start.lowered else {})
                    harm[place, name] = self._error(replace(start, each=alone)) ** 2 / ms
            worst = max(left, key=lambda place: harm[place, left[place][0][0]])
            left[worst].pop(0)
            if not left[worst]:
                del left[worst]

    def _context(self, setting: Setting) -> Context:
        if setting.kept:
            self._file.write_text(setting.dtypes, encoding="utf-8")
        options = setting.set_by(str(self._file))
        asks = any(name_of(key) in ASKING for key in options)
        layer = make_layer({**({"fallback": "silent"} if asks else {}), **options}, "budget")
        return Context((layer,) if layer.settings else (), "budget")

    def _error(self, setting: Setting) -> float:
        if self._deadline is not None and time.perf_counter() > self._deadline:
            raise _Late
        self._tried += 1
        with self._context(setting) as context:
            context.watch(self._model.module)
            return error_of(self._case.results(), self._truth, self._case.per_value)

    def _ratios(self, contexts: Sequence[Context]) -> list[float]:
        """Speeds beside torch's own path, all in the same turns; what is not faster beyond the noise is 1 at most."""
        entrants = [Entrant("", nullcontext, self._case.run), Entrant("again", nullcontext, self._case.run)]
        for number, context in enumerate(contexts):
            with context:
                context.watch(self._model.module)
                self._case.run()
            entrants.append(entrant(str(number), context, self._case))
        found = interleaved(entrants, self._comparison.keys.seconds, self._device)
        control = found["again"]
        noise = control.noise if isinstance(control, Ratio) else float("inf")
        ratios = []
        for one in (found[str(number)] for number in range(len(contexts))):
            proven = isinstance(one, Ratio) and is_faster(one.ratio, margin(one.spread, one.rounds), noise)
            ratios.append(0.0 if not isinstance(one, Ratio) else one.ratio if proven else min(one.ratio, 1.0))
        return ratios


def _spared(row: Row) -> dict[str, float]:
    """Algorithm → milliseconds, of those that are faster than torch beyond the noise."""
    return {cell.point: row.baseline.ms * (1 - 1 / cell.ratio) for cell in row.timed if is_gain(row, cell)}
