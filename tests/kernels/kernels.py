"""The torch-free library in numpy's words: rows of the table, and single convolutions. Imports neither torch nor msctx."""

import ctypes
import re
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, replace
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
PIECE = 64 << 10
"""Values whose statistics are sums of their own."""
DIRECTIONS = ("fprop", "dgrad", "wgrad", "matmul")
PRODUCT = 3
EMULATED = "_emulated"
_FOLDER = Path(__file__).resolve().parents[2] / "kernels" / "cpu"
_TABLES = "".join((_FOLDER / name).read_text("utf-8") for name in ("amx/table.cpp", "table.cpp"))
_ROWS = re.sub(r"\bof\.(?=\w+, )", "&conv_tiles_", _TABLES)  # of either unit
_STORED = (np.float32, np.float64, np.float16, np.uint16)


def _named(direction: str, name: str, algorithm: str) -> str:
    return "-".join([direction, name, *([algorithm] if algorithm != name else [])])


_PRODUCTS = [("matmul", *found) for found in re.findall(r'{"(\w+)", &conv_(tiles_\w+)}', _TABLES)]
_FOUND = dict.fromkeys([*re.findall(r'{(fprop|dgrad|wgrad|matmul), "(\w+)", &conv_(\w+)', _ROWS), *_PRODUCTS])
_OF_CONVOLUTIONS = {algorithm for direction, _, algorithm in _FOUND if direction != "matmul"}
ROWS = tuple(_named(*row) for row in _FOUND if row[0] != "matmul" or row[2] not in _OF_CONVOLUTIONS)
"""Each algorithm once for each direction; of products those that no convolution has. From the source, since a test's parameters are
wanted before there is a library; test_dispatch.py compares it with that."""


class _Problem(Structure):
    _fields_ = [
        ("dims", c_int32),
        ("dtype", c_int32),
        *((name, c_int64) for name in ("n", "c", "k", "groups")),
        *((name, c_int64 * 3) for name in ("in_", "out", "window", "stride", "pad", "dilation")),
    ]


ACTIVATIONS = ("none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh")


class _Epilogue(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("scale", "shift", "other")),
        ("activation", c_int32),
        *((name, c_float) for name in ("low", "high")),
        ("adds_last", c_int32),
    ]


@dataclass(frozen=True)
class Epilogue:
    """What follows a float32 result: activation(result * scale + shift + other), *other* after the activation with *adds_last*."""

    scale: np.ndarray[Any, Any] | None = None
    shift: np.ndarray[Any, Any] | None = None
    other: np.ndarray[Any, Any] | None = None
    activation: str = "none"
    low: float = 0.0
    high: float = 0.0
    adds_last: bool = False


FLAGS = ("fixed_order", "same_on_every_isa", "reads_channels_last", "finishes", "keeps_weights")
"""Of a row."""


class _Tensors(Structure):
    _fields_ = [
        *((name, c_void_p) for name in "xwy"),
        ("channels_last", c_bool),
        ("epilogue", POINTER(_Epilogue)),
        *((name, c_void_p) for name in ("peaks", "lost")),
    ]


class _Reasons(Structure):
    _fields_ = [("count", c_int32), ("text", c_char_p * 8)]


class Parallel(Structure):
    """Threads that a caller lends."""

    _fields_ = [("threads", c_int), ("pool", c_void_p), ("run", c_void_p)]


_TASK = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_int)


@ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, _TASK, c_void_p)
def _BACKWARDS(_pool: Any, tasks: int, task: Any, arg: Any) -> int:
    for index in reversed(range(tasks)):
        task(arg, index, 0)
    return 1


class _Algorithm(Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("name", "math")),
        *((name, c_bool) for name in ("fixed_order", "same_on_every_isa")),
        ("reasons", ctypes.CFUNCTYPE(None, POINTER(_Problem), c_int, POINTER(_Reasons))),
        ("workspace", ctypes.CFUNCTYPE(c_size_t, POINTER(_Problem), c_int, c_int)),
        ("error", ctypes.CFUNCTYPE(c_double, POINTER(_Problem), c_int)),
        ("run", c_void_p),
        ("spreads_nonfinite", c_bool),
        ("most_spread", c_double),
        *((name, c_bool) for name in ("reads_channels_last", "finishes")),
        ("prepared_size", ctypes.CFUNCTYPE(c_size_t, POINTER(_Problem), c_int, c_int)),
        ("prepare", c_void_p),
        *((name, c_bool) for name in ("prepared_for_all_sizes", "prepared_if_kept")),
        ("provider", c_char_p),
    ]

    @property
    def keeps_weights(self) -> bool:
        return bool(self.prepare)


class _Row(Structure):
    _fields_ = [
        ("direction", c_int32),
        ("name", c_char_p),
        ("algorithm", POINTER(_Algorithm)),
        *((name, c_void_p) for name in ("merit", "exists", "merit_of_kept")),
    ]


class _Table(Structure):
    _fields_ = [("isa", c_char_p), ("rows", POINTER(_Row)), ("count", c_int32)]


@dataclass(frozen=True)
class Row:
    """A row of the table; ``direction`` is that of :data:`DIRECTIONS`, ``op`` the operation of an ordinary problem in it.

    ``isas`` are those that have it, best first; a matrix unit in software stands in for one that the processor lacks.
    """

    isas: tuple[str, ...]
    name: str
    algorithm: str
    math: str
    direction: int
    fixed_order: bool
    same_on_every_isa: bool
    reads_channels_last: bool
    finishes: bool
    keeps_weights: bool

    @property
    def op(self) -> int:
        return self.direction % 3

    def __str__(self) -> str:
        return _named(DIRECTIONS[self.direction], self.name, self.algorithm)


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
        self.c = ctypes.CDLL(path)
        for name, result, arguments in (
            ("isa", c_char_p, [c_int]),
            ("isa_in_use", c_char_p, []),
            ("use_isa", c_int, [c_char_p]),
            ("table", POINTER(_Table), [c_char_p]),
            ("own_threads", Parallel, [c_int]),
            ("run", c_int, [c_char_p, c_int, POINTER(_Problem), c_int, POINTER(_Tensors), c_int, POINTER(Parallel)]),
            ("fingerprint", c_int, [c_char_p, c_void_p, c_int64, POINTER(c_uint64 * 2), POINTER(Parallel)]),
            ("statistics", c_int, [c_char_p, c_int, c_void_p, c_int64, c_void_p, POINTER(Parallel)]),
            ("has_nonfinite", c_int, [c_char_p, c_int, c_void_p, c_int64]),
        ):
            function = getattr(self.c, f"msctx_{name}")
            function.restype, function.argtypes = result, arguments
        found: list[str] = []
        while (name := self.c.msctx_isa(len(found))) is not None:
            found.append(name.decode())
        self.isas = [isa for isa in found if not isa.endswith(EMULATED)]
        self.emulated = [isa for isa in found if isa.endswith(EMULATED)]
        """Those whose matrix unit is software."""
        self._index = {isa: {str(row): i for i, row in enumerate(self.table(isa))} for isa in found}
        wanted = [isa for isa in found if isa.removesuffix(EMULATED) == isa or isa.removesuffix(EMULATED) not in found]
        rows = {str(row): row for isa in wanted for row in self.table(isa) if str(row) in ROWS}
        of = {name: tuple(isa for isa in wanted if name in self._index[isa]) for name in rows}
        # what a matrix unit has from avx512 is tested there
        tiles = [isa for isa in wanted if isa.startswith("amx")]
        of = {name: isas if set(isas) <= set(tiles) else tuple(i for i in isas if i not in tiles) for name, isas in of.items()}
        self.rows = [replace(rows[name], isas=of[name]) for name in sorted(rows, key=ROWS.index)]

    @property
    def isa_in_use(self) -> str:
        return str(self.c.msctx_isa_in_use().decode())

    def use_isa(self, name: str) -> bool:
        return bool(self.c.msctx_use_isa(name.encode()))

    def table(self, isa: str) -> list[Row]:
        rows: list[Row] = []
        table = self.c.msctx_table(isa.encode())
        for found in table.contents.rows[: table.contents.count] if table else ():
            a = found.algorithm.contents
            texts = found.name.decode(), a.name.decode(), a.math.decode()
            rows.append(Row((isa,), *texts, found.direction, *(getattr(a, name) for name in FLAGS)))
        return rows

    def row(self, direction: int, name: str) -> Row:
        """The last of that name: what takes most."""
        return next(row for row in reversed(self.rows) if (row.direction, row.name) == (direction, name))

    def running(self, algorithm: str) -> Row:
        return next(row for row in self.rows if row.algorithm == algorithm)

    def named(self, text: str) -> Row | None:
        """``None``: no instruction set of this machine has it."""
        return next((row for row in self.rows if str(row) == text), None)

    def reasons(self, row: Row, case: Case, op: int | None = None) -> list[str]:
        found = _Reasons()
        self._algorithm(row).reasons(_problem(case), row.op if op is None else op, found)
        return [text.decode() for text in found.text[: found.count]]

    def error(self, row: Row, case: Case, op: int | None = None) -> float:
        return float(self._algorithm(row).error(_problem(case), row.op if op is None else op))

    def workspace(self, row: Row, case: Case, threads: int = 1) -> int:
        """Bytes beside the tensors, those of a prepared weight in its first form included."""
        if any(0 in shape for shape in case.shapes):
            return 0
        a, problem = self._algorithm(row), _problem(case)
        prepared = a.prepared_size(problem, row.op, 0) if a.prepared_size and not a.prepared_if_kept else 0
        return (a.workspace(problem, row.op, threads) if a.workspace else 0) + (prepared + 63) // 64 * 64

    def run(
        self,
        row: Row,
        case: Case,
        tensors: tuple[Any, Any, Any],
        isa: str = "",
        threads: int = 1,
        op: int | None = None,
        channels_last: bool = False,
        epilogue: Epilogue = Epilogue(),
        keeps: bool = False,
    ) -> np.ndarray[Any, Any]:
        """The result of a row for *tensors* (x, w, y) as they are stored; that of the result is not read.

        *channels_last*: the row is given x and y, and gives its result, in that layout; the shapes stay.
        *keeps*: forms of the weight are kept, as panels of a product.
        """
        target = TARGETS[row.op if op is None else op]
        given = [np.ascontiguousarray(t) for t in tensors]
        given[target] = np.full_like(given[target], garbage(given[target].dtype))
        if channels_last:
            given = [t if i == 1 else np.ascontiguousarray(np.moveaxis(t, 1, -1)) for i, t in enumerate(given)]
            if epilogue.other is not None:
                epilogue = replace(epilogue, other=np.ascontiguousarray(np.moveaxis(epilogue.other, 1, -1)))
        self._run(row, case, given, isa, threads, op, channels_last, epilogue, keeps)
        return np.moveaxis(given[target], -1, 1) if channels_last and target != 1 else given[target]

    def run_in_place(
        self,
        row: Row,
        case: Case,
        tensors: Any,
        isa: str = "",
        threads: int = 1,
        epilogue: Epilogue = Epilogue(),
        backwards: bool = False,
    ) -> bool:
        """Whether the result, which replaces one of *tensors*, had to be computed again. *backwards*: the last task runs first."""
        assert all(t.flags.c_contiguous and t.shape == shape for t, shape in zip(tensors, case.shapes, strict=True))
        return self._run(row, case, tensors, isa, threads, None, False, epilogue, False, backwards)

    def fingerprint(self, values: np.ndarray[Any, Any], isa: str, threads: int = 1) -> tuple[int, int]:
        """The 128 bits that stand for all bytes of a contiguous array."""
        found = (c_uint64 * 2)()
        own = self.c.msctx_own_threads(threads)
        assert self.c.msctx_fingerprint(isa.encode(), c_void_p(values.ctypes.data), values.nbytes, found, own)
        return found[0], found[1]

    def statistics(
        self, values: np.ndarray[Any, Any], dtype: int, isa: str, threads: int = 1
    ) -> tuple[list[tuple[float, ...]], bool]:
        """Of each piece the range, the sums and the counts; whether anything is not finite. *dtype*: its place in DTYPES."""
        pieces = np.zeros(-(-values.size // PIECE), np.dtype([(str(i), np.float64 if i < 4 else np.int64) for i in range(10)]))
        data, found = c_void_p(values.ctypes.data), c_void_p(pieces.ctypes.data)
        given = isa.encode(), dtype, data, values.size
        assert self.c.msctx_statistics(*given, found, self.c.msctx_own_threads(threads))
        return pieces.tolist(), bool(self.c.msctx_has_nonfinite(*given))

    def _run(
        self,
        row: Row,
        case: Case,
        tensors: Any,
        isa: str,
        threads: int,
        op: int | None,
        channels_last: bool,
        epilogue: Epilogue,
        keeps: bool,
        backwards: bool = False,
    ) -> bool:
        e = epilogue
        parts = [None if t is None else t.ctypes.data for t in (e.scale, e.shift, e.other)]
        how = _Epilogue(*parts, ACTIVATIONS.index(e.activation), e.low, e.high, e.adds_last)
        given = _Tensors(*(t.ctypes.data for t in tensors), channels_last)
        if any(parts) or how.activation:
            given.epilogue = ctypes.pointer(how)
        isa = isa or row.isas[0]
        own = Parallel(threads, None, ctypes.cast(_BACKWARDS, c_void_p)) if backwards else self.c.msctx_own_threads(threads)
        place, op = self._index[isa][str(row)], row.op if op is None else op
        return bool(self.c.msctx_run(isa.encode(), place, _problem(case), op, given, keeps, own))

    def _algorithm(self, row: Row) -> _Algorithm:
        isa = row.isas[0]
        found: _Algorithm = self.c.msctx_table(isa.encode()).contents.rows[self._index[isa][str(row)]].algorithm.contents
        return found


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
