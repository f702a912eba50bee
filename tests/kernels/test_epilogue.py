"""What follows a result: the values of float64, and the same bits whoever applies it, on each instruction set, in either layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES, Case, case
from checks import stored, takes

from kernels import ACTIVATIONS, ROWS, Epilogue, Kernels, Row

ROW = pytest.mark.parametrize("row", ROWS, indirect=True)
SMALL = (
    case(2, 20, 18, (13, 14), 3, padding=1),
    case(1, 33, 35, (9, 10), 3, padding=1),
    case(2, 3, 17, (6, 5), 1),
    case(1, 6, 6, (7, 8), 5, padding=2, groups=2),
    case(1, 18, 18, (11, 9), 3, padding=1, groups=18),
    case(0, 4, 5, (8, 9), 3, padding=1),
)


def epilogues(each: Case, op: int) -> list[Epilogue]:
    rng = np.random.default_rng(each.n + each.k)
    result = each.shapes[2] if op == 0 else each.shapes[0]
    scale, shift = (rng.uniform(-2, 2, result[1]).astype(np.float32) for _ in range(2))
    other = rng.standard_normal(result).astype(np.float32)
    return [
        *(Epilogue(scale, shift, activation=name, low=-0.5, high=0.75) for name in ACTIVATIONS),
        Epilogue(scale, shift, other, "relu"),
        Epilogue(scale, shift, other, "silu", adds_last=True),
        Epilogue(None, shift, other),
        Epilogue(scale, activation="hardswish"),
        Epilogue(other=other, activation="clamp", low=0, high=6),
    ]


def right(x: np.ndarray[Any, Any], e: Epilogue) -> np.ndarray[Any, Any]:
    def act(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        match e.activation:
            case "relu":
                return np.maximum(v, 0)
            case "clamp":
                return np.clip(v, e.low, e.high)
            case "silu":
                return v / (1 + np.exp(-v))
            case "sigmoid":
                return 1 / (1 + np.exp(-v))
            case "hardswish":
                return v * np.clip(v + 3, 0, 6) / 6
            case "hardsigmoid":
                return np.clip(v + 3, 0, 6) / 6
        return v

    v = x.astype(np.float64)
    v = v * (1 if e.scale is None else e.scale[:, None, None]) + (0 if e.shift is None else e.shift[:, None, None])
    other = 0.0 if e.other is None else e.other
    return act(v) + other if e.adds_last else act(v + other)


@pytest.mark.full
@ROW
def test_values_and_bits(kernels: Kernels, row: Row) -> None:
    if row.op == 2:
        return
    for each in (c for c in SMALL if takes(row, c)):
        given = stored(each)
        plain = {last: kernels.run(row, each, given, channels_last=last) for last in (True, False)}
        for e in epilogues(each, row.op):
            found = {
                (isa, threads, last): kernels.run(row, each, given, isa, threads, channels_last=last, epilogue=e)
                for isa in row.isas
                for threads in (1, 3)
                for last in {row.reads_channels_last, False}
            }
            for (isa, _, last), result in found.items():
                if not row.same_on_every_isa and isa != row.isas[0]:
                    continue
                expected = right(plain[last], e)
                terms = 4 + sum(np.abs(t).max(initial=0) for t in (plain[last], e.shift, e.other) if t is not None)
                np.testing.assert_allclose(
                    result, expected, rtol=1e-6, atol=terms * 2**-22, err_msg=str((each, e.activation, isa))
                )
            if row.fixed_order and row.same_on_every_isa:
                assert len({r.tobytes() for r in found.values()}) == 1, (each, e)


@ROW
def test_nan_inf_and_denormals(kernels: Kernels, row: Row) -> None:
    """A NaN stays one, also where the result is computed again; tiny images are finished once they are scaled back."""
    if row.op == 2:
        return
    each = SMALL[0] if takes(row, SMALL[0]) else SMALL[-2]
    if not takes(row, each):
        return
    image = 0 if row.op == 0 else 2
    for value in (np.nan, np.inf, -np.inf):
        given = [t.copy() for t in stored(each)]
        given[image].flat[5] = value
        for e in epilogues(each, row.op):
            plain, found = (kernels.run(row, each, given, epilogue=one) for one in (Epilogue(), e))
            with np.errstate(invalid="ignore", over="ignore"):
                expected = right(plain, e)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), f"{value} {e.activation}")
    given = [t.copy() for t in stored(each)]
    given[image] *= np.float32(1e-38)
    for e in epilogues(each, row.op):
        plain, found = (kernels.run(row, each, given, epilogue=one) for one in (Epilogue(), e))
        np.testing.assert_allclose(found, right(plain, e), rtol=1e-6, atol=1e-6)


@ROW
def test_a_result_that_cancels_is_checked_as_it_was_before_the_epilogue(kernels: Kernels, row: Row) -> None:
    """Its peaks are too small for the bound at first sight, and it is looked at without an epilogue; none is applied twice."""
    each = SMALL[0]
    if row.op == 2 or not takes(row, each):
        return
    given = [t.copy() for t in stored(each)]
    given[1][:, 1::2] = -given[1][:, ::2]
    given[1][1::2] = -given[1][::2]
    for t in (given[0], given[2]):
        t[:, 1::2] = t[:, ::2]
    e = epilogues(each, row.op)[1]
    for last in (True, False):
        plain, found = (kernels.run(row, each, given, channels_last=last, epilogue=one) for one in (Epilogue(), e))
        np.testing.assert_allclose(found, right(plain, e), rtol=1e-6, atol=1e-5)


def test_all_cases_have_one(kernels: Kernels) -> None:
    """The rows that finish their results themselves are among those that the cases reach."""
    assert {str(row) for row in kernels.rows if row.finishes and any(takes(row, c) for c in (*SMALL, *CASES))} == {
        str(row) for row in kernels.rows if row.finishes
    }
