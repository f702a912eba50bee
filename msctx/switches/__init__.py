"""The globals that msctx touches or shows, one row each, grouped by owner. Switches never decide anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msctx.errors import MsctxError
from msctx.import_hooks import collected_later
from msctx.native import core

with collected_later():
    from msctx.switches import (
        accelerator,
        environment,
        mkl,
        msctx_own,
        process_groups,
        torch_compiler,
        torch_core,
        torch_cuda,
        torch_npu,
        torch_tf32,
    )
    from msctx.switches.base import EXACT, Switch

_ROWS: tuple[tuple[Callable[[], bool] | None, tuple[Switch, ...]], ...] = (
    *((None, m.SWITCHES) for m in (torch_core, torch_compiler, torch_tf32, torch_cuda, environment, msctx_own)),
    (mkl.has_mkl, mkl.SWITCHES),
    (torch_cuda.is_here, (*torch_cuda.OF_DEVICE, *msctx_own.OF_CUDA)),
    (process_groups.has_groups, process_groups.SWITCHES),
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


def prepare(assignments: Mapping[str, Any]) -> bool:
    """Load, or build, what writing *assignments* needs; it may be interrupted. Returns whether plans may be others now."""
    before, has_failed = core.hooked(), False
    for name, value in assignments.items():
        try:
            if value and (load := SWITCHES[name].load):
                load()
        except MsctxError:
            has_failed = True
    return has_failed or core.hooked() != before


__all__ = ["EXACT", "SWITCHES", "Switch", "prepare", "present", "read_all"]
