"""conv_algo_rules for the layers of a workload: which layers no condition can separate, and the conditions that separate the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msctx.compare.workload import LAYOUTS, beside_defaults, text
from msctx.native.choices import ConvProblem

FIELDS = ("stride", "padding", "dilation", "output_padding", "groups", "transposed", "dtype", "layout")


def as_matched(problem: ConvProblem) -> ConvProblem:
    """A problem as rules see it: problems for which this is equal always get the same algorithms."""
    _, channels, *image = problem.input
    shows_layout = len(image) > 1 and channels > 1 and set(image) != {1}
    return replace(problem, layout=problem.layout if shows_layout else LAYOUTS[0])


def rules_of(asked: Mapping[ConvProblem, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Conditions → the algorithms of the problems that they match. No problem is matched by the condition of another.

    A rule applies to any batch, unless problems that differ in nothing else have other algorithms.

    Args:
        asked: each problem of a workload :func:`as_matched`, those without an algorithm too → direction → algorithm.
    """
    rules = {}
    for problem, algorithms in asked.items():
        if algorithms:
            batches = [other for other in asked if _of_any_batch(other) == _of_any_batch(problem)]
            for_any = all(asked[other] == algorithms for other in batches)
            rules[_condition(problem, asked, "*" if for_any else str(problem.input[0]))] = dict(algorithms)
    return rules


def _of_any_batch(problem: ConvProblem) -> ConvProblem:
    return replace(problem, input=(0, *problem.input[1:]))


def _condition(problem: ConvProblem, others: Iterable[ConvProblem], batch: str) -> str:
    """A problem's image, weight and what else sets it apart from the other ones."""
    words = [f"input={batch}x{text(problem.input[1:])}", f"weight={text(problem.weight)}"]
    alike = [one for one in others if (one.input[1:], one.weight) == (problem.input[1:], problem.weight)]
    set_apart = beside_defaults(problem).keys() - {"dtype", "layout"}
    for field in FIELDS:
        value = getattr(problem, field)
        if field in set_apart or any(getattr(one, field) != value for one in alike):
            if isinstance(value, tuple):
                value = text(value if len(set(value)) > 1 else value[:1])
            words.append(f"{field}={str(value).lower()}")
    return " ".join(words)
