"""Switches of the native core: the fields of its policy."""

from __future__ import annotations

from functools import partial

from msctx.native import core, policy
from msctx.switches.base import Switch

SWITCHES = tuple(
    Switch(
        name=f"native.{field}",
        read=partial(policy.read, field),
        write=partial(policy.write, field),
        prepare=core.load if field in policy.ASKING else None,
    )
    for field in policy.NOTHING
)
