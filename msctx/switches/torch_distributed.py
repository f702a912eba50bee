"""The timeout of collectives, of the process groups that are there and of those that are made later; NCCL has a switch of its own."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from typing import Any

from msctx.switches.base import Switch

LONGEST = 2**31 // 1000 - 1
"""Seconds: gloo counts milliseconds in 32 bits; longer is for ever."""
DEFAULT, NCCL = "default_pg_timeout", "default_pg_nccl_timeout"
"""What torch gives to groups that are made; the second is ``None`` in a torch without NCCL."""


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _backends(default: str) -> list[Any]:
    """Of the process groups that are there, the default group first, those of this default whose timeout can be read and set."""
    c10d = _c10d()
    if c10d is None or not c10d.is_initialized():
        return []
    groups = dict.fromkeys([c10d._get_default_group(), *c10d._world.pg_map])
    found = [_unwrapped(group._get_backend(device)) for group in groups for device in group._device_types]
    known = [backend for backend in found if hasattr(backend, "_set_default_timeout") and hasattr(backend, "options")]
    return [backend for backend in known if (backend.name() == "nccl") == (default == NCCL)]


def _unwrapped(backend: Any) -> Any:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a back end between."""
    return getattr(backend, "wrapped_pg", backend)


def _seconds(timeout: timedelta) -> int:
    return round(timeout.total_seconds())


def _timedelta(seconds: int) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST) or LONGEST)


def read(default: str) -> int | None:
    """That of the first group, the default group before others; without one, what one that is made now will have."""
    found = next((backend.options._timeout for backend in _backends(default)), getattr(_c10d(), default))
    return None if found is None else _seconds(found)


def save(default: str) -> tuple[list[tuple[Any, timedelta]], timedelta | None]:
    return [(backend, backend.options._timeout) for backend in _backends(default)], getattr(_c10d(), default)


def load(default: str, found: tuple[list[tuple[Any, timedelta]], timedelta | None]) -> None:
    """A group that was made meanwhile keeps what it was made with."""
    for backend, timeout in found[0]:
        backend._set_default_timeout(timeout)
    setattr(_c10d(), default, found[1])


def write(default: str, seconds: int) -> None:
    wanted = _timedelta(seconds)
    load(default, ([(backend, wanted) for backend in _backends(default)], getattr(_c10d(), default) and wanted))


def _is_satisfied(default: str, seconds: int) -> bool:
    backends, found = save(default)
    return {found, *(timeout for _, timeout in backends)} - {None} <= {_timedelta(seconds)}


def _switch(name: str, default: str) -> Switch:
    return Switch(
        name=name,
        read=partial(read, default),
        write=partial(write, default),
        save=partial(save, default),
        load=partial(load, default),
        satisfied=partial(_is_satisfied, default),
        available=lambda: hasattr(_c10d(), default),
    )


SWITCHES = (
    _switch("torch.distributed.timeout", DEFAULT),
    _switch("torch.distributed.nccl_timeout", NCCL),
)
