"""MKL's conditional numerical reproducibility: in its strict mode, matrix products keep their bits.

Source: "Obtaining Numerically Reproducible Results" in Intel's oneMKL Developer Guide: mkl_cbwr_set, mkl_cbwr_get, MKL_CBWR.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from msctx.switches.base import LateError, Switch

STRICT = "AUTO,STRICT"
"""The fastest instructions that the processor has, in the strict mode: for any number of threads, and of rows or columns beside."""

_CODES = {1: "OFF", 2: "AUTO", 3: "COMPATIBLE", 4: "SSE2", 6: "SSSE3", 7: "SSE4_1", 8: "SSE4_2", 9: "AVX", 10: "AVX2"}
_CODES |= {11: "AVX512_MIC", 12: "AVX512", 13: "AVX512_MIC_E1", 14: "AVX512_E1"}
_IS_STRICT = 0x10000
_ALL = -1
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


def is_here() -> bool:
    return bool(_cbwr())


@cache
def is_intels() -> bool:
    """Whether the processor is one of those for which Intel documents the strict mode."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "Intel" in platform.processor()


def read() -> str:
    """The mode in force, as the variable MKL_CBWR has it: ``OFF``, ``AVX512,STRICT``."""
    found = _cbwr()[0](_ALL)
    name = _CODES.get(found & ~_IS_STRICT, str(found & ~_IS_STRICT))
    return f"{name},STRICT" if found & _IS_STRICT else name


def is_strict() -> bool:
    return read().endswith(",STRICT")


def _set(value: str) -> int:
    name, _, strict = value.partition(",")
    code = next((code for code, known in _CODES.items() if known == name), None) or int(name)
    return int(_cbwr()[1](code | bool(strict) * _IS_STRICT))


def _write(value: str) -> None:
    if error := _set(value):
        if error == _TOO_LATE:
            raise LateError(f"torch.mkl.cbwr can only be set before {_ONCE}: {read()!r} stays in force")
        raise RuntimeError(f"mkl_cbwr_set returned {error}")


def obstacle() -> str:
    """Why matrix products cannot keep their bits; ``""``: they do, or can from now on."""
    if not is_here():
        return "this PyTorch computes them without MKL"
    if not is_intels():
        return "MKL's strict mode is documented for processors of Intel's alone"
    if is_strict():
        return ""
    found = read()
    error, is_possible = _set(STRICT), is_strict()
    if not error:
        _set(found)
    if is_possible:
        return ""
    if error == _TOO_LATE:
        return (
            "MKL has computed before, and takes its strict mode only before that: start with `msctx run`, or set the option with "
            "msctx.set_context before the first operator, or the variable MKL_CBWR=AUTO,STRICT before Python starts"
        )
    return "MKL has no strict mode for this processor"


SWITCHES = (
    Switch(
        "torch.mkl.cbwr",
        read,
        _write,
        restore=f"it is read only before {_ONCE}",
        satisfied=lambda value: is_strict() if value == STRICT else read() == value,
    ),
)
