"""Switches of the native core: its policies for convolutions and for precision, its counting of memory and the caps on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msctx.errors import MsctxError
from msctx.native import (  # noqa: F401  # some only count what comes of a policy
    choices,
    conv_policy,
    core,
    memory,
    precision_switch,
    precisions,
)
from msctx.switches import parts
from msctx.switches.base import Switch


def _convolution(name: str) -> Switch:
    place = name.rpartition(".")[2]
    return Switch(name, partial(conv_policy.IN_FORCE.get, place), partial(conv_policy.write, place))


def _precision(name: str) -> Switch:
    device = name.rpartition(".")[2]
    return Switch(
        name,
        partial(precision_switch.read, device),
        partial(precision_switch.write, device),
        state=(partial(precision_switch.save, device), partial(precision_switch.load, device)),
        scope="thread",
        family=name,
    )


SWITCHES = (
    _convolution("native.convolution.cpu"),
    _precision("native.precision.cpu"),
    _precision("native.precision.cuda"),
    _precision("native.precision.ascend"),
    # put back always: while another allocator is in force, there is a pool that does not show
    Switch("native.memory_pool", memory.read_pool, memory.write_pool, state=(memory.read_pool, memory.write_pool)),
    Switch("native.memory_caps", memory.read_caps, memory.write_caps),
)
OF_CUDA = (_convolution("native.convolution.cuda"),)
OF_ASCEND = (_convolution("native.convolution.ascend"),)


def prepare(assignments: Mapping[str, Any]) -> bool:
    """Load, or build, what writing *assignments* needs; it may be interrupted. Returns whether plans may be others now."""
    before, has_failed = core.hooked(), False
    for name, value in assignments.items():
        try:
            if value and (load := LOADS.get(name)):
                load()
        except MsctxError:
            has_failed = True
    return has_failed or core.hooked() != before


_NEED_CORE = (*SWITCHES, *(row for row in parts.SWITCHES if row.name in parts.READERS))
LOADS = {
    **{row.name: core.load for row in _NEED_CORE},
    **{f"native.convolution.{place}": load for place, load in conv_policy.LOAD.items()},
}
"""Switch → what loads the library that it needs."""
