"""The globals that msctx touches or shows, one row each, grouped by owner. Switches never decide anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msctx.import_hooks import collected_later

with collected_later():
    from msctx.switches import (
        accelerator,
        environment,
        msctx_own,
        torch_compiler,
        torch_core,
        torch_cuda,
        torch_npu,
        torch_precision,
    )
    from msctx.switches.base import Switch

_ROWS: tuple[tuple[Callable[[], bool] | None, tuple[Switch, ...]], ...] = (
    *((None, m.SWITCHES) for m in (torch_core, torch_compiler, torch_precision, torch_cuda, environment, msctx_own)),
    (torch_precision.has_mkl, torch_precision.OF_MKL),
    (torch_cuda.is_here, (*torch_cuda.OF_DEVICE, *msctx_own.OF_CUDA)),
    (torch_core.has_groups, torch_core.OF_GROUPS),
    (accelerator.npu_is_here, (*torch_npu.SWITCHES, *msctx_own.OF_ASCEND)),
    (accelerator.has_settings, accelerator.SWITCHES),
)
"""Whether the globals exist in this process (``None``: always), and their rows."""
SWITCHES: Mapping[str, Switch] = MappingProxyType({row.name: row for _, rows in _ROWS for row in rows})


def present() -> list[Switch]:
    """The switches that exist in this process."""
    return [row for is_here, rows in _ROWS if is_here is None or is_here() for row in rows]


def read_all() -> dict[str, Any]:
    """Every switch that exists in this process → its value now."""
    return {switch.name: switch.read() for switch in present()}


__all__ = ["SWITCHES", "Switch", "present", "read_all"]
