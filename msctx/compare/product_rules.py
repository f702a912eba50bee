"""matmul_algo_rules for the products of a workload, as layer_rules.py has rules for its convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from msctx.compare.workload import Product, text


def as_matched(problem: Product) -> Product:
    """A product as rules see it: torch.matmul makes rows of leading axes where these share the right factor, else one batch."""
    *lead, rows, depth = problem.a
    is_transposed = problem.b_transposed and _shows_layout(problem)
    if len(problem.b) == 2:
        return replace(problem, a=(math.prod(lead) * rows, depth), b_transposed=is_transposed)
    batch = math.prod(lead)
    return replace(problem, a=(batch, rows, depth), b=(batch, *problem.b[-2:]), b_transposed=is_transposed)


def _shows_layout(problem: Product) -> bool:
    """Strides do not show it of a single row or column."""
    return min(problem.b[-2:]) > 1


def rules_of(asked: Mapping[Product, str]) -> dict[str, str]:
    """Conditions → the algorithms of the products that they match. No product is matched by the condition of another.

    A rule applies to any number of rows, or of matrices in a batch, unless products that differ in nothing else have other
    algorithms.

    Args:
        asked: each product of a workload :func:`as_matched` → its algorithm, empty: torch's own path.
    """
    rules = {}
    for problem, algorithm in asked.items():
        if algorithm:
            alike = [other for other in asked if _of_any_size(other) == _of_any_size(problem)]
            rules[_condition(problem, is_for_any=all(asked[other] == algorithm for other in alike))] = algorithm
    return rules


def _of_any_size(problem: Product) -> Product:
    b = problem.b if len(problem.b) == 2 else (0, *problem.b[1:])
    return replace(problem, a=(0, *problem.a[1:]), b=b)


def _condition(problem: Product, is_for_any: bool) -> str:
    first = "*" if is_for_any else str(problem.a[0])
    weight = text(problem.b) if len(problem.b) == 2 else f"{first}x{text(problem.b[1:])}"
    words = [f"input={first}x{text(problem.a[1:])}", f"weight={weight}", f"dtype={problem.dtype}"]
    return " ".join([*words, *([f"layout={'NT' if problem.b_transposed else 'NN'}"] if _shows_layout(problem) else [])])
