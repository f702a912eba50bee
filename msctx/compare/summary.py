"""What follows from the rows of a comparison: totals, costs, the settings to recommend, and an earlier result beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from msctx.compare import choose, layer_rules, product_rules
from msctx.compare.config import Comparison, canonical, pairs
from msctx.compare.grid import algorithms, asked_algorithm
from msctx.compare.result import FAILED, FORMAT, Best, Change, Cost, CostOfRow, Outcome, PointOptions, Result, Row, Total
from msctx.compare.workload import Product
from msctx.native.choices import ConvProblem
from msctx.options import OPTIONS
from msctx.options.conv_rules import PRODUCT
from msctx.run.record import plain

RULES, RULES_OF_PRODUCTS = "conv_algo_rules", "matmul_algo_rules"
COSTS = ("deterministic", "thread_invariant", "batch_invariant")
"""Options whose cost has a view of its own: the time with them over that without."""


def result_of(comparison: Comparison, outcome: Outcome, environment: Mapping[str, Any], load: float | None = None) -> Result:
    """All of it."""
    layers, settings = comparison.layers, comparison.base.settings
    result = Result(
        format=FORMAT,
        name=comparison.name,
        subject={comparison.subject: comparison.of},
        source=layers.source if layers else "",
        command=comparison.command,
        partial=outcome.partial,
        interrupted=outcome.interrupted,
        load=load,
        seconds_per_row=comparison.keys.seconds,
        error_limit=comparison.keys.error_limit,
        context={name: setting.value for name in settings if (setting := settings.get(name))},
        points=[PointOptions(name=point.name, options=dict(point.options)) for point in comparison.points],
        rows=outcome.rows,
        environment={key: value for key, value in environment.items() if key != "argv"},
        files={},
    )
    result.totals, result.costs = totals(result), list(costs(comparison, result))
    recommend(result, nothing(result) if result.noise else best(comparison, result))
    return result


def totals(result: Result) -> list[Total]:
    """For each choice: the time of all rows as often as they occur, torch's over its own; where it has no time, torch's counts.

    Rows in which it was stopped do not count, unless there are no others.
    """
    found = []
    for point in result.points:
        cells = [(row, cell) for row in result.rows for cell in row.cells if cell.point == point.name]
        timed = [cell for _, cell in cells if cell.ratio]
        if not timed:
            continue
        stopped = sum(cell.spread is None for cell in timed)
        sure = cells if stopped == len(timed) else [one for one in cells if not (one[1].ratio and one[1].spread is None)]
        base = sum(row.count * row.baseline.ms for row, _ in sure)
        own = sum(row.count * row.baseline.ms / (cell.ratio or 1.0) for row, cell in sure)
        total = Total(
            point=point.name,
            ratio=base / own,
            error=max((cell.error for cell in timed if cell.error is not None), default=None),
            workspace=max(cell.workspace or 0 for cell in timed),
            peak_bytes=max(cell.peak_bytes or 0 for cell in timed),
            rows=len(timed),
            rows_of_torch=len(cells) - len(timed),
            rows_stopped=stopped,
        )
        found.append(total)
    return found


def best(comparison: Comparison, result: Result) -> Best:
    """What to take: for layers the best choice of each, which rules bring about; else one choice for all rows."""
    rows, points = result.rows, result.points
    if comparison.layers is None:
        plans = choose.for_all(rows, points)
    else:
        problems = _problems(comparison, rows)
        keys = [(one, row.direction) if one else n for n, (one, row) in enumerate(zip(problems, rows, strict=True))]
        plans = choose.by_row(rows, points, keys)
    plan, ratio = choose.best(rows, plans)
    if plan is None:
        return nothing(result)
    options = canonical(plan.rest)
    options |= {} if comparison.layers is None else _rules(comparison, result, plan.points, options)
    return Best(ratio=ratio, points=list(plan.points), options=options)


def nothing(result: Result) -> Best:
    """torch's own path in all rows."""
    return Best(ratio=1.0, points=[""] * len(result.rows), options={})


def recommend(result: Result, found: Best) -> None:
    """Put down what to take, and the same as YAML for ``msctx run``, with what holds for all; empty: torch's own path."""
    whole = {"context": {**result.context, **found.options}}
    result.best = found
    result.recommended = yaml.safe_dump(plain(whole), sort_keys=False, width=130) if found.options else ""


def costs(comparison: Comparison, result: Result) -> Iterator[Cost]:
    """What determinism costs: for each pair of choices that differ in it alone, the time with it over that without, by row."""
    for option in COSTS:
        for one, other, first, second in pairs(comparison, option):
            if _is_on(first) == _is_on(second):
                continue
            on, off = (one.name, other.name) if _is_on(first) else (other.name, one.name)
            rows = []
            for number, row in enumerate(result.rows):
                with_, without = row.cell_of(on), row.cell_of(off)
                if with_ and without:
                    rows.append(CostOfRow(row=number, cost=without.ratio / with_.ratio))
            if rows:
                mean = math.exp(sum(math.log(row.cost) for row in rows) / len(rows))
                yield Cost(option=option, with_=on, without=off, geometric_mean=mean, rows=rows)


def _is_on(value: Any) -> bool:
    return str(value).upper() in ("ON", "TRUE", "1", "YES")


def _problems(comparison: Comparison, rows: Sequence[Row]) -> list[ConvProblem | Product | None]:
    """The problem of each row as rules see it."""
    assert comparison.layers is not None
    found = {(one.name, str(one.problem)): _as_matched(one.problem) for one in comparison.layers.layers}
    return [found.get((row.name, row.problem)) for row in rows]


def _as_matched(problem: ConvProblem | Product) -> ConvProblem | Product:
    return product_rules.as_matched(problem) if isinstance(problem, Product) else layer_rules.as_matched(problem)


def _rules(comparison: Comparison, result: Result, chosen: Sequence[str], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Rules that run the chosen algorithms. Those that were in force when these were measured come first, as they won."""
    assert comparison.layers is not None
    options = {point.name: point.options for point in result.points}
    every = [_as_matched(one.problem) for one in comparison.layers.layers]
    convolutions: dict[ConvProblem, dict[str, str]] = {one: {} for one in every if isinstance(one, ConvProblem)}
    products = dict.fromkeys((one for one in every if isinstance(one, Product)), "")
    for row, problem, point in zip(result.rows, _problems(comparison, result.rows), chosen, strict=True):
        asked = options.get(point, {})
        if isinstance(problem, Product):
            products[problem] = asked_algorithm(asked, PRODUCT)
        elif problem is not None and (algorithm := algorithms(asked).get(row.direction)):
            convolutions[problem][row.direction] = algorithm
    found: dict[str, Any] = {RULES: layer_rules.rules_of(convolutions), RULES_OF_PRODUCTS: product_rules.rules_of(products)}
    return {name: _after(rest.get(name) or result.context.get(name), name, rules) for name, rules in found.items() if rules}


def _after(first: str | None, name: str, rules: Mapping[str, Any]) -> Any:
    kind = OPTIONS[name].kind
    return f"{first}; {kind.parse(rules)}" if first and kind else rules


# --- an earlier result ------------------------------------------------------------------------------------------------


def against(result: Result, earlier: Result) -> list[Change]:
    """Each figure of an earlier result beside today's: both are ratios to torch in their own run. Choices that are not asked for
    today are left out."""
    rows = {(row.label, row.problem): row for row in result.rows}
    points = {point.name for point in result.points}
    found = []
    for row in earlier.rows:
        now = rows.get((row.label, row.problem))
        for cell in row.timed:
            if cell.point not in points:
                continue
            one = Change(name=row.name, direction=row.direction, problem=row.problem, point=cell.point, change=None)
            today = next((cell_ for cell_ in now.cells if cell_.point == cell.point), None) if now else None
            if today is not None and today.ratio:
                one.change = today.ratio / cell.ratio
            else:
                one.reason = today.reason if today else (now and now.reason) or result.partial or "there is no such row today"
            found.append(one)
    return found


def elsewhere(result: Result, earlier: Result) -> list[str]:
    """In what the machine and the settings of an earlier result differ from today's, so that ratios may, too."""

    def what(one: Result) -> dict[str, Any]:
        names = {"processor": "cpu", "instructions": "cpu_capability", "cores": "cpu_count"}
        libraries = one.environment.get("libraries") or {}
        found = {name: one.environment.get(key) for name, key in names.items()}
        return {**found, "torch": libraries.get("torch"), "msctx": libraries.get("msctx"), "context": plain(one.context)}

    then, now = what(earlier), what(result)
    return [f"{key}: {then[key]}, now {now[key]}" for key in now if then[key] != now[key]]


def below(result: Result, limit: float, *, beside_earlier: bool = False) -> list[str]:
    """What is slower than it may be, or has no time: against the earlier result where there is one, else against torch.

    Without an earlier result a choice that cannot run somewhere is left to torch there; one that fails or is wrong is reported.
    """
    found = [f"not everything was measured: {result.partial}"] if result.partial else []
    if beside_earlier:
        if not result.against:
            return [*found, "the earlier result has no row and choice in common with this one"]
        for one in result.against:
            if one.change is None or one.change < limit:
                found.append(f"{one.name} {one.direction}, {one.point}: {changed(one)}")
        return found
    speeds = {total.point: total.ratio for total in result.totals}
    found += [f"{point.name}: has no time in any row" for point in result.points if point.name not in speeds]
    found += [f"{row.label}: {row.reason}" for row in result.rows if not row.cells]
    found += [f"{row.label}, {cell.point}: {cell.reason}" for row in result.rows for cell in row.cells if cell.status == FAILED]
    stopped = [(row, cell) for row in result.rows for cell in row.timed if cell.spread is None and cell.ratio < limit]
    found += [
        f"{row.label}, {cell.point}: stopped after its first runs, {cell.ratio:.2g} of torch's speed" for row, cell in stopped
    ]
    return found + [f"{name}: {ratio:.2f} of torch's speed" for name, ratio in speeds.items() if ratio < limit]


def changed(one: Change) -> str:
    return f"had a time, and now: {one.reason}" if one.change is None else f"{one.change:.2f} of the earlier ratio"
