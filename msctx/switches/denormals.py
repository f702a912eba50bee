"""Whether numbers below the smallest normal one are taken for zero: a mode of each thread's floating-point unit."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import torch

from msctx.switches.base import Switch

_ENVIRONMENT = 64
"""Bytes, more than any C library's fenv_t has."""
_process = os.getpid()


class _Pool:
    most = torch.get_num_threads()
    """Threads that torch's pool may have: those that a smaller number leaves out sleep, and keep their mode."""
    is_reached = False
    """Whether it has got the mode of a thread from us."""


_smallest = sys.float_info.min
"""A name, not a constant: the compiler would halve it once and for all."""


def _is_flushed() -> bool:
    return _smallest / 2 == 0.0


@cache
def _libraries() -> tuple[Any, Any] | None:
    """Of the floating-point environment, and the OpenMP that torch computes with; ``None``: torch's is another."""
    try:
        libm, torch_itself = ctypes.CDLL("libm.so.6"), ctypes.CDLL(torch._C.__file__)
        torch_itself.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return libm, torch_itself
    except (OSError, AttributeError):
        return None


def _write(on: bool) -> None:
    """torch's own setter reaches the calling thread alone: its pool's threads take over the mode here, or each chunk of an operator
    would follow another."""
    torch.set_flush_denormal(on)
    _Pool.is_reached = True
    reach_pool()


def reach_pool() -> None:
    """The pool's threads take over the mode of this one, if it was ever changed here: to be called when their number has changed."""
    _Pool.most = max(_Pool.most, torch.get_num_threads())
    threads, found = _Pool.most, _libraries()
    # after a fork the pool is not there, and waiting for it hangs
    if not _Pool.is_reached or found is None or threads < 2 or os.getpid() != _process:
        return
    libm, openmp = found
    environment = ctypes.create_string_buffer(_ENVIRONMENT)
    libm.fegetenv(environment)
    openmp.GOMP_parallel(ctypes.cast(libm.fesetenv, ctypes.c_void_p), ctypes.addressof(environment), threads, 0)


SWITCHES = (Switch("torch.flush_denormal", _is_flushed, _write, scope="inherited"),)
