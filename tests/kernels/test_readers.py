"""What is read of a tensor: every change of its bytes changes its fingerprint, and its statistics are those of NumPy."""

import ctypes
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernels import DTYPES, PIECE, Kernels, Parallel

CHUNK = 512 << 10
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
property_of = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def values(size: int, seed: int) -> Bytes:
    """Random bytes, or few different ones, as weights full of zeros and equal values are."""
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 256, size) * (generator.random(size) < (1.0, 0.02, 0.0)[seed % 3])).astype(np.uint8)


def of(kernels: Kernels, data: Bytes) -> tuple[int, int]:
    return kernels.fingerprint(np.ascontiguousarray(data), kernels.isas[0])


@property_of
@given(st.integers(1, 5000) | st.integers(CHUNK - 70, 3 * CHUNK), st.integers(0, 99), st.data())
def test_one_element_that_changes(kernels: Kernels, size: int, seed: int, data: st.DataObject) -> None:
    before = values(size, seed)
    after = before.copy()
    after[data.draw(st.integers(0, size - 1), "position")] ^= data.draw(st.integers(1, 255), "bits")
    assert of(kernels, before) != of(kernels, after)


@property_of
@given(st.integers(1, 2000), st.integers(0, 99), st.sampled_from([1, 2, 4, 8, 16, 36, 64, 512]), st.data())
def test_two_blocks_that_change_places(kernels: Kernels, blocks: int, seed: int, length: int, data: st.DataObject) -> None:
    """Elements, words, vectors, windows: wherever they are."""
    before = values(blocks * length, seed)
    a, b = (data.draw(st.integers(0, blocks - 1)) for _ in range(2))
    after = before.reshape(blocks, length).copy()
    after[[a, b]] = after[[b, a]]
    assume((after.ravel() != before).any())
    assert of(kernels, before) != of(kernels, after)


def test_digests_do_not_change(kernels: Kernels) -> None:
    """They may not change from one version to the next."""
    expected = {
        0: (0, 0),
        5: (0xBD06CD7CD906C4CB, 0xD3E18A1249930E0E),
        1000: (0xE26C4080874AEB85, 0x16E8A4B7496C4963),
        2 * CHUNK + 7: (0x64037E3EBA39350B, 0xB8DC07BDCC4602B2),
    }
    assert {size: of(kernels, (np.arange(size) % 251).astype(np.uint8)) for size in expected} == expected


def test_same_on_every_isa_for_any_number_of_threads_and_at_any_place_in_memory(kernels: Kernels) -> None:
    for size in (*range(0, 301, 7), 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77):
        data = values(size, 3)
        assert len({kernels.fingerprint(data, isa, threads) for isa in kernels.isas for threads in (1, 2, 5)}) == 1, size
    room, data, found = np.empty(1000, np.uint8), values(700, 0), set()
    for start in range(70):
        room[start : start + 700] = data
        found.add(kernels.fingerprint(room[start : start + 700], kernels.isas[0]))
    assert len(found) == 1


def test_threads_that_cannot_run_are_an_error(kernels: Kernels) -> None:
    """An int of the caller's callback comes back as one: no exception passes through the library."""
    refusing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
    parallel = Parallel(2, None, ctypes.cast(refusing, ctypes.c_void_p))
    data, found = values(3 * CHUNK, 0), (ctypes.c_uint64 * 2)()
    assert not kernels.c.msctx_fingerprint(None, data.ctypes.data, data.nbytes, found, parallel)


# --- statistics ---------------------------------------------------------------------------------------------------------


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 65504.0, 3e38)


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
