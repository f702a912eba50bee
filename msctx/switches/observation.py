"""Switches of what shows the inside of a run."""

from __future__ import annotations

from msctx.observers import print_file
from msctx.switches.base import Switch

SWITCHES = (
    Switch(
        name="observers.print_file",
        read=print_file.read,
        write=print_file.write,
        save=print_file.save,
        load=print_file.load,
    ),
)
