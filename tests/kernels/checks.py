"""What is right: the reference in float64, its distance to a result, and what a row promises. Imports neither torch nor msctx."""

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from cases import Case, tensors

from kernels import BACKWARD_DATA, FORWARD, Kernels, Row, store, widen

Array = np.ndarray[Any, Any]
Tensors = tuple[Any, Any, Any]


@lru_cache(maxsize=128)
def stored(case: Case, kind: str = "normal", seed: int = 0) -> Tensors:
    """x, w and y of a case as its dtype holds them. Shared: not to be written to."""
    x, w, y = (store(t, case.dtype) for t in tensors(case, kind, seed))
    return x, w, y


def truth_of(kernels: Kernels, op: int, case: Case, given: Tensors) -> Array:
    """By the slow row in float64, which test_reference_row.py compares with torch."""
    x, w, y = (widen(t) for t in given)
    return kernels.run(kernels.row(op, "reference"), replace(case, dtype="float64"), (x, w, y))


@lru_cache(maxsize=512)
def truth(kernels: Kernels, op: int, case: Case, kind: str = "normal", seed: int = 0) -> Array:
    return truth_of(kernels, op, case, stored(case, kind, seed))


def terms(op: int, case: Case) -> int:
    """How many products a result is the sum of, at most."""
    channels = case.c if op == FORWARD else case.k
    return channels // case.groups * prod(case.window) if op in (FORWARD, BACKWARD_DATA) else case.n * prod(case.out)


def distance(result: Array, right: Array) -> float:
    """The largest error; infinite if something is not a number."""
    return float(np.nan_to_num(np.abs(widen(result) - right), nan=np.inf).max(initial=0.0))


def largest(right: Array) -> float:
    return float(np.abs(right).max(initial=0.0))


def takes(row: Row, case: Case) -> bool:
    """Whether the row is to take its own operation of the case."""
    if row.algorithm in ("gemm", "reference"):
        return True
    if row.algorithm == "product":
        return case.is_product
    if len(case.size) != 2 or case.dtype != "float32":
        return False
    if "winograd" in row.algorithm:
        windows = {(3, 3)} if row.algorithm.startswith("tiles") else {(3, 3), (5, 5)}
        return case.window in windows and set(case.stride + case.dilation) == {1}
    if row.algorithm == "windows":
        return case.k // case.groups >= 16
    is_depthwise = 1 < case.groups == case.c
    if row.algorithm == "depthwise":
        return is_depthwise and case.c <= case.k
    return not row.algorithm.startswith("tiles") or (prod(case.window) <= 1024 and not is_depthwise)
