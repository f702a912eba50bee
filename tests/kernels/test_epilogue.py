"""What follows a result: the values of float64, and the same bits whoever applies it, on each instruction set, in either layout."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case, case
from checks import stored, takes

from kernels import ACTIVATIONS, ROWS, Epilogue, Kernels, Row

ROW = pytest.mark.parametrize("row", ROWS, indirect=True)
SMALL = (
    case(2, 20, 18, (13, 14), 3, padding=1),
    case(1, 33, 35, (9, 10), 3, padding=1),
    case(2, 3, 17, (6, 5), 1),
    case(1, 6, 6, (7, 8), 5, padding=2, groups=2),
    case(1, 9, 18, (12, 10), 5, stride=2, padding=2, groups=9),
    case(1, 18, 18, (11, 9), 3, padding=1, groups=18),
    case(0, 4, 5, (8, 9), 3, padding=1),
    case(1, 2, 5, (3, 4), 1),
    case(1, 300, 131, (10, 11), 1),
)
ERFC = np.vectorize(math.erfc, otypes=[np.float64])


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
        Epilogue(shift=shift),
        Epilogue(scale, activation="hardswish"),
        Epilogue(other=other, activation="clamp", low=0, high=6),
    ]


def is_bias(e: Epilogue) -> bool:
    """Whether it is a plain addition: exact, also where a row scales its images or computes them again."""
    return e.shift is not None and e.scale is None and e.other is None and e.activation == "none"


ACTIVATE: dict[str, Callable[[np.ndarray[Any, Any], Epilogue], np.ndarray[Any, Any]]] = {
    "none": lambda v, e: v,
    "relu": lambda v, e: np.maximum(v, 0),
    "clamp": lambda v, e: np.clip(v, e.low, e.high),
    "silu": lambda v, e: v / (1 + np.exp(-v)),
    "sigmoid": lambda v, e: 1 / (1 + np.exp(-v)),
    "hardswish": lambda v, e: v * np.clip(v + 3, 0, 6) / 6,
    "hardsigmoid": lambda v, e: np.clip(v + 3, 0, 6) / 6,
    "gelu": lambda v, e: v / 2 * ERFC(-v / 2**0.5),
    "gelu_tanh": lambda v, e: v / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (v + 0.044715 * v**3))),
}


def right(x: np.ndarray[Any, Any], e: Epilogue) -> np.ndarray[Any, Any]:
    scale, shift = (start if t is None else t[:, None, None] for start, t in ((1, e.scale), (0, e.shift)))
    v, other = x.astype(np.float64) * scale + shift, 0.0 if e.other is None else e.other
    return ACTIVATE[e.activation](v, e) + other if e.adds_last else ACTIVATE[e.activation](v + other, e)


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
                if is_bias(e) and row.fixed_order:
                    np.testing.assert_array_equal(result, plain[last] + e.shift[:, None, None])
            if row.fixed_order and row.same_on_every_isa:
                assert len({r.tobytes() for r in found.values()}) == 1, (each, e)


@ROW
def test_nan_inf_and_denormals(kernels: Kernels, row: Row) -> None:
    """A NaN stays one, also where the result is computed again; tiny images are finished once they are scaled back."""
    if row.op == 2:
        return
    each = next(each for each in SMALL if takes(row, each))
    image = 0 if row.op == 0 else 2
    for value in (np.nan, np.inf, -np.inf):
        given = [t.copy() for t in stored(each)]
        given[image].flat[5] = value
        for e in epilogues(each, row.op):
            plain, found = (kernels.run(row, each, given, epilogue=one) for one in (Epilogue(), e))
            with np.errstate(invalid="ignore", over="ignore"):
                expected = right(plain, e)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), f"{value} {e.activation}")
            if is_bias(e):
                np.testing.assert_array_equal(found, plain + e.shift[:, None, None])
    given = [t.copy() for t in stored(each)]
    given[image] *= np.float32(1e-38)
    for e in epilogues(each, row.op):
        plain, found = (kernels.run(row, each, given, epilogue=one) for one in (Epilogue(), e))
        np.testing.assert_allclose(found, right(plain, e), rtol=1e-6, atol=1e-6)
        if is_bias(e):
            np.testing.assert_array_equal(found, plain + e.shift[:, None, None])


@ROW
def test_the_largest_result_is_found_where_it_was_before(kernels: Kernels, row: Row) -> None:
    """Its sum cancels, and all others are zero: behind another place there would be too little, and the problem be computed again."""
    each = case(3, 256, 40, (9, 10), 3, padding=1)
    if row.op == 2 or not takes(row, each):
        return
    x, w, y = stored(each)
    factor, target = ((x, y), (y, x))[row.op]
    factor[0], factor[2], factor[1, :, :5], factor[1, :, :, :6] = 0, 0, 0, 0
    shift = np.full(target.shape[1], 1000, np.float32)
    for e in (Epilogue(), Epilogue(shift=shift), Epilogue(shift=shift, activation="clamp", low=0, high=1)):
        assert not kernels.run_in_place(row, each, (x, w, y), epilogue=e), e


@ROW
def test_the_order_of_tasks_decides_nothing(kernels: Kernels, row: Row) -> None:
    """Two results are the largest, and what lies behind the first of them alone is large."""
    each = case(8, 3, 8, (40, 40), 3, padding=1)
    if row.op != 0 or not takes(row, each):
        return
    x, w, _ = (t.copy() for t in stored(each))
    x[:], w[:, :2], w[:, :, 1, 1] = 0, 0, 6561
    x[:, 2] = np.random.default_rng(0).standard_normal(x[:, 2].shape) * 1e-3
    x[0, 2] = x[-1, 2]
    x[0, :, 10, 10], x[-1, :, 10, 10] = (16, -16, 1), (0, 0, 1)
    found = []
    for backwards in (False, True):
        result = np.full(each.shapes[2], np.nan, np.float32)
        found.append((kernels.run_in_place(row, each, (x, w, result), backwards=backwards), result.tobytes()))
    assert not row.fixed_order or found[0] == found[1]


def gelu(kernels: Kernels, isa: str, name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """By a product with 1, in each way that a row stores its results: x as the rows of one column."""
    row = kernels.running("product")
    one = case(1, 1, 1, (1, x.size), 1)
    given = x.reshape(one.shapes[0]), np.ones((1, 1, 1, 1), np.float32), np.zeros(one.shapes[2], np.float32)
    e = Epilogue(activation=name)
    found = {last: kernels.run(row, one, given, isa, channels_last=last, epilogue=e) for last in (True, False)}
    np.testing.assert_array_equal(found[True].view(np.int32), found[False].view(np.int32))
    return found[True].reshape(x.shape)


@pytest.mark.parametrize("size", [5, 100_000])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_error_of_gelu_is_as_stated(kernels: Kernels, name: str, size: int) -> None:
    rng = np.random.default_rng(size)
    small = np.exp2(rng.uniform(-149, 4, size)) * rng.choice([-1, 1], size)
    values = np.concatenate([small, rng.uniform(-20, 20, size), rng.standard_normal(size)]).astype(np.float32)
    with np.errstate(over="ignore"):
        u = (2 / np.pi) ** 0.5 * np.abs(values + 0.044715 * values.astype(np.float64) ** 3)
    v = values.astype(np.float64)
    expected = v / 2 * ERFC(-v / 2**0.5) if name == "gelu" else v / (1 + np.exp(np.minimum(-2 * np.sign(v) * u, 700)))
    bound = (2**-20 if name == "gelu" else 2**-21 * (1 + u)) * np.abs(expected) + 2**-123
    for isa in kernels.running("product").isas:
        error = np.abs(gelu(kernels, isa, name, values) - expected)
        assert (error <= bound).all(), (isa, values[np.argmax(error / bound)], (error / bound).max())


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_of_what_is_large_or_no_number(kernels: Kernels, name: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, -1e10, 14, -14, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    expected = np.array([np.nan, np.inf, np.nan, 3e38, 0, 1e10, 0, 14, 0, 0, 0, 0, 0], np.float32)
    for isa in kernels.running("product").isas:
        for count in (len(values), 64 * len(values)):
            found = gelu(kernels, isa, name, np.resize(values, count))
            np.testing.assert_allclose(found, np.resize(expected, count), rtol=0, atol=2**-122)
