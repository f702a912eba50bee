"""The slow row, against which all others are checked, against torch's convolution in float64 and its autograd."""

from dataclasses import replace

import numpy as np
import pytest
from by_torch import by_torch
from cases import CASES, OTHER_CASES
from checks import distance, largest, stored, truth

from kernels import DTYPES, OPS, Kernels

ALL = (*CASES, *OTHER_CASES)
EVERY_DTYPE = (CASES[4], CASES[6], CASES[9], CASES[11], CASES[13], *OTHER_CASES[9:])


@pytest.mark.parametrize("op", OPS)
def test_is_what_torch_computes(kernels: Kernels, op: int) -> None:
    row = kernels.row(op, "reference")
    every = [(case, dtype) for case in ALL for dtype in (DTYPES if case in EVERY_DTYPE else {case.dtype, "float64"})]
    for each in (replace(case, dtype=dtype) for case, dtype in every):
        given = stored(each)
        right = by_torch(op, each, given)
        result = kernels.run(row, each, given, threads=2)
        assert result.dtype == given[0].dtype
        assert distance(result, right) <= kernels.error(row, each) * largest(right), each


@pytest.mark.parametrize("op", OPS)
def test_bound_is_about_one_rounding(kernels: Kernels, op: int) -> None:
    """What the others are measured with must itself be far closer than any of them promises to be."""
    row = kernels.row(op, "reference")
    for dtype, unit in (("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        assert kernels.error(row, replace(CASES[0], dtype=dtype)) <= 2 * unit
    assert kernels.error(row, replace(CASES[14], dtype="float64")) < 1e-12


@pytest.mark.parametrize("op", OPS)
def test_is_rounded_once(kernels: Kernels, op: int) -> None:
    """To float32 the result is the float64 sum's nearest, to the last bit: numpy rounds it in the same way."""
    for case in (CASES[0], CASES[6], CASES[11], OTHER_CASES[12]):
        result = kernels.run(kernels.row(op, "reference"), case, stored(case))
        assert np.array_equal(result, truth(kernels, op, case).astype(result.dtype)), case
