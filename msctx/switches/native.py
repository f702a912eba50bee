"""Switches of the native core: the fields of its policy, its pool of memory and the caps on it."""

from __future__ import annotations

from functools import partial

from msctx.native import core, memory, policy
from msctx.switches import torch_cuda
from msctx.switches.base import Switch

together = policy.together
POLICY = tuple(
    Switch(
        name=policy.switch_of(field, place),
        read=partial(one.read, field),
        write=partial(one.write, field),
        prepare=one.load if field in policy.ASKING else None,
        available=torch_cuda.is_here if place == "cuda" else lambda: True,
    )
    for place, one in policy.PLACES.items()
    for field in one.fields
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
SWITCHES = (*POLICY, *MEMORY)
