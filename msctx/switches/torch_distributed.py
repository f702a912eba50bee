"""The timeout of collectives, of the process groups that are there and of those that are made later."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from msctx.switches.base import Switch

LONGEST = 2**31 // 1000 - 1
"""Seconds: gloo counts milliseconds in 32 bits; longer is for ever."""


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _backends() -> list[Any]:
    """Of the process groups that are there, the default group first, those whose timeout can be read and set."""
    c10d = _c10d()
    if c10d is None or not c10d.is_initialized():
        return []
    groups = dict.fromkeys([c10d._get_default_group(), *c10d._world.pg_map])
    found = [group._get_backend(device) for group in groups for device in group._device_types]
    return [backend for backend in found if hasattr(backend, "_set_default_timeout") and hasattr(backend, "options")]


def _seconds(timeout: timedelta) -> int:
    return round(timeout.total_seconds())


def _timedelta(seconds: int) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST) or LONGEST)


DEFAULTS = ("default_pg_timeout", "default_pg_nccl_timeout")


def _has_defaults() -> bool:
    return all(hasattr(_c10d(), name) for name in DEFAULTS)


def read() -> int:
    """That of the default group; without one, what one that is made now will have."""
    return _seconds(next((backend.options._timeout for backend in _backends()), _c10d().default_pg_timeout))


def save() -> tuple[list[tuple[Any, timedelta]], dict[str, Any]]:
    return [(backend, backend.options._timeout) for backend in _backends()], {name: getattr(_c10d(), name) for name in DEFAULTS}


def load(found: tuple[list[tuple[Any, timedelta]], dict[str, Any]]) -> None:
    """A group that was made meanwhile keeps what it was made with."""
    for backend, timeout in found[0]:
        backend._set_default_timeout(timeout)
    for name, timeout in found[1].items():
        setattr(_c10d(), name, timeout)


def write(seconds: int) -> None:
    backends, defaults = save()
    wanted = _timedelta(seconds)
    load(
        (
            [(backend, wanted) for backend, _ in backends],
            {name: wanted for name, found in defaults.items() if found is not None},
        )
    )


def _is_satisfied(seconds: int) -> bool:
    backends, defaults = save()
    return {_timedelta(seconds)} == {*(found for _, found in backends), *defaults.values()} - {None}


SWITCHES = (
    Switch(
        name="torch.distributed.timeout",
        read=read,
        write=write,
        save=save,
        load=load,
        satisfied=_is_satisfied,
        available=_has_defaults,
    ),
)
