"""What a tensor holds, against NumPy in float64, on every instruction set."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import DTYPES, PIECE, Kernels

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 65504.0, 3e38)
property_of = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def stored(values: np.ndarray[Any, Any], dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """As they lie in memory, and as float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bfloat16":
            bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32) >> 16
            return bits.astype(np.uint16), (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)
        found = np.ascontiguousarray(values.astype(dtype))
        return found, found.astype(np.float64)


def drawn(size: int, seed: int, special: float) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size) * 10.0 ** generator.integers(-4, 4)
    place = generator.random(size) < special
    values[place] = generator.choice(SPECIAL, int(place.sum()))
    return values


@property_of
@given(st.integers(0, 1000) | st.integers(60_000, 300_000), st.integers(0, 99), st.sampled_from(DTYPES), st.floats(0, 0.3))
def test_statistics_are_those_of_numpy(kernels: Kernels, size: int, seed: int, dtype: str, special: float) -> None:
    memory, exact = stored(drawn(size, seed, special), dtype)
    finite = exact[np.isfinite(exact)]
    counts = [np.isnan(exact), exact == np.inf, exact == -np.inf, exact == 0, exact < 0]
    found = [kernels.statistics(memory, DTYPES.index(dtype), isa, threads) for isa in kernels.isas for threads in (1, 3)]
    assert all(one == found[0] for one in found), "they are the same bit for bit"
    for isa in kernels.isas:
        pieces, nonfinite = kernels.statistics(memory, DTYPES.index(dtype), isa)
        least, largest, total, squares, *found = zip(*pieces, strict=True) if pieces else ((),) * 10
        assert [sum(one) for one in found] == [size, *(int(one.sum()) for one in counts)], isa
        assert nonfinite == (len(finite) < size), isa
        ranges = min(least, default=np.inf), max(largest, default=-np.inf)
        assert ranges == ((finite.min(), finite.max()) if len(finite) else (np.inf, -np.inf)), isa
        assert abs(sum(total) - finite.sum()) <= 1e-12 * np.abs(finite).sum(), isa
        assert abs(sum(squares) - (finite**2).sum()) <= 1e-12 * (finite**2).sum(), isa


def test_sums_are_in_one_order(kernels: Kernels) -> None:
    """A value counts for a lane by its place in the piece, and the lanes are added up in order: on every machine."""
    for dtype, lanes in (("float32", 16), ("float64", 8)):
        values = stored(drawn(PIECE + 5, 1, 0), dtype)[0]
        expected = []
        for piece in (values[:PIECE], values[PIECE:]):
            rows = np.zeros(-(-piece.size // lanes) * lanes)
            rows[: piece.size] = piece
            expected.append(sum(np.add.accumulate(rows.reshape(-1, lanes))[-1].tolist()))
        for isa in kernels.isas:
            assert [one[2] for one in kernels.statistics(values, DTYPES.index(dtype), isa)[0]] == expected, isa
