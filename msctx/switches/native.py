"""Switches of the native core: its policies for convolutions and for precision, its counting of memory and the caps on it."""

from __future__ import annotations

from functools import partial

from msctx.native import conv_policy, core, memory, precision_switch
from msctx.switches import torch_cuda, torch_npu
from msctx.switches.base import Switch


def _convolution(name: str) -> Switch:
    place = name.rpartition(".")[2]
    here = conv_policy.PLACES[place]
    return Switch(
        name=name,
        read=here.read,
        write=here.write,
        save=here.take,
        load=here.write,
        satisfied=here.is_in_force,
        prepare=here.load,
        available={"cuda": torch_cuda.is_here, "ascend": torch_npu.is_here}.get(place, lambda: True),
    )


def _precision(name: str) -> Switch:
    device = name.rpartition(".")[2]
    return Switch(
        name=name,
        read=partial(precision_switch.read, device),
        write=partial(precision_switch.write, device),
        save=partial(precision_switch.save, device),
        load=partial(precision_switch.load, device),
        scope="thread",
        family=name,
        prepare=core.load,
    )


SWITCHES = (
    _convolution("native.convolution.cpu"),
    _convolution("native.convolution.cuda"),
    _convolution("native.convolution.ascend"),
    _precision("native.precision.cpu"),
    _precision("native.precision.cuda"),
    _precision("native.precision.ascend"),
    Switch(
        name="native.memory_pool",
        read=memory.read_pool,
        write=memory.write_pool,
        load=memory.write_pool,  # always: while another allocator is in force, there is a pool that does not show
        prepare=core.load,
    ),
    Switch(
        name="native.memory_caps",
        read=memory.read_caps,
        write=memory.write_caps,
        prepare=core.load,
    ),
)
