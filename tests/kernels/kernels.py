"""The torch-free library in numpy's words: rows of the table, and single convolutions. Imports neither torch nor msctx."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = OPS = 0, 1, 2
TARGETS = (2, 0, 1)
"""Which of x, w and y an operation writes."""
FACTORS = ((0, 1), (2, 1), (0, 2))
"""Which two it reads."""
DTYPES = ("float32", "float64", "float16", "bfloat16")
DIRECTIONS = ("fprop", "dgrad", "wgrad")
_TABLE = Path(__file__).resolve().parents[2] / "kernels" / "cpu" / "table.cpp"
ROWS = tuple("-".join(found) for found in re.findall(r'{(fprop|dgrad|wgrad), "(\w+)", &conv_', _TABLE.read_text("utf-8")))
"""From the source, since a test's parameters are wanted before there is a library; test_dispatch.py compares it with that."""
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
    math: str
    direction: int
    fixed_order: bool
    same_on_every_isa: bool

    def __str__(self) -> str:
        return f"{DIRECTIONS[self.direction]}-{self.name}"


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
        with np.errstate(invalid="ignore"):  # a NaN that signals is a NaN
            return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


class Kernels:
    """The library at *path*. ``op`` is the row's own unless it is given: a transposed convolution exchanges the first two."""

    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        problem = [c_char_p, c_int, POINTER(_Problem), c_int]
        for name, result, arguments in (
            ("isa", c_char_p, [c_int]),
            ("isa_in_use", c_char_p, []),
            ("use_isa", c_int, [c_char_p]),
            ("row", c_int, [c_char_p, c_int, POINTER(_Row)]),
            ("reasons", c_int, [*problem, POINTER(c_char_p)]),
            ("workspace", c_int64, [*problem, c_int]),
            ("error", c_double, problem),
            ("run", c_int, [*problem, c_void_p, c_void_p, c_void_p, c_int]),
        ):
            function = getattr(self._c, f"msctx_{name}")
            function.restype, function.argtypes = result, arguments
        self.isas: list[str] = []
        while (name := self._c.msctx_isa(len(self.isas))) is not None:
            self.isas.append(name.decode())
        self.rows = self.table(self.isas[0])

    @property
    def isa_in_use(self) -> str:
        return str(self._c.msctx_isa_in_use().decode())

    def use_isa(self, name: str) -> bool:
        return bool(self._c.msctx_use_isa(name.encode()))

    def table(self, isa: str) -> list[Row]:
        rows: list[Row] = []
        found = _Row()
        while self._c.msctx_row(isa.encode(), len(rows), byref(found)):
            texts = found.name.decode(), found.algorithm.decode(), found.math.decode()
            rows.append(Row(len(rows), *texts, found.direction, bool(found.fixed_order), bool(found.same_on_every_isa)))
        return rows

    def row(self, direction: int, name: str) -> Row:
        return next(row for row in self.rows if (row.direction, row.name) == (direction, name))

    def named(self, text: str) -> Row:
        return next(row for row in self.rows if str(row) == text)

    def reasons(self, row: Row, case: Case, op: int | None = None) -> list[str]:
        texts = (c_char_p * 8)()
        count = self._c.msctx_reasons(*self._question(row, case, op), texts)
        return [texts[i].decode() for i in range(count)]

    def error(self, row: Row, case: Case, op: int | None = None) -> float:
        return float(self._c.msctx_error(*self._question(row, case, op)))

    def workspace(self, row: Row, case: Case, threads: int = 1) -> int:
        return int(self._c.msctx_workspace(*self._question(row, case, None), threads))

    def run(
        self,
        row: Row,
        case: Case,
        tensors: tuple[Any, Any, Any],
        isa: str = "",
        threads: int = 1,
        op: int | None = None,
    ) -> np.ndarray[Any, Any]:
        """The result of a row for *tensors* (x, w, y) as they are stored; that of the result is not read."""
        target = TARGETS[row.direction if op is None else op]
        given = [np.ascontiguousarray(t) for t in tensors]
        given[target] = np.full_like(given[target], garbage(given[target].dtype))
        self.run_in_place(row, case, given, isa, threads, op)
        return given[target]

    def run_in_place(self, row: Row, case: Case, tensors: Any, isa: str = "", threads: int = 1, op: int | None = None) -> bool:
        """Whether the result, which replaces one of *tensors*, had to be computed again."""
        assert all(t.flags.c_contiguous and t.shape == shape for t, shape in zip(tensors, case.shapes, strict=True))
        pointers = [c_void_p(t.ctypes.data) for t in tensors]
        return bool(self._c.msctx_run(*self._question(row, case, op, isa), *pointers, threads))

    def _question(self, row: Row, case: Case, op: int | None, isa: str = "") -> tuple[Any, ...]:
        return (isa or self.isas[0]).encode(), row.index, byref(_problem(case)), row.direction if op is None else op


def garbage(dtype: np.dtype[Any]) -> Any:
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
