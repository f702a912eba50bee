"""What a piece of a tensor holds, against NumPy in float64, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import Kernels

DTYPES = ("float32", "float64", "float16", "bfloat16")
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


@property_of
@given(st.integers(0, 1000) | st.integers(60_000, 70_000), st.integers(0, 99), st.sampled_from(DTYPES), st.floats(0, 0.3))
def test_statistics_are_those_of_numpy(kernels: Kernels, size: int, seed: int, dtype: str, special: float) -> None:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size) * 10.0 ** generator.integers(-4, 4)
    place = generator.random(size) < special
    values[place] = generator.choice(SPECIAL, int(place.sum()))
    memory, exact = stored(values, dtype)
    finite = exact[np.isfinite(exact)]
    counts = [np.isnan(exact), exact == np.inf, exact == -np.inf, exact == 0, exact < 0]
    for isa in kernels.isas:
        (least, largest, total, squares), found, nonfinite = kernels.statistics(memory, DTYPES.index(dtype), isa)
        assert found == [size, *(int(one.sum()) for one in counts)], isa
        assert nonfinite == (len(finite) < size), isa
        assert (least, largest) == ((finite.min(), finite.max()) if len(finite) else (np.inf, -np.inf)), isa
        assert abs(total - finite.sum()) <= 1e-12 * np.abs(finite).sum(), isa
        assert abs(squares - (finite**2).sum()) <= 1e-12 * (finite**2).sum(), isa


def test_one_value_that_is_not_finite_is_found_wherever_it_is(kernels: Kernels) -> None:
    for dtype in DTYPES:
        for place in (0, 1, 255, 4095, 4096, 9998):
            for value in (np.nan, np.inf, -np.inf):
                values = np.ones(9999)
                values[place] = value
                for isa in kernels.isas:
                    assert kernels.statistics(stored(values, dtype)[0], DTYPES.index(dtype), isa)[2], (dtype, place, isa)
