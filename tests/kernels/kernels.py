"""The torch-free library in numpy's words: rows of the table, and single convolutions. Imports neither torch nor msctx."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import Case

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = 0, 1, 2
DTYPES = ("float32", "float64", "float16", "bfloat16")
_STORED = (np.float32, np.float64, np.float16, np.uint16)


class _Problem(Structure):
    _fields_ = [
        ("dims", c_int32),
        ("dtype", c_int32),
        *((name, c_int64) for name in ("n", "c", "k", "groups")),
        *((name, c_int64 * 3) for name in ("in_", "out", "window", "stride", "pad", "dilation")),
    ]


class _Row(Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("name", "algorithm", "math")),
        *((name, c_int32) for name in ("direction", "fixed_order", "same_on_every_isa")),
    ]


@dataclass(frozen=True)
class Row:
    """A row of the table; ``direction`` is 0, 1 or 2 (fprop, dgrad, wgrad), which is also the operation of an ordinary problem."""

    index: int
    name: str
    algorithm: str
    direction: int
    fixed_order: bool
    same_on_every_isa: bool

    def __str__(self) -> str:
        return f"{('fprop', 'dgrad', 'wgrad')[self.direction]}-{self.name}"


def to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bfloat16, ties to even. *values* are finite float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def store(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return to_bfloat16(values.astype(np.float32))
    return np.ascontiguousarray(values.astype(_STORED[DTYPES.index(dtype)]))


def widen(stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To float64, exactly."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


class Kernels:
    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        self._c.msctx_isa.restype = c_char_p
        self._c.msctx_error.restype = c_double
        self._c.msctx_workspace.restype = c_int64
        self._c.msctx_run.argtypes = [c_char_p, c_int, POINTER(_Problem), c_int, c_void_p, c_void_p, c_void_p, c_int]
        self.isas: list[str] = []
        while (name := self._c.msctx_isa(len(self.isas))) is not None:
            self.isas.append(name.decode())
        self.rows: list[Row] = []
        found = _Row()
        while self._c.msctx_row(self.isas[0].encode(), len(self.rows), byref(found)):
            self.rows.append(
                Row(
                    len(self.rows),
                    found.name.decode(),
                    found.algorithm.decode(),
                    found.direction,
                    bool(found.fixed_order),
                    bool(found.same_on_every_isa),
                )
            )

    def row(self, direction: int, name: str) -> Row:
        return next(row for row in self.rows if (row.direction, row.name) == (direction, name))

    def reasons(self, row: Row, case: Case) -> list[str]:
        texts = (c_char_p * 8)()
        count = self._c.msctx_reasons(self.isas[0].encode(), row.index, byref(_problem(case)), row.direction, texts)
        return [texts[i].decode() for i in range(count)]

    def error(self, row: Row, case: Case) -> float:
        return float(self._c.msctx_error(self.isas[0].encode(), row.index, byref(_problem(case)), row.direction))

    def workspace(self, row: Row, case: Case, threads: int = 1) -> int:
        return int(self._c.msctx_workspace(self.isas[0].encode(), row.index, byref(_problem(case)), row.direction, threads))

    def run(self, row: Row, case: Case, tensors: tuple[Any, Any, Any], isa: str = "", threads: int = 1) -> np.ndarray[Any, Any]:
        """The result of a row for *tensors* (x, w, y) as they are stored; that of the result is not read."""
        target = {FORWARD: 2, BACKWARD_DATA: 0, BACKWARD_WEIGHT: 1}[row.direction]
        given = [np.ascontiguousarray(t) for t in tensors]
        given[target] = np.full(given[target].shape, _garbage(given[target].dtype))
        pointers = [c_void_p(t.ctypes.data) for t in given]
        isa_name = (isa or self.isas[0]).encode()
        self._c.msctx_run(isa_name, row.index, byref(_problem(case)), row.direction, *pointers, threads)
        return given[target]


def _garbage(dtype: np.dtype[Any]) -> Any:
    return 0x7FC0 if dtype == np.uint16 else np.nan


def _problem(case: Case) -> _Problem:
    def three(values: tuple[int, ...], fill: int = 1) -> Any:
        return (c_int64 * 3)(*([fill] * (3 - len(values))), *values)

    return _Problem(
        dims=len(case.size),
        dtype=DTYPES.index(case.dtype),
        n=case.n,
        c=case.c,
        k=case.k,
        groups=case.groups,
        in_=three(case.size),
        out=three(case.out),
        window=three(case.window),
        stride=three(case.stride),
        pad=three(case.padding, 0),
        dilation=three(case.dilation),
    )
