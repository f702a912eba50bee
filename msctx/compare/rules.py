"""conv_algo_rules and matmul_algo_rules for the layers of a workload: conditions that match each layer and no other one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from msctx.compare.workload import LAYOUTS, Product, beside_defaults, text
from msctx.native.choices import ConvProblem

FIELDS = ("stride", "padding", "dilation", "output_padding", "groups", "transposed", "dtype", "layout")


def as_matched(problem: ConvProblem | Product) -> ConvProblem | Product:
    """A problem as rules see it: those for which this is equal always get the same algorithms.

    torch.matmul makes rows of leading axes where these share the right factor, else one batch. Strides do not show every layout.
    """
    if isinstance(problem, Product):
        *lead, rows, depth = problem.a
        batch, is_transposed = math.prod(lead), problem.b_transposed and _shows_layout(problem)
        if len(problem.b) == 2:
            return replace(problem, a=(batch * rows, depth), b_transposed=is_transposed)
        return replace(problem, a=(batch, rows, depth), b=(batch, *problem.b[-2:]), b_transposed=is_transposed)
    _, channels, *image = problem.input
    shows_layout = len(image) > 1 and channels > 1 and set(image) != {1}
    return replace(problem, layout=problem.layout if shows_layout else LAYOUTS[0])


def rules_of(asked: Mapping[Any, Any]) -> dict[str, Any]:
    """Conditions → the algorithms of the problems that they match.

    A rule applies to any batch, unless problems that differ in nothing else have other algorithms.

    Args:
        asked: each problem of a workload :func:`as_matched` → its algorithms, empty: PyTorch's own path.
    """
    rules = {}
    for problem, algorithms in asked.items():
        if algorithms:
            alike = [other for other in asked if _of_any_batch(other) == _of_any_batch(problem)]
            is_for_any = all(asked[other] == algorithms for other in alike)
            of = _of_product if isinstance(problem, Product) else _of_convolution
            rules[of(problem, "*" if is_for_any else None, asked)] = algorithms
    return rules


def _of_any_batch(problem: ConvProblem | Product) -> ConvProblem | Product:
    if isinstance(problem, ConvProblem):
        return replace(problem, input=(0, *problem.input[1:]))
    b = problem.b if len(problem.b) == 2 else (0, *problem.b[1:])
    return replace(problem, a=(0, *problem.a[1:]), b=b)


def _of_convolution(problem: ConvProblem, batch: str | None, others: Iterable[ConvProblem]) -> str:
    """A problem's image, weight and what else sets it apart from the other ones."""
    words = [f"input={batch or problem.input[0]}x{text(problem.input[1:])}", f"weight={text(problem.weight)}"]
    alike = [one for one in others if (one.input[1:], one.weight) == (problem.input[1:], problem.weight)]
    set_apart = beside_defaults(problem).keys() - {"dtype", "layout"}
    for field in FIELDS:
        value = getattr(problem, field)
        if field in set_apart or any(getattr(one, field) != value for one in alike):
            if isinstance(value, tuple):
                value = text(value if len(set(value)) > 1 else value[:1])
            words.append(f"{field}={str(value).lower()}")
    return " ".join(words)


def _of_product(problem: Product, batch: str | None, _: Any) -> str:
    first = batch or str(problem.a[0])
    weight = text(problem.b) if len(problem.b) == 2 else f"{first}x{text(problem.b[1:])}"
    words = [f"input={first}x{text(problem.a[1:])}", f"weight={weight}", f"dtype={problem.dtype}"]
    return " ".join([*words, *([f"layout={'NT' if problem.b_transposed else 'NN'}"] if _shows_layout(problem) else [])])


def _shows_layout(problem: Product) -> bool:
    return min(problem.b[-2:]) > 1
