"""Roundings to the last bit: the generic copy's emulated FMA, and float16 and bfloat16."""

from fractions import Fraction

import numpy as np
import pytest
from cases import Case, case
from checks import Array

from kernels import BACKWARD_DATA, FORWARD, Kernels, store, to_bfloat16, widen

F32 = np.float32
GROUPS, POSITIONS = 320, 400


def floats(generator: np.random.Generator, count: int, least: int, most: int) -> Array:
    """Random significands, some of them of few bits, at random exponents."""
    significand = generator.integers(2**23, 2**24, count)
    few = generator.random(count) < 0.5
    significand[few] &= ~((1 << generator.integers(0, 24, few.sum())) - 1)
    significand[~few & (generator.random(count) < 0.2)] = 2**23 + 1
    exponent = generator.integers(least, most + 1, count) - 23
    return (np.ldexp(significand.astype(np.float64), exponent) * generator.choice([-1, 1], count)).astype(F32)


def triples(kind: str, b: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """For each b values a and c with which a * b + c is hard to round."""
    count = b.size
    if kind == "any":
        return floats(generator, count, -20, 20), floats(generator, count, -40, 40)
    if kind == "ties":
        # a * b is half a unit in the last place of c, but for about 2^-46 of it: doubles cannot hold the sum.
        nearly = (F32(1) / np.abs(b)).astype(F32)
        a = np.ldexp(nearly, generator.integers(-1, 2, count)).astype(F32) * generator.choice([-1, 1], count).astype(F32)
        c = floats(generator, count, 24, 24)
        return a, (c * generator.choice([0.5, 1, 2], count).astype(F32)).astype(F32)
    if kind == "cancel":
        a = floats(generator, count, -10, 10)
        c = -(a * b)  # the product's own rounding error is all that is left
        return a, np.where(generator.random(count) < 0.5, c, np.nextafter(c, F32(0)))
    if kind == "denormal":
        a = np.ldexp(floats(generator, count, -126, -100).astype(np.float64), -generator.integers(0, 28, count)).astype(F32)
        c = np.ldexp(generator.integers(-(2**24), 2**24, count).astype(np.float64), -149).astype(F32)
        return a, np.where(generator.random(count) < 0.3, F32(0), c)
    if kind == "overflow":
        a = np.ldexp(F32(1) / np.abs(b), 103 + generator.integers(-1, 2, count)).astype(F32)
        c = np.full(count, np.finfo(F32).max) * generator.choice([-1, 1], count)
        return a * generator.choice([-1, 1], count).astype(F32), c.astype(F32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3.4e38, 1e-45, -1e-45], F32)
    return generator.choice(special, count), generator.choice(special, count)


def fma_by(kernels: Kernels, isa: str, a: Array, b: Array, c: Array) -> Array:
    """c * 1 + 0, then a * b + that: a 1x1 convolution of two channels, a group for each b."""
    each = case(1, 2 * GROUPS, GROUPS, (1, POSITIONS), 1, groups=GROUPS)
    x = np.stack([c, a], axis=1).reshape(each.shapes[0])
    w = np.stack([np.ones_like(b[:, 0]), b[:, 0]], axis=1).reshape(each.shapes[1])
    y = np.zeros(each.shapes[2], F32)
    return kernels.run(kernels.row(FORWARD, "gemm"), each, (x, w, y), isa, threads=2).reshape(GROUPS, POSITIONS)


def crafted(kind: str) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(11)
    b = floats(generator, GROUPS, -3, 3)
    if kind == "ties":  # reciprocals of 1 - 2^-23 and of its like are closest to a power of two
        b[: GROUPS // 2] = (1 + F32(2**-23) * generator.integers(-64, 64, GROUPS // 2)).astype(F32)
    b = np.repeat(b[:, None], POSITIONS, axis=1)
    a, c = triples(kind, b.ravel(), generator)
    return a.reshape(b.shape), b, c.reshape(b.shape)


def same(one: Array, other: Array) -> bool:
    """To the bit, a NaN's payload aside."""
    return bool(np.array_equal(one.view(np.uint32)[~np.isnan(one)], other.view(np.uint32)[~np.isnan(one)])) and bool(
        np.array_equal(np.isnan(one), np.isnan(other))
    )


KINDS = ("any", "ties", "cancel", "denormal", "overflow", "special")


def nearest(exact: Fraction) -> float:
    """The float32 next to it, ties to even; infinite from half a unit above the largest on."""
    if exact == 0:
        return 0.0
    unit = Fraction(2) ** max(-149, ilog2(abs(exact)) - 23)
    rounded = round(exact / unit) * unit  # ties to even
    return float(rounded) if abs(rounded) < Fraction(2) ** 128 else float("inf") * (1 if exact > 0 else -1)


def ilog2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fma_is_rounded_once_with_and_without_an_instruction(kernels: Kernels, kind: str) -> None:
    """The same bits on each instruction set, and of some against exact fractions."""
    a, b, c = crafted(kind)
    results = {isa: fma_by(kernels, isa, a, b, c) for isa in kernels.row(FORWARD, "gemm").isas}
    for isa, result in results.items():
        assert same(result, results["generic"]), isa
    chosen = np.s_[::3, ::20]
    some = zip(*(t[chosen].ravel().tolist() for t in (a, b, c, results["generic"])), strict=True)
    for u, v, w, found in some if kind != "special" else ():
        assert found == nearest(Fraction(u) * Fraction(v) + Fraction(w)), (u, v, w)


PATTERNS = np.arange(65536, dtype=np.uint16)
SIXTEEN = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
NAMES = pytest.mark.parametrize("name", ["gemm", "reference"])


def patterns(dtype: str) -> Array:
    return PATTERNS.view(np.float16) if dtype == "float16" else PATTERNS


def one(dtype: str) -> Array:
    return store(np.ones((1, 1, 1, 1)), dtype)


@SIXTEEN
@NAMES
@pytest.mark.parametrize("op", [FORWARD, BACKWARD_DATA])
def test_every_value_survives(kernels: Kernels, name: str, dtype: str, op: int) -> None:
    """Widened, multiplied by one and rounded: nothing changes but the sign of zero and the payload of a NaN."""
    each = case(1, 1, 1, 256, 1, dtype=dtype)
    row = kernels.row(op, "algo_1" if (name, op) == ("gemm", BACKWARD_DATA) else name)
    values = patterns(dtype).reshape(each.shapes[0])
    for isa in row.isas:
        result = kernels.run(row, each, (values, one(dtype), values), isa)
        assert np.array_equal(widen(result), widen(values), equal_nan=True)


def rounded(exact: Array, dtype: str) -> Array:
    """By numpy, which rounds float64 to float16 once; *exact* are float32 values, so that bfloat16 is rounded once too."""
    if dtype == "float16":
        return exact.astype(np.float16)
    assert np.array_equal(exact.astype(F32), exact)
    return to_bfloat16(exact.astype(F32))


@SIXTEEN
@NAMES
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_ties_go_to_even(kernels: Kernels, name: str, dtype: str) -> None:
    """Each finite value and half, nearly half, or more than half of the way to its neighbour: two channels, weighted 1 and 1/2."""
    everything = widen(patterns(dtype))
    magnitudes = everything[: int(np.argmin(np.isfinite(everything)))]
    step = np.diff(magnitudes, append=2 * magnitudes[-1] - magnitudes[-2])
    bits = store(step, dtype).view(np.uint16)
    above, below = (widen((bits.astype(np.int32) + i).astype(np.uint16).view(store(step, dtype).dtype)) for i in (1, -1))
    each = Case(1, 2, 1, (1, magnitudes.size), (1, 1), (1, 1), (0, 0), (1, 1), 1, dtype)
    w = store(np.array([1, 0.5]).reshape(each.shapes[1]), dtype)
    for sign in (1, -1):
        for part in (step, above, below, -step, -above, -below):
            exact = sign * (magnitudes + part / 2)
            x = store(sign * np.stack([magnitudes, part]).reshape(each.shapes[0]), dtype)
            assert np.array_equal(widen(x).ravel(), sign * np.concatenate([magnitudes, part]))
            y = store(np.zeros(each.shapes[2]), dtype)
            row = kernels.row(FORWARD, name)
            for isa in row.isas:
                result = kernels.run(row, each, (x, w, y), isa).ravel()
                assert np.array_equal(widen(result), widen(rounded(exact, dtype))), (isa, sign)


@SIXTEEN
def test_the_reference_rounds_float64_once(kernels: Kernels, dtype: str) -> None:
    """A tie in the 16-bit type but for a part so small that float32 would drop it: two roundings would go astray."""
    each = Case(1, 3, 1, (1, 64), (1, 1), (1, 1), (0, 0), (1, 1), 1, dtype)
    bits = 10 if dtype == "float16" else 7
    value = 1 + np.arange(64) * 2.0**-bits
    w = store(np.array([1, 2.0 ** -(bits + 1), 2.0**-14]).reshape(each.shapes[1]), dtype)
    for sign in (1, -1):
        x = store(np.stack([value, np.ones(64), np.full(64, sign * 2.0**-14)]).reshape(each.shapes[0]), dtype)
        up = value + 2.0**-bits
        result = kernels.run(kernels.row(FORWARD, "reference"), each, (x, w, store(np.zeros(each.shapes[2]), dtype)))
        assert np.array_equal(widen(result).ravel(), up if sign > 0 else value)
