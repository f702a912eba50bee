"""Environment variables that libraries read once, and Python's own limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from msctx.switches.base import Switch
from msctx.switches.torch_npu import is_here as npu_is_here


def _read(name: str) -> Callable[[], str | None]:
    return lambda: os.environ.get(name)


def _write(name: str) -> Callable[[str | None], None]:
    def write(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return write


def _variable(name: str, only_before: str, **more: Any) -> Switch:
    return Switch(name=f"env.{name}", read=_read(name), write=_write(name), restore="never", only_before=only_before, **more)


def _cublas_late(value: str) -> str:
    if torch.cuda.is_initialized():
        return (
            "CUBLAS_WORKSPACE_CONFIG comes too late, CUDA is already initialised; start with `msctx run`, or put "
            f"`os.environ['CUBLAS_WORKSPACE_CONFIG'] = '{value}'` before the first use of CUDA"
        )
    return ""


def _npu_late(name: str) -> Callable[[str | None], str]:
    def late(value: str | None) -> str:
        if npu_is_here() and torch.npu.is_initialized():
            return f"{name} comes too late, torch_npu is already initialised; start with `msctx run`"
        return ""

    return late


SWITCHES = (
    _variable(
        "CUBLAS_WORKSPACE_CONFIG",
        "the first use of cuBLAS",
        satisfied=lambda value: os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        blocked=_cublas_late,
    ),
    # torch_npu also tells HCCL by HcclSetConfig before each operator, so this one is never too late for torch's own groups
    _variable("HCCL_DETERMINISTIC", "the first HCCL communicator"),
    _variable("TE_PARALLEL_COMPILER", "the first operator compiled by CANN", blocked=_npu_late("TE_PARALLEL_COMPILER")),
    _variable(
        "PYTORCH_NO_NPU_MEMORY_CACHING",
        "the first allocation on an NPU",
        blocked=_npu_late("PYTORCH_NO_NPU_MEMORY_CACHING"),
    ),
    # a value is what is needed at least: a higher limit that is in force already stays
    Switch(
        name="python.recursion_limit",
        read=sys.getrecursionlimit,
        write=sys.setrecursionlimit,
        satisfied=lambda needed: sys.getrecursionlimit() >= needed,
    ),
)
