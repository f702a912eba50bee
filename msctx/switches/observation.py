"""Switches of what shows the inside of a run."""

from __future__ import annotations

from msctx.observers import print_file
from msctx.observers.checked_gradients import NODES
from msctx.observers.numeric_gradients import VALUES
from msctx.switches.base import Switch

SWITCHES = (
    Switch(
        name="observers.print_file",
        read=print_file.read,
        write=print_file.write,
        save=print_file.save,
        load=print_file.load,
    ),
    Switch(name="observers.check_bprop", read=NODES.is_on, write=NODES.turn, scope="thread"),
    Switch(name="observers.check_bprop_values", read=VALUES.is_on, write=VALUES.turn, scope="thread"),
)
