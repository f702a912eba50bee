"""Switches of what shows the inside of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from msctx.graph import files, report
from msctx.native import core
from msctx.observers import collector, fusions, kernels, print_file, replicas, scope_names
from msctx.observers.checked_gradients import NODES
from msctx.observers.collector import Reader
from msctx.observers.deterministic_except import ExceptReader
from msctx.observers.dump import DumpReader
from msctx.observers.error_dump import ErrorReader
from msctx.observers.numeric_gradients import VALUES
from msctx.observers.overflow import OverflowReader
from msctx.observers.recorder import RecorderReader
from msctx.observers.structured_trace import Slot
from msctx.observers.watchdog import WatchdogReader
from msctx.switches.base import Switch

KEPT = 64


def _observer(name: str, kind: Callable[[Any], Reader]) -> Switch:
    going_on: dict[Any, Reader] = {}  # by their settings: a context that is entered again goes on where it was

    def read() -> Any:
        found = collector.reader(name)
        return None if found is None else asdict(found.settings)

    def write(settings: Any) -> None:
        found = None if settings is None else (going_on.pop(settings, None) or kind(settings))
        collector.put(name, found)
        if found is not None and found.goes_on:
            going_on[settings] = found
            while len(going_on) > KEPT:
                del going_on[next(iter(going_on))]

    return Switch(
        name=name,
        read=read,
        write=write,
        save=lambda: collector.reader(name),
        load=lambda found: collector.put(name, found, resumes=True),
        satisfied=lambda wanted: read() == (wanted and asdict(wanted)),
        prepare=core.load,
    )


def _traced(name: str, slot: Slot, blocked: Callable[[Any], str] | None = None) -> Switch:
    return Switch(name=name, read=slot.read, write=slot.write, save=slot.save, load=slot.load, blocked=blocked)


SWITCHES = (
    _observer("observers.dump", DumpReader),
    _observer("observers.overflow", OverflowReader),
    _observer("observers.errors", ErrorReader),
    _observer("observers.recorder", partial(RecorderReader, lambda: report.of_process().as_dicts())),
    _observer("observers.watchdog", WatchdogReader),
    _observer("observers.deterministic_except", ExceptReader),
    Switch(
        name="observers.print_file",
        read=print_file.read,
        write=print_file.write,
        save=print_file.save,
        load=print_file.load,
    ),
    Switch(
        name="observers.replicas",
        read=replicas.SLOT.read,
        write=replicas.SLOT.write,
        save=replicas.SLOT.save,
        load=replicas.SLOT.load,
    ),
    _traced("observers.kernels", kernels.SLOT),
    Switch(name="observers.fusions", read=fusions.read, write=fusions.write, save=fusions.save, load=fusions.load),
    _traced("observers.graph_files", files.SLOT, files.obstacle),
    Switch(name="observers.class_names", read=scope_names.with_classes, write=scope_names.write, scope="thread"),
    Switch(name="observers.check_bprop", read=NODES.is_on, write=NODES.turn, scope="thread"),
    Switch(name="observers.check_bprop_values", read=VALUES.is_on, write=VALUES.turn, scope="thread"),
)
