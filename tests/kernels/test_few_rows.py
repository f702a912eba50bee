"""Products of a few rows read the right operand as it lies; the bits are those of the same rows among many."""

import numpy as np
import pytest
from cases import case

from kernels import BACKWARD_DATA, FORWARD, TARGETS, Epilogue, Kernels

SIZES = ((1, 700), (130, 5), (8300, 19), (128, 1041), (512, 769))
"""Depth and columns: a block of a sum, several, more than are read at once; vectors that are not full, more columns than are
computed at once; enough of them for several threads."""


@pytest.mark.parametrize("op", [FORWARD, BACKWARD_DATA], ids=["of lines", "of neighbours"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_few_rows_have_the_bits_of_many(kernels: Kernels, size: tuple[int, int], op: int) -> None:
    row = kernels.running("product")
    channels = size if op == FORWARD else size[::-1]
    many = case(1, *channels, (1, 40), 1)
    rng = np.random.default_rng(sum(size))
    x, w, y = (rng.standard_normal(shape).astype(np.float32) for shape in many.shapes)
    x[..., 3], y[..., 3] = np.inf, np.inf
    other = rng.standard_normal(many.shapes[TARGETS[op]]).astype(np.float32)
    scale = rng.standard_normal(size[1]).astype(np.float32)
    for isa in row.isas:
        for epilogue in (Epilogue(), Epilogue(scale=scale, other=other, activation="silu")):
            whole = kernels.run(row, many, (x, w, y), isa, 1, op, True, epilogue)
            for rows in range(1, 10):
                few = (
                    Epilogue(epilogue.scale, other=other[..., :rows], activation="silu")
                    if epilogue.scale is not None
                    else epilogue
                )
                part = case(1, *channels, (1, rows), 1)
                found = kernels.run(row, part, (x[..., :rows], w, y[..., :rows]), isa, 1 + rows % 3, op, True, few)
                assert found.tobytes() == whole[..., :rows].tobytes(), (isa, rows)
