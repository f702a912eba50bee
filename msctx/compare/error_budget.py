"""The fastest algorithm for each convolution of a model such that the whole model's error stays within a budget.

What a layer's error does to the result only the model itself can say, so each setting is judged by running it: all layers begin with
their fastest algorithm, and those that cost the result most for the time that they gain go back to torch's own path until it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import yaml

from msctx.compare import capture
from msctx.compare.cases import error_of, of_layer, of_model
from msctx.compare.comparison import Runner
from msctx.compare.config import Comparison
from msctx.compare.grid import ALGORITHMS, DIRECTIONS, Point
from msctx.compare.measure import Entrant, interleaved
from msctx.compare.model import Model, load
from msctx.compare.result import measured
from msctx.compare.workload import Convolution
from msctx.context import Context
from msctx.options import make_layer
from msctx.run.record import plain

Setting = dict[tuple[str, str], str]
"""(path of a module, direction) → its algorithm; what is not in it is torch's own."""


@dataclass(frozen=True)
class Gain:
    """What one algorithm spares in one place, in milliseconds of one pass."""

    place: tuple[str, str]
    algorithm: str
    ms: float


def find(comparison: Comparison, result: Mapping[str, Any]) -> dict[str, Any]:
    """The setting layer by layer, beside the best one for all layers that was measured.

    Args:
        comparison: of a model, with a budget.
        result: what the comparison of its points found.
    """
    assert comparison.budget is not None
    base = Context(tuple(comparison.base.settings.layers), "budget")
    with base:
        model = load(comparison.of, comparison.file, comparison.place).to(base.device)
        return _Search(comparison, model, base.device).find(result)


class _Search:
    def __init__(self, comparison: Comparison, model: Model, device: torch.device) -> None:
        self._comparison, self._model, self._device = comparison, model, device
        self._case = next(iter(of_model(model, comparison.phases[:1])))
        self._truth = self._case.truth()
        self._directions = DIRECTIONS if self._case.direction == "training" else DIRECTIONS[:1]
        self._rest: dict[str, Any] = {}

    def find(self, result: Mapping[str, Any]) -> dict[str, Any]:
        budget = self._comparison.budget
        assert budget is not None
        best: dict[str, Any] = {"ratio": 1.0, "error": self._error({}), "setting": {}, "options": {}, "steps": 0}
        for rest in _rests(self._comparison.points):
            self._rest = rest
            gains = self._gains(rest)
            setting, error, steps = self._within(gains, budget)
            if setting or rest:
                ratio = self._ratio(setting) if error <= budget else 0.0
                if ratio > best["ratio"]:
                    best = {"ratio": ratio, "error": error, "setting": setting, "options": rest, "steps": steps}
        rules: dict[str, dict[str, str]] = {}
        for (path, direction), algorithm in best["setting"].items():
            rules.setdefault(path, {})[direction] = algorithm
        context = {**best["options"], **({"conv_algo_rules": rules} if rules else {})}
        return {
            "budget": budget,
            "phase": self._case.direction,
            "per_layer": {"ratio": best["ratio"], "error": best["error"], "rules": rules, "tried": best["steps"]},
            "uniform": self._uniform(result, budget),
            "recommended": yaml.safe_dump(plain({"context": context}), sort_keys=False, width=130) if context else "",
        }

    def _uniform(self, result: Mapping[str, Any], budget: float) -> dict[str, Any]:
        row = next(row for row in result["rows"] if row["direction"] == self._case.direction)
        fits = [cell for cell in measured(row) if cell["error"] <= budget]
        best = max(fits, key=lambda cell: cell["ratio"], default=None)
        if best is None or best["ratio"] < 1:
            return {"point": "", "ratio": 1.0, "error": row["baseline"].get("error", 0.0)}
        return {"point": best["point"], "ratio": best["ratio"], "error": best["error"]}

    def _gains(self, rest: Mapping[str, Any]) -> list[Gain]:
        """For each convolution of the model, what each algorithm among the points spares there."""
        layers = [layer for layer in capture.problems(self._model) if isinstance(layer, Convolution) and layer.name]
        wanted = [p for p in self._comparison.points if _rest(p.options) == rest and _algorithms(p.options)]
        alone = [Point(name, {**rest, **options}) for name, options in _alone(wanted, self._directions).items()]
        runner = Runner(replace(self._comparison, points=tuple(alone)), self._device)
        known: dict[tuple[str, str], list[tuple[str, float]]] = {}
        found = []
        for layer in layers:
            for case in of_layer(layer, self._directions, self._device):
                if (key := (case.problem, case.direction)) not in known:
                    known[key] = _spared(runner.row(case))
                found += [Gain((layer.name, case.direction), name, ms) for name, ms in known[key]]
        return found

    def _within(self, gains: Sequence[Gain], budget: float) -> tuple[Setting, float, int]:
        """The fastest setting that fits, its error, and how many were tried."""
        setting: Setting = {}
        ms: dict[tuple[str, str], float] = {}
        for gain in gains:
            if gain.ms > ms.get(gain.place, 0.0):
                setting[gain.place], ms[gain.place] = gain.algorithm, gain.ms
        error, tried = self._error(setting), 1
        if error <= budget or not setting:
            return setting, error, tried
        harm = {}
        for place, algorithm in setting.items():
            harm[place] = self._error({place: algorithm}) ** 2 / ms[place]
            tried += 1
        order = sorted(setting, key=lambda place: -harm[place])
        low, high = 0, len(order)  # errors add up, so fewer algorithms are hardly worse: how many must go is bisected
        while low < high:
            middle = (low + high) // 2
            kept = {place: setting[place] for place in order[middle:]}
            tried += 1
            if self._error(kept) <= budget:
                high = middle
            else:
                low = middle + 1
        kept = {place: setting[place] for place in order[high:]}
        return kept, self._error(kept), tried + 1

    def _context(self, setting: Setting) -> Context:
        rules: dict[str, dict[str, str]] = {}
        for (path, direction), algorithm in setting.items():
            rules.setdefault(path, {})[direction] = algorithm
        options = {**self._rest, **({"conv_algo_rules": rules} if rules else {})}
        layer = make_layer({**({"fallback": "silent"} if rules else {}), **options}, "budget")
        return Context((layer,) if layer.settings else (), "budget")

    def _error(self, setting: Setting) -> float:
        with self._context(setting) as context:
            context.watch(self._model.module)
            return error_of(self._case.run(), self._truth, self._case.per_tensor)

    def _ratio(self, setting: Setting) -> float:
        context, plain = self._context(setting), Context((), "budget")
        entrants = [Entrant("torch", lambda: plain, self._case.run), Entrant("ours", lambda: context, self._case.run)]
        with context:
            context.watch(self._model.module)
            self._case.run()
        return interleaved(entrants, self._comparison.seconds, self._device)["ours"].ratio


def _rests(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The different sets of options beside algorithms that the points have."""
    found: list[dict[str, Any]] = []
    for point in points:
        if (rest := _rest(point.options)) not in found:
            found.append(rest)
    return found


def _rest(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not key.endswith(ALGORITHMS)}


def _algorithms(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key.endswith(ALGORITHMS)}


def _alone(points: Sequence[Point], directions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each algorithm that the points name, for all directions for which they name it."""
    found: dict[str, dict[str, Any]] = {}
    for point in points:
        for key, name in _algorithms(point.options).items():
            if any(key.endswith(f"conv_{direction}_algo") for direction in directions):
                found.setdefault(str(name), {})[key] = name
    return found


def _spared(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    base = row["baseline"].get("ms", 0.0)
    return [(cell["point"], base * (1 - 1 / cell["ratio"])) for cell in measured(row) if cell["ratio"] > 1 + cell["spread"] / 2]
