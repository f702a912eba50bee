"""PyTorch's own engine for a matrix unit, ``at::native::cpublas::brgemm``, as a matrix product to compare with.

torch exports it for its attention, and calls it for no product of float32. Here it computes x @ w from values rounded to 16 bits, or
from parts of them (three products of two parts), with w packed before, on one thread. What it needs of torch is the symbol alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

COLUMNS, ROWS, DEPTH = 64, 128, 512
"""Of the blocks that one call multiplies, which stay in the second cache."""
_OF = {torch.bfloat16: "N3c108BFloat16E", torch.float16: "N3c104HalfE", torch.float32: "f"}
_CODES = {torch.bfloat16: 15, torch.float16: 5}
"""dtype → its place in c10::ScalarType."""


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so")


@cache
def _brgemm(dtype: torch.dtype) -> Any:
    again = "S5_" if dtype in _CODES else "S3_"
    found = getattr(_library(), f"_ZN2at6native7cpublas6brgemmEllllllbPK{_OF[dtype]}{again}Pfb")
    found.restype = None
    found.argtypes = [*[ctypes.c_long] * 6, ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.c_bool]
    return found


def obstacle(dtype: torch.dtype) -> str:
    """Why it computes no products of a dtype here, or ``""``: without support the call would end the process."""
    try:
        can = _library()._ZN2at6native7cpublas10could_packEN3c1010ScalarTypeE
        _brgemm(dtype)
    except AttributeError:
        return "this PyTorch does not export brgemm"
    can.restype, can.argtypes = ctypes.c_bool, [ctypes.c_int8]
    return "" if can(_CODES[dtype]) else f"brgemm has no {dtype} on this processor"


def _packed(w: torch.Tensor) -> torch.Tensor:
    """(blocks of columns, depth, columns); of 16 bits, pairs of rows lie side by side."""
    depth, columns = w.shape
    blocks = torch.nn.functional.pad(w, (0, -columns % COLUMNS)).view(depth, -1, COLUMNS).transpose(0, 1)
    if w.dtype == torch.float32:
        return blocks.contiguous()
    return blocks.reshape(len(blocks), depth // 2, 2, COLUMNS).transpose(2, 3).contiguous()


def _add(x: torch.Tensor, w: torch.Tensor, result: torch.Tensor, is_first: bool) -> None:
    """To *result*, whose columns are padded; *w* is packed."""
    call, size, (rows, depth), across = _brgemm(x.dtype), x.element_size(), x.shape, result.shape[1]
    is_vnni = x.dtype in _CODES
    px, pw, pr = x.data_ptr(), w.data_ptr(), result.data_ptr()
    for low in range(0, depth, DEPTH):
        deep = min(DEPTH, depth - low)
        for block in range(len(w)):
            at_w = pw + (block * depth + low) * COLUMNS * size
            for top in range(0, rows, ROWS):
                at_x, at_r = px + (top * depth + low) * size, pr + (top * across + block * COLUMNS) * 4
                more = not is_first or low > 0
                call(min(ROWS, rows - top), COLUMNS, deep, depth, COLUMNS, across, more, at_x, at_w, at_r, is_vnni)
    if is_vnni:
        _library()._ZN2at6native7cpublas14brgemm_releaseEb(ctypes.c_bool(True))


def _parts(t: torch.Tensor, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    high = t.to(dtype)
    return [high, (t - high.float()).to(dtype)][:count]


def product(w: torch.Tensor, dtype: torch.dtype, count: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes x, contiguous float32, and gives x @ w; *w* is float32 with an even depth. *count*: of parts, 1 or 2."""
    columns, packed = w.shape[1], [_packed(part) for part in _parts(w, dtype, count)]

    def run(x: torch.Tensor) -> torch.Tensor:
        result = x.new_empty(len(x), columns + -columns % COLUMNS)
        parts = _parts(x, dtype, count)
        pairs = [(0, 0)] if count == 1 else [(1, 0), (0, 1), (0, 0)]  # the smallest first
        for number, (of_x, of_w) in enumerate(pairs):
            _add(parts[of_x], packed[of_w], result, is_first=number == 0)
        return result[:, :columns]

    return run
