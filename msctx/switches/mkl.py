"""MKL's conditional numerical reproducibility: in its strict mode, matmuls keep their bits.

Source: "Obtaining Numerically Reproducible Results" in Intel's oneMKL Developer Guide: mkl_cbwr_set, mkl_cbwr_get, MKL_CBWR.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from msctx.native import core
from msctx.switches.base import LateError, Switch

STRICT = "AUTO,STRICT"
"""The fastest instructions that the processor has, in the strict mode: for any number of threads, and of rows or columns beside."""

_CODES = {1: "OFF", 2: "AUTO", 3: "COMPATIBLE", 4: "SSE2", 6: "SSSE3", 7: "SSE4_1", 8: "SSE4_2", 9: "AVX", 10: "AVX2"}
_CODES |= {11: "AVX512_MIC", 12: "AVX512", 13: "AVX512_MIC_E1", 14: "AVX512_E1"}
_IS_STRICT = 0x10000
_EVERY_BRANCH = -1
_ONCE = "MKL's first computation"
_TOO_LATE = -8  # MKL_CBWR_ERR_MODE_CHANGE_FAILURE


@cache
def _cbwr() -> tuple[Any, ...]:
    """mkl_cbwr_get and mkl_cbwr_set, as PyTorch's library has or leads to them under the names that MKL gives them inside."""
    try:
        library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", "libtorch_cpu.so")))
        return library.mkl_serv_cbwr_get, library.mkl_serv_cbwr_set
    except (OSError, AttributeError):
        return ()


def has_mkl() -> bool:
    return bool(_cbwr())


@cache
def is_intels() -> bool:
    """Whether the processor is one of those for which Intel documents the strict mode."""
    return core.cpuinfo().get("vendor_id") == "GenuineIntel"


def read_mkl() -> str:
    """The mode in force, as the variable MKL_CBWR has it: ``OFF``, ``AVX512,STRICT``."""
    found = _cbwr()[0](_EVERY_BRANCH)
    name = _CODES.get(found & ~_IS_STRICT, str(found & ~_IS_STRICT))
    return f"{name},STRICT" if found & _IS_STRICT else name


def is_strict() -> bool:
    return read_mkl().endswith(",STRICT")


def _set_mkl(value: str) -> int:
    name, _, strict = value.partition(",")
    code = next((code for code, known in _CODES.items() if known == name), None) or int(name)
    return int(_cbwr()[1](code | bool(strict) * _IS_STRICT))


def _write_mkl(value: str) -> None:
    if error := _set_mkl(value):
        if error == _TOO_LATE:
            raise LateError(f"torch.mkl.cbwr can only be set before {_ONCE}: {read_mkl()!r} stays in force")
        raise RuntimeError(f"mkl_cbwr_set returned {error}")


def mkl_obstacle() -> str:
    """Why matmuls cannot keep their bits; ``""``: they do, or can from now on."""
    if not has_mkl():
        return "this PyTorch has no MKL"
    if not is_intels():
        return "MKL's strict mode needs Intel"
    if is_strict():
        return ""
    found = read_mkl()
    error, is_possible = _set_mkl(STRICT), is_strict()
    if not error:
        _set_mkl(found)
    if is_possible:
        return ""
    if error == _TOO_LATE:
        return "MKL has computed before. Start with `msctx run`, or set MKL_CBWR=AUTO,STRICT before Python starts."
    return "MKL has no strict mode"


SWITCHES = (
    Switch(
        "torch.mkl.cbwr",
        read_mkl,
        _write_mkl,
        restore=f"it is read only before {_ONCE}",
        satisfied=lambda value: is_strict() if value == STRICT else read_mkl() == value,
    ),
)
