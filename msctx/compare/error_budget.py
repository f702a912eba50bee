"""The fastest setting of each layer of a model such that the whole model's error stays within a budget.

Only the model itself shows what a layer's error does to the result, so each setting is judged by running it. All layers begin
with their fastest algorithm, and lowered where a choice has a precision_mode that lowers; then those that harm the result most for
the time that they gain take their next fastest algorithm, torch's own path in the end, and float32, until it fits. It is timed
beside the best setting for all layers that fits, in the same turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from msctx.compare import capture
from msctx.compare.cases import Case, error_of, of_layer, of_model
from msctx.compare.choose import is_gain, measured
from msctx.compare.comparison import Runner, Watch, entrant
from msctx.compare.config import Comparison
from msctx.compare.grid import ALGORITHMS, DIRECTIONS, Point, algorithms, besides, name_of
from msctx.compare.measure import PROVEN, Entrant, Ratio, interleaved, is_faster, margin
from msctx.compare.model import Model, load
from msctx.compare.workload import Convolution
from msctx.context import Context
from msctx.options import make_layer
from msctx.options.precision_rules import LOW, mode_of

PRECISION, LOWERED = "precision", "lowered"
Place = tuple[str, str]
"""The path of a module, and a direction or :data:`PRECISION`."""
Setting = dict[Place, str]
"""Place → its algorithm, or that it is lowered; what is not in it is torch's own, in float32."""
QUICK = 15.0
"""Seconds of searching with ``--quick``."""
FILE = "best-dtypes.cfg"
"""What keeps layers in float32, beside best.yaml."""


def find(comparison: Comparison, result: Mapping[str, Any], watch: Watch | None = None) -> dict[str, Any]:
    """The setting layer by layer, beside the best one for all layers that fits; or the ``reason`` why there is none.

    Args:
        comparison: of a model, with a budget.
        result: what the comparison of its points found.
    """
    assert comparison.budget is not None
    row = result["rows"][0]
    head = {"budget": comparison.budget, "phase": row["direction"]}
    if not row["baseline"]:
        return {**head, "reason": row["reason"]}
    (watch or Watch()).row("budget")
    deadline = None if comparison.total is None else time.perf_counter() + QUICK
    try:
        with Context(tuple(comparison.base.settings.layers), "budget") as base:
            model = load(comparison.of, comparison.file, comparison.place).to(base.device)
            (case,) = of_model(model, [row["direction"]])
            with case.scope(), tempfile.TemporaryDirectory(prefix="msctx-budget-") as folder:
                return head | _Search(comparison, model, case, base.device, Path(folder), deadline).find(result)
    except _Late:
        return {**head, "reason": f"--quick had no more than {QUICK:.0f} seconds for it"}
    except Exception as error:
        return {**head, "reason": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


class _Late(Exception):
    pass


class _Search:
    def __init__(
        self,
        comparison: Comparison,
        model: Model,
        case: Case,
        device: torch.device,
        folder: Path,
        deadline: float | None = None,
    ) -> None:
        assert comparison.budget is not None
        self._comparison, self._model, self._case, self._device = comparison, model, case, device
        self._budget, self._file, self._deadline = comparison.budget, folder / FILE, deadline
        self._lowered: set[str] = set()
        """The modules that the options beside algorithms lower, unless a file keeps them."""
        self._truth = case.truth()
        self._directions = DIRECTIONS if case.direction == "training" else DIRECTIONS[:1]
        self._rest: Mapping[str, Any] = {}
        self._tried = 0

    def find(self, result: Mapping[str, Any]) -> dict[str, Any]:
        own = self._error({})
        finalists: list[tuple[dict[str, Any], Setting, set[str], float]] = []
        for rest in _rests(self._comparison.points):
            self._rest, self._lowered = rest, set()
            candidates = self._precisions() | self._algorithms()
            self._lowered = {path for path, kind in candidates if kind == PRECISION}
            setting, error = self._within(candidates)
            if (setting or rest) and error <= self._budget:
                finalists.append((rest, setting, self._lowered, error))
        row = next(row for row in result["rows"] if row["direction"] == self._case.direction)
        fits = [cell for cell in measured(row) if cell["error"] is not None and cell["error"] <= self._budget]
        uniform = max(fits, key=lambda cell: cell["ratio"], default=None)
        if not finalists and uniform is None and own > self._budget:
            return {
                "reason": f"no setting meets the budget: the error of torch's own path is {own:.1e}, and no choice has less"
            }
        contexts = [self._context(rest, setting, lowered) for rest, setting, lowered, _ in finalists]
        ratios = self._ratios([*contexts, *([self._context(uniform["asked"], {}, set())] if uniform else [])])
        best = max(range(len(finalists)), key=lambda number: ratios[number], default=None)
        layers: dict[str, Any] = {"ratio": 1.0, "error": own, "rules": {}, "float32": [], "options": {}}
        if best is not None and ratios[best] > 1:
            rest, setting, lowered, error = finalists[best]
            kept = _kept(setting, lowered)
            layers = {
                "ratio": ratios[best],
                "error": error,
                "rules": _rules(setting, kept),
                "float32": kept,
                "options": dict(rest),
            }
        for_all: dict[str, Any] = {"point": "", "ratio": 1.0, "error": own, "options": {}}
        if uniform is not None and ratios[-1] > 1:
            for_all = {"point": uniform["point"], "ratio": ratios[-1], "error": uniform["error"], "options": uniform["asked"]}
        # what holds for all is simpler, and so is taken where it is as fast
        taken = layers if layers["ratio"] > for_all["ratio"] * (1 + PROVEN) or not for_all["options"] else for_all
        return {
            "per_layer": layers,
            "uniform": for_all,
            "tried": self._tried,
            "best": {
                "ratio": taken["ratio"],
                "points": [taken.get("point", "") if one is row else "" for one in result["rows"]],
                "options": _set_by(taken),
            },
            "files": {FILE: _dtypes(taken["float32"])} if taken.get("float32") else {},
        }

    def _precisions(self) -> dict[Place, list[tuple[str, float]]]:
        """For each module whose layers the options lower, what that spares in ms.

        All of them are there: one that spares nothing alone may spare the casts between others, but is the first to be kept.
        """
        asked = {setting.option.name: setting.value for setting in make_layer(self._rest, "budget").settings.values()}
        if mode_of(asked) not in LOW or "customize_dtypes" in asked or "customize_dtypes" in self._comparison.base.settings:
            return {}
        runner = Runner(replace(self._comparison, points=(Point(LOWERED, self._rest),)), self._device, self._deadline)
        known: dict[tuple[str, str], float] = {}
        found: dict[Place, float] = {}
        for layer in capture.problems(self._model):
            if layer.dtype != "float32" or not layer.name or ":" in layer.name:
                continue
            for case in of_layer(layer, self._directions, self._device):
                if (key := (case.problem, case.direction)) not in known:
                    known[key] = _spared(runner.row(case)).get(LOWERED, 0.0)
                found[layer.name, PRECISION] = found.get((layer.name, PRECISION), 1e-6) + known[key]
        return {place: [(LOWERED, spared)] for place, spared in found.items()}

    def _algorithms(self) -> dict[Place, list[tuple[str, float]]]:
        """For each convolution of the model and direction the algorithms that spare time there, in ms, the fastest first.

        A module that computes several problems has the sums over them, of algorithms that spare time in all.
        """
        layers = [layer for layer in capture.problems(self._model) if isinstance(layer, Convolution) and layer.name]
        known: dict[tuple[str, str], dict[str, float]] = {}
        found: dict[Place, dict[str, float]] = {}
        for direction in self._directions:
            names = {
                algorithms(p.options).get(direction, "") for p in self._comparison.points if besides(p.options) == self._rest
            }
            alone = [Point(name, {f"conv_{direction}_algo": name}) for name in sorted(names - {""})]
            runner = Runner(replace(self._comparison, points=tuple(alone)), self._device, self._deadline)
            with self._context(self._rest, {}, set()):  # beside torch's own path under the same other options
                for layer in layers:
                    (case,) = of_layer(layer, [direction], self._device)
                    if (key := (case.problem, direction)) not in known:
                        known[key] = _spared(runner.row(case))
                    place, here = (layer.name, direction), known[key]
                    before = found.get(place, here)
                    sums = {name: here[name] + before[name] * (place in found) for name in here if name in before}
                    found[place] = sums
        return {place: sorted(each.items(), key=lambda one: -one[1]) for place, each in found.items() if each}

    def _within(self, candidates: Mapping[Place, list[tuple[str, float]]]) -> tuple[Setting, float]:
        """The fastest setting found that fits, and its error; that of the best try where none fits."""
        left = {place: list(each) for place, each in candidates.items()}
        harm: dict[tuple[Place, str], float] = {}
        while True:
            setting = {place: each[0][0] for place, each in left.items()}
            error = self._error(setting)
            if error <= self._budget or not setting:
                return setting, error
            for place, each in left.items():
                if (place, each[0][0]) not in harm:
                    alone = {place: each[0][0]} | ({(place[0], PRECISION): LOWERED} if place[0] in self._lowered else {})
                    harm[place, each[0][0]] = self._error(alone) ** 2 / each[0][1]
            worst = max(left, key=lambda place: harm[place, left[place][0][0]])
            left[worst].pop(0)
            if not left[worst]:
                del left[worst]

    def _context(self, options: Mapping[str, Any], setting: Setting, lowered: set[str]) -> Context:
        kept = _kept(setting, lowered)
        rules = _rules(setting, kept)
        asks = rules or any(name_of(key) in ALGORITHMS for key in options)
        more: dict[str, Any] = {"conv_algo_rules": rules} if rules else {}
        if kept:
            self._file.write_text(_dtypes(kept), encoding="utf-8")
            more["customize_dtypes"] = str(self._file)
        layer = make_layer({**({"fallback": "silent"} if asks else {}), **options, **more}, "budget")
        return Context((layer,) if layer.settings else (), "budget")

    def _error(self, setting: Setting) -> float:
        if self._deadline is not None and time.perf_counter() > self._deadline:
            raise _Late
        self._tried += 1
        with self._context(self._rest, setting, self._lowered) as context:
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
        found = interleaved(entrants, self._comparison.seconds, self._device)
        control = found["again"]
        noise = control.noise if isinstance(control, Ratio) else float("inf")
        ratios = []
        for one in (found[str(number)] for number in range(len(contexts))):
            proven = isinstance(one, Ratio) and is_faster(one.ratio, margin(one.spread, one.rounds), noise)
            ratios.append(0.0 if not isinstance(one, Ratio) else one.ratio if proven else min(one.ratio, 1.0))
        return ratios


def _rests(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The different sets of options beside algorithms that the points have."""
    found: list[dict[str, Any]] = []
    for point in points:
        if (rest := besides(point.options)) not in found:
            found.append(rest)
    return found


def _set_by(found: Mapping[str, Any]) -> dict[str, Any]:
    """The options that bring a setting about."""
    rules = {"conv_algo_rules": found["rules"]} if found.get("rules") else {}
    return {**found["options"], **rules, **({"customize_dtypes": FILE} if found.get("float32") else {})}


def _kept(setting: Setting, lowered: set[str]) -> list[str]:
    """The modules that stay in float32."""
    return sorted(path for path in lowered if (path, PRECISION) not in setting)


def _dtypes(kept: Sequence[str]) -> str:
    """A file for customize_dtypes: input, weight and bias of these modules are float32, and so is what they give."""
    return "".join(f"{path}::InputDtype:float32,float32,float32,OutputDtype:float32\n" for path in kept)


def _rules(setting: Setting, kept: Sequence[str]) -> dict[str, dict[str, str]]:
    """conv_algo_rules; what is kept in float32 is left to torch, since its algorithms were measured lowered."""
    rules: dict[str, dict[str, str]] = {}
    for (path, direction), algorithm in setting.items():
        if direction != PRECISION and path not in kept:
            rules.setdefault(path, {})[direction] = algorithm
    return rules


def _spared(row: Mapping[str, Any]) -> dict[str, float]:
    """Algorithm → milliseconds, of those that are faster than torch beyond the noise."""
    base = row["baseline"].get("ms", 0.0)
    return {cell["point"]: base * (1 - 1 / cell["ratio"]) for cell in measured(row) if is_gain(row, cell)}
