"""Switches of the precision policies: one for each kind of device, each thread's own."""

from __future__ import annotations

from functools import partial

from msctx.native import core, precision, precision_switch
from msctx.switches.base import Switch

SWITCHES = tuple(
    Switch(
        name=f"native.precision.{device}",
        read=partial(precision_switch.read, device),
        write=partial(precision_switch.write, device),
        save=partial(precision_switch.save, device),
        load=partial(precision_switch.load, device),
        scope="thread",
        family=f"native.precision.{device}",
        prepare=core.load,
    )
    for device in precision.DEVICES
)
