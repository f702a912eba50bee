"""The globals that msctx touches or shows, one row each, grouped by owner. Switches never decide anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msctx.switches import (
    denormals,
    environment,
    generators,
    models,
    native,
    precision_policy,
    torch_accelerator,
    torch_core,
    torch_cuda,
    torch_inductor,
    torch_npu,
    torch_precision,
)
from msctx.switches.base import Switch

SWITCHES: Mapping[str, Switch] = MappingProxyType(
    {
        switch.name: switch
        for owner in (
            denormals,
            torch_core,
            torch_inductor,
            torch_precision,
            torch_cuda,
            torch_npu,
            torch_accelerator,
            generators,
            environment,
            native,
            models,
            precision_policy,
        )
        for switch in owner.SWITCHES
    }
)


def read_all() -> dict[str, Any]:
    """Every switch that exists in this process → its value now."""
    return {name: switch.read() for name, switch in SWITCHES.items() if switch.available()}


__all__ = ["SWITCHES", "Switch", "read_all"]
