"""The bits of a result depend neither on the number of threads nor on other images or rows; threads that add lose nothing."""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, OTHER_CASES, case
from checks import distance, largest, stored, takes, terms, truth

from kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, TARGETS, Epilogue, Kernels

CUT = (
    case(1, 15, 790, (24, 25), 3, padding=1),
    case(2, 260, 530, (1, 700), 1),
    case(1, 260, 530, (1, 103), 1, dtype="float16"),
)
"""More results than one thread computes at once, and not a whole number of tiles."""


@pytest.mark.full
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("algorithm", ["product", "gemm", "windows", "implicit_gemm", "implicit_precomp_gemm"])
def test_how_results_are_cut_for_threads_decides_no_bits(kernels: Kernels, algorithm: str, channels_last: bool) -> None:
    rows = [row for row in kernels.rows if row.algorithm == algorithm and (row.reads_channels_last or not channels_last)]
    for row, each in ((row, each) for row in rows for each in CUT if takes(row, each)):
        right = truth(kernels, row.op, each)
        for isa in row.isas:
            one, *others = (
                kernels.run(row, each, stored(each), isa, threads, channels_last=channels_last) for threads in (1, 2, 3, 7)
            )
            assert distance(one, right) <= kernels.error(row, each) * largest(right), (row, each)
            assert {other.tobytes() for other in others} == {one.tobytes()}, (row, each)


WINDOWS = (
    *CASES,
    case(2, 3, 24, (37, 61), 7, 2, 3),
    case(1, 270, 40, 11, 3, 2, 1),
    case(1, 1100, 17, 9, 1, (2, 3)),
    case(2, 72, 72, (9, 12), 3, padding=1, groups=3),
    case(1, 4, 49, (5, 300), (5, 3), (1, 2), (2, 9), (2, 1), groups=2),
)
"""Strides, groups, more channels than are copied at once, rows that are cut."""


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["product", "windows"])
def test_panels_that_are_kept_decide_no_bits(kernels: Kernels, algorithm: str) -> None:
    rows = [row for row in kernels.rows if row.algorithm == algorithm]
    assert {row.op for row in rows} == ({FORWARD, BACKWARD_DATA} if algorithm == "product" else {FORWARD})
    of_rows = [case(1, 140, columns, (1, n), 1) for n in (1, 3, 6, 11, 25, 200) for columns in (9, 24, 45)]
    some = [*of_rows, case(1, 600, 70, (1, 203), 1), *(WINDOWS if algorithm == "windows" else CASES[:9])]
    for row, each in ((row, each) for row in rows for each in some if takes(row, each)):
        channels = each.shapes[TARGETS[row.op]][1]
        is_float = each.dtype == "float32"
        after = Epilogue(scale=np.ones(channels, np.float32), activation="clamp", low=-9, high=9) if is_float else Epilogue()
        vanishing = tuple(t * np.float32(1e-30) for t in stored(each)) if is_float else stored(each)  # its products are 0 or -0
        for isa, given in ((isa, given) for isa in row.isas for given in (stored(each), vanishing)):
            plain, *panels = (
                kernels.run(row, each, given, isa, threads, channels_last=last, epilogue=after, keeps=keeps)
                for threads, last, keeps in ((1, False, False), (1, True, False), (1, True, True), (3, True, True))
            )
            assert {found.tobytes() for found in panels} == {plain.tobytes()}, (row, each, isa)


def test_threads_that_add_to_the_same_sums_lose_nothing(kernels: Kernels) -> None:
    """All numbers are one, so that a sum is the number of its products, whatever their order; one that is lost is seen."""
    rows = [row for row in kernels.rows if not row.fixed_order]
    assert len(rows) >= 3
    for row in rows:
        each = case(1, 1, 4800, 4, 1) if row.op == BACKWARD_DATA else case(6000, 1, 1, 3, 1)
        x, w, y = (np.ones(shape, np.float32) for shape in each.shapes)
        for _ in range(60):
            assert (kernels.run(row, each, (x, w, y), threads=8) == terms(row.op, each)).all(), row


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
