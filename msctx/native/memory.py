"""The pool of host memory in the native core: whether torch's CPU tensors come from it, the caps on it, and what it has counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_int, c_int64
from functools import cache
from typing import Any, NamedTuple

from msctx import locks
from msctx.errors import NativeError, SwitchError
from msctx.native import core, limits

KEEPS = ("nothing", "some", "settled", "all")
"""What becomes of blocks that nobody uses: see ``Keep`` in kernels/include/msctx/memory_pool.h."""
STATISTICS = (
    *("current_bytes", "peak_bytes", "reserved_bytes", "peak_reserved_bytes", "allocations", "released", "fresh_blocks"),
    *("out_of_memory", "idle_bytes"),
)
OF_CAP = ("limit_bytes", "current_bytes", "peak_bytes", "allocations", "out_of_memory")

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "msctx_pool_set": (core.TEXT, [c_int, c_int64]),
    "msctx_pool_is_installed": (c_int, []),
    "msctx_pool_statistics": (None, [POINTER(c_int64)]),
    "msctx_pool_reset_peak": (None, []),
    "msctx_pool_fill": (c_int, [c_int]),
    "msctx_pool_purpose": (c_int, [c_int]),
    "msctx_pool_purposes": (None, [POINTER(c_int64), c_int, c_int]),
    "msctx_pool_empty_cache": (c_int64, []),
    "msctx_cap_open": (core.NUMBER, [c_int64, core.STR]),
    "msctx_cap_adjust": (core.DONE, [c_int64, c_int64, core.STR]),
    "msctx_cap_close": (None, [c_int64]),
    "msctx_cap_statistics": (c_int, [c_int64, POINTER(c_int64)]),
}
LARGE_PIECE = 1 << 30
_NO_LIMIT = 1 << 62


class Cap(NamedTuple):
    """A cap that is open: what was asked, by whom, and its number in the library."""

    asked: int
    origin: str
    number: int


_lock = locks.reentrant()
_pool: dict[str, Any] | None = None
_caps: list[Cap] = []


@cache
def _library() -> Any:
    return core.declared(core.load().c, _SIGNATURES)


# --- the pool ---------------------------------------------------------------------------------------------------------


def read_pool() -> dict[str, Any] | None:
    """What is kept and the size of a piece; ``None``: torch's own allocator is in force, or another one."""
    pool = _pool  # once: another thread may be writing
    return dict(pool) if pool is not None and _library().msctx_pool_is_installed() else None


def write_pool(value: Mapping[str, Any] | None) -> None:
    global _pool
    with _lock:
        if value is None:
            if _pool is not None:
                _library().msctx_pool_set(-1, 0)
        else:
            keep, piece = KEEPS.index(value["keep"]), value["piece"]
            if piece > LARGE_PIECE:  # no more than there is
                piece = min(piece, limits.free_bytes())
            if problem := _library().msctx_pool_set(keep, piece):
                raise SwitchError(f"the memory pool cannot be torch's CPU allocator: {problem}. Nothing was changed.")
        _pool = None if value is None else dict(value)


# --- caps -------------------------------------------------------------------------------------------------------------


def read_caps() -> list[list[Any]]:
    """The caps in force, the outermost first: bytes, and who set it."""
    return [[cap.asked, cap.origin] for cap in _caps]


def write_caps(value: Sequence[Sequence[Any]]) -> None:
    """Open and close caps until these are in force; those that stay go on counting."""
    with _lock:
        for place, (cap, (asked, origin)) in enumerate(zip(_caps, value, strict=False)):
            if (cap.asked, cap.origin) != (asked, origin):  # the base has been changed
                _library().msctx_cap_adjust(cap.number, *_limit(asked, origin, _of_cap(cap.number)["current_bytes"]))
                _caps[place] = Cap(asked, origin, cap.number)
        _close(len(value))
        for asked, origin in value[len(_caps) :]:
            _caps.append(Cap(asked, origin, int(_library().msctx_cap_open(*_limit(asked, origin)))))


def _limit(asked: int, origin: str, counted: int = 0) -> tuple[int, str]:
    """The limit of a cap, no more than is free (with the pool's idle blocks and what the cap has *counted* already), and its text."""
    most = limits.free_bytes() + int(statistics()["idle_bytes"]) + counted
    return min(asked, most), origin if asked <= most else f"{origin}, lowered to what was free"


def save_caps() -> tuple[Cap, ...]:
    return tuple(_caps)


def load_caps(found: tuple[Cap, ...]) -> None:
    """Put back the caps that were found: those that were opened since go."""
    with _lock:
        if tuple(_caps[: len(found)]) == found:
            _close(len(found))
        else:  # the base has changed meanwhile
            write_caps([[cap.asked, cap.origin] for cap in found])


def _close(count: int) -> None:
    while len(_caps) > count:
        _library().msctx_cap_close(_caps.pop().number)


# --- what has been counted --------------------------------------------------------------------------------------------


def statistics() -> dict[str, Any]:
    """What the pool holds, and each cap."""
    if core.loaded() is None:
        return dict.fromkeys(STATISTICS, 0) | {"caps": []}
    found = (c_int64 * len(STATISTICS))()
    _library().msctx_pool_statistics(found)
    with _lock:
        caps = [{"asked_bytes": cap.asked, "origin": cap.origin, **_of_cap(cap.number)} for cap in _caps]
    return dict(zip(STATISTICS, found, strict=True)) | {"caps": caps}


class Room(NamedTuple):
    refusals: int
    left: int
    """Bytes that the cap leaves."""


def rooms() -> dict[int, Room]:
    """By the number of each cap, which no other one has had."""
    with _lock:
        found = {cap.number: _of_cap(cap.number) for cap in _caps}
    return {number: Room(of["out_of_memory"], of["limit_bytes"] - of["current_bytes"]) for number, of in found.items()}


def _of_cap(number: int) -> dict[str, int]:
    found = (c_int64 * len(OF_CAP))()
    if not _library().msctx_cap_statistics(number, found):
        raise NativeError(f"there is no cap {number}")
    return dict(zip(OF_CAP, found, strict=True))


def accelerator() -> str:
    """The current device of the accelerator that the program uses, ``""`` as long as it uses none: it is not initialised for this."""
    import torch

    found = torch.accelerator.current_accelerator()
    if found is None or not getattr(torch.get_device_module(found), "is_initialized", bool)():
        return ""
    return f"{found.type}:{torch.accelerator.current_device_index()}"


def open_meter() -> int:
    """Begin to count what is allocated from now on; the number is for :func:`close_meter`."""
    return int(_library().msctx_cap_open(_NO_LIMIT, ""))


def close_meter(number: int) -> int:
    """The most bytes that were in use at once of what was allocated since the meter was opened."""
    peak = _of_cap(number)["peak_bytes"]
    _library().msctx_cap_close(number)
    return peak


@contextmanager
def filled(byte: int) -> Iterator[None]:
    """What this thread allocates from the pool has this in each byte: of what nobody sets, too."""
    if core.loaded() is None:
        yield
        return
    before = _library().msctx_pool_fill(byte)
    try:
        yield
    finally:
        _library().msctx_pool_fill(before)


def purpose(number: int) -> int:
    """What this thread allocates from now on is for this purpose; returns the one before. 0: nothing in particular."""
    return int(_library().msctx_pool_purpose(number))


def by_purpose(count: int, *, at_refusal: bool = False) -> list[int]:
    """Bytes in use for each purpose: now, or as it was when memory was refused last."""
    found = (c_int64 * count)()
    _library().msctx_pool_purposes(found, count, at_refusal)
    return list(found)


def empty_cache() -> int:
    return 0 if core.loaded() is None else int(_library().msctx_pool_empty_cache())


def reset_peak() -> None:
    if core.loaded() is not None:
        _library().msctx_pool_reset_peak()
