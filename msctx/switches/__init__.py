"""The globals that msctx touches or shows, one row each, grouped by owner. Switches never decide anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msctx.switches import (
    denormals,
    environment,
    generators,
    graph,
    models,
    native,
    observation,
    sessions,
    torch_accelerator,
    torch_compile_debug,
    torch_compiler,
    torch_core,
    torch_cuda,
    torch_distributed,
    torch_dynamo,
    torch_inductor,
    torch_mkl,
    torch_npu,
    torch_precision,
    torch_profiler,
    torchair,
)
from msctx.switches.base import Switch

_ROWS = (
    *denormals.SWITCHES,
    *torch_core.SWITCHES,
    *torch_inductor.SWITCHES,
    *torch_compile_debug.SWITCHES,
    *torch_compiler.SWITCHES,
    *torch_dynamo.SWITCHES,
    *torch_mkl.SWITCHES,
    *torch_precision.SWITCHES,
    *torch_cuda.SWITCHES,
    *torch_distributed.SWITCHES,
    *torch_npu.SWITCHES,
    *torchair.SWITCHES,
    *torch_accelerator.SWITCHES,
    *generators.SWITCHES,
    *environment.SWITCHES,
    *native.SWITCHES,
    *models.SWITCHES,
    *observation.SWITCHES,
    *graph.SWITCHES,
    *sessions.SWITCHES,
    *torch_profiler.SWITCHES,
)
SWITCHES: Mapping[str, Switch] = MappingProxyType({switch.name: switch for switch in _ROWS})


def read_all() -> dict[str, Any]:
    """Every switch that exists in this process → its value now."""
    return {name: switch.read() for name, switch in SWITCHES.items() if switch.available()}


__all__ = ["SWITCHES", "Switch", "read_all"]
