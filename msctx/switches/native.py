"""Switches of the native core: its policies for convolutions, its pool of memory and the caps on it."""

from __future__ import annotations

from msctx.native import conv_policy, core, memory
from msctx.switches import torch_cuda
from msctx.switches.base import Switch

POLICIES = tuple(
    Switch(
        name=f"native.convolution.{place}",
        read=here.read,
        write=here.write,
        save=here.take,
        load=here.write,
        satisfied=here.is_in_force,
        prepare=here.load,
        available=torch_cuda.is_here if place == "cuda" else lambda: True,
    )
    for place, here in conv_policy.PLACES.items()
)
MEMORY = (
    Switch(name="native.memory_pool", read=memory.read_pool, write=memory.write_pool, prepare=core.load),
    Switch(
        name="native.memory_caps",
        read=memory.read_caps,
        write=memory.write_caps,
        save=memory.save_caps,
        load=memory.load_caps,
        prepare=core.load,
    ),
)
SWITCHES = (*POLICIES, *MEMORY)
