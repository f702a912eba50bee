"""What an image gives does not depend on the other images, for rows that look at no two of them together.

batch_invariant=True computes the others image by image: tests/native/test_heuristics.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, OTHER_CASES, case
from checks import stored, takes

from kernels import BACKWARD_DATA, BACKWARD_WEIGHT, Kernels

TOGETHER = ("winograd", "fft", "tiles")
"""The largest values of all images decide how these compute one."""


@pytest.mark.full
def test_the_bits_of_an_image_do_not_depend_on_the_batch(kernels: Kernels) -> None:
    rows = [r for r in kernels.rows if r.op != BACKWARD_WEIGHT and r.fixed_order and not r.algorithm.startswith(TOGETHER)]
    assert {row.op for row in rows} == {0, BACKWARD_DATA}
    for each in (
        *CASES[:9:2],
        *OTHER_CASES[::4],
        case(1, 64, 48, (9, 7), 3, padding=1),
        case(1, 20, 20, 28, 7, padding=3, groups=20),
    ):
        many = replace(each, n=7)
        values = stored(many)
        for row in (r for r in rows if takes(r, many)):
            assert kernels.workspace(row, each) == kernels.workspace(row, many), "else a limit would choose by the batch"
            for isa in row.isas:
                whole = kernels.run(row, many, values, isa)
                for some in (1, 5):
                    x, w, y = values
                    part = kernels.run(
                        row, replace(each, n=some), (np.ascontiguousarray(x[:some]), w, np.ascontiguousarray(y[:some])), isa
                    )
                    assert part.tobytes() == whole[:some].tobytes(), (row, each, isa, some)
