"""Environment variables that libraries read once, and Python's own limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from msctx.switches.base import Switch, variable
from msctx.switches.torch_npu import is_late as npu_late


def _read_once(name: str, only_before: str, **more: Any) -> Switch:
    return variable(name, restore=f"it is read only before {only_before}", **more)


def _of_npu(name: str, only_before: str = "the first use of an NPU") -> Switch:
    return _read_once(name, only_before, blocked=lambda value: npu_late(name.removeprefix("env.")))


def _of_hccl(name: str, only_before: str = "the first process group of HCCL", **more: Any) -> Switch:
    return _read_once(name, only_before, blocked=_group_late(name, "hccl"), **more)


def _cublas_late(value: str) -> str:
    if torch.cuda.is_initialized():
        return (
            "CUBLAS_WORKSPACE_CONFIG comes too late, CUDA is already initialised; start with `msctx run`, or put "
            f"`os.environ['CUBLAS_WORKSPACE_CONFIG'] = '{value}'` before the first use of CUDA"
        )
    return ""


FIXED_ORDER = frozenset({"ring", "collnetdirect", "collnetchain"})
"""NCCL's algorithms that add in one order in every run: those that Megatron-LM takes for its deterministic mode."""


def _nccl_adds_in_fixed_order(value: str) -> bool:
    """Whether NCCL_ALGO (``ring,tree;allreduce:ring``) leaves NCCL such algorithms alone, or leaves out NVLS."""
    groups = os.environ.get("NCCL_ALGO", "").replace(" ", "").lower().split(";")
    lists = [group.rpartition(":")[2] for group in groups]
    return all(names == "^nvls" or FIXED_ORDER.issuperset(names.split(",")) for names in lists)


def _has_group_of(backend: str) -> bool:
    """Whether any process group communicates by it, not only the default group."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d is not None and any(backend in devices for devices in [*c10d._world.pg_backend_config.values()])


def _group_late(name: str, backend: str) -> Callable[[str | None], str]:
    late = (
        f"{name.removeprefix('env.')} comes too late, a process group of {backend.upper()} has been made; start with `msctx run`, "
        "or enter the context before torch.distributed.init_process_group"
    )
    return lambda value: late if _has_group_of(backend) else ""


def _hccl_adds_in_fixed_order(value: str) -> bool:
    """torch_npu's HcclSetConfig, with the next operator, serves the groups that are there. HCCL ignores that call where the variable
    is set, though it no longer reads it."""
    found = os.environ.get("HCCL_DETERMINISTIC")
    return _has_group_of("hccl") if found is None else found.lower() in ("true", "strict")


SWITCHES = (
    _read_once(
        "env.CUBLAS_WORKSPACE_CONFIG",
        "the first use of cuBLAS",
        satisfied=lambda value: os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        blocked=_cublas_late,
    ),
    # NCCL reads it whenever it makes a communicator, so that what was found can be put back
    variable("env.NCCL_ALGO", satisfied=_nccl_adds_in_fixed_order, blocked=_group_late("env.NCCL_ALGO", "nccl")),
    _of_hccl("env.HCCL_DETERMINISTIC", "the first HCCL communicator", satisfied=_hccl_adds_in_fixed_order),
    _of_hccl("env.HCCL_EXEC_TIMEOUT"),
    _of_hccl("env.HCCL_EVENT_TIMEOUT"),
    variable("env.ACL_STREAM_TIMEOUT"),  # torch_npu reads it at each wait
    _of_npu("env.TE_PARALLEL_COMPILER"),
    _of_npu("env.PYTORCH_NO_NPU_MEMORY_CACHING", "the first allocation on an NPU"),
    _of_npu("env.ASCEND_MAX_OP_CACHE_SIZE"),
    _of_npu("env.ASCEND_REMAIN_CACHE_SIZE_RATIO"),
    variable("env.DISABLE_PTXAS_OPT"),  # Triton reads it, and its caches distinguish it, whenever it compiles
    variable(
        "env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG",  # any text has each pattern counted; names of nodes are logged, too
        satisfied=lambda value: bool(os.environ.get("TORCHINDUCTOR_PATTERN_MATCH_DEBUG")) == bool(value),
    ),
    # a value is what is needed at least: a higher limit that is in force already stays
    Switch(
        "python.recursion_limit",
        sys.getrecursionlimit,
        sys.setrecursionlimit,
        satisfied=lambda needed: sys.getrecursionlimit() >= needed,
        restore="between",
    ),
)
