"""Switches of what shows the inside of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from msctx.graph import report
from msctx.switches.base import Switch, reading, writing

KEPT = 64

_COLLECTOR = "msctx.observers.collector"


def _observer(name: str, place: str, *more: Any) -> Switch:
    """*place*: ``module:class`` of a reader of what the native core collects, made of *more* and its settings."""
    going_on: dict[Any, Any] = {}  # by their settings: a context that is entered again goes on where it was

    def save() -> Any:
        return import_module(_COLLECTOR).reader(name) if _COLLECTOR in sys.modules else None

    def read() -> Any:
        found = save()
        return None if found is None else asdict(found.settings)

    def put(found: Any, **how: Any) -> None:
        if found is not None or _COLLECTOR in sys.modules:
            import_module(_COLLECTOR).put(name, found, **how)

    def write(settings: Any) -> None:
        module, _, kind = place.partition(":")
        found = None
        if settings is not None:
            found = going_on.pop(settings, None) or getattr(import_module(module), kind)(*more, settings)
        put(found)
        if found is not None and found.goes_on:
            going_on[settings] = found
            while len(going_on) > KEPT:
                del going_on[next(iter(going_on))]

    return Switch(
        name=name,
        read=read,
        write=write,
        state=(save, partial(put, resumes=True)),
        satisfied=lambda wanted: read() == (wanted and asdict(wanted)),
    )


def _slot(name: str, place: str, blocked: Callable[[Any], str] | None = None) -> Switch:
    """*place*: of a :class:`msctx.observers.slots.Slot`."""
    return Switch(
        name=name,
        read=reading(f"{place}.read"),
        write=writing(f"{place}.write"),
        state=(reading(f"{place}.save"), writing(f"{place}.load")),
        blocked=blocked,
    )


def _gradients(name: str, place: str) -> Switch:
    return Switch(name=name, read=reading(f"{place}.is_on", False), write=writing(f"{place}.turn", False), scope="thread")


def _no_folder(wanted: Any) -> str:
    return str(import_module("msctx.graph.files").obstacle(wanted))


READERS: dict[str, tuple[Any, ...]] = {
    "observers.dump": ("msctx.observers.dump:DumpReader",),
    "observers.overflow": ("msctx.observers.overflow:OverflowReader",),
    "observers.errors": ("msctx.observers.error_dump:ErrorReader",),
    "observers.recorder": ("msctx.observers.recorder:RecorderReader", lambda: report.of_process().as_dicts()),
    "observers.watchdog": ("msctx.observers.watchdog:WatchdogReader",),
    "observers.deterministic_except": ("msctx.observers.deterministic_except:ExceptReader",),
}
"""Switch → the class of the reader, and what it takes beside its settings."""
SWITCHES = (
    *(_observer(name, *reader) for name, reader in READERS.items()),
    _slot("observers.print_file", "msctx.observers.printing:SLOT"),
    _slot("observers.replicas", "msctx.observers.replicas:SLOT"),
    _slot("observers.kernels", "msctx.observers.compile_trace:KERNELS_SLOT"),
    _slot("observers.fusions", "msctx.observers.compile_trace:FUSIONS_SLOT"),
    _slot("observers.graph_files", "msctx.graph.files:SLOT", _no_folder),
    Switch(
        name="observers.class_names",
        read=reading("msctx.observers.modules:with_classes", True),
        write=writing("msctx.observers.modules:write_with_classes", True),
        scope="thread",
    ),
    _gradients("observers.check_bprop", "msctx.observers.gradients:NODES"),
    _gradients("observers.check_bprop_values", "msctx.observers.gradients:VALUES"),
)
