"""The timeout of collectives: of existing process groups, and of groups that are created later."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from msctx.switches.base import Switch

LONGEST = 2**31 // 1000 - 1
"""Seconds: gloo counts milliseconds in 32 bits; a longer timeout means none."""
_TIMEOUTS = ("default_pg_timeout", "default_pg_nccl_timeout")
"""Torch gives these to new groups; the second is ``None`` in a torch without NCCL."""
_Timeouts = tuple[list[tuple[Any, timedelta]], dict[str, timedelta]]


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def _backends() -> list[Any]:
    """Those of the existing process groups whose timeout can be set, the default group first."""
    c10d = _c10d()
    if c10d is None or not c10d.is_initialized():
        return []
    groups = dict.fromkeys([c10d._get_default_group(), *c10d._world.pg_map])
    found = [group._get_backend(device) for group in groups for device in group._device_types]
    own = [getattr(backend, "wrapped_pg", backend) for backend in found]  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps them
    return [backend for backend in own if hasattr(backend, "_set_default_timeout") and hasattr(backend, "options")]


def has_groups() -> bool:
    return hasattr(_c10d(), _TIMEOUTS[0])


def _save_timeouts() -> _Timeouts:
    defaults = {name: found for name in _TIMEOUTS if (found := getattr(_c10d(), name)) is not None}
    return [(backend, backend.options._timeout) for backend in _backends()], defaults


def _load_timeouts(found: _Timeouts) -> None:
    """A group that was created since keeps its timeout."""
    for backend, timeout in found[0]:
        backend._set_default_timeout(timeout)
    for name, timeout in found[1].items():
        setattr(_c10d(), name, timeout)


def _read_timeout() -> int:
    """The timeout of the default group, or of the next group if there is none."""
    backends, defaults = _save_timeouts()
    return round((backends[0][1] if backends else defaults[_TIMEOUTS[0]]).total_seconds())


def _write_timeout(seconds: int) -> None:
    wanted = _timedelta(seconds)
    backends, defaults = _save_timeouts()
    _load_timeouts(([(backend, wanted) for backend, _ in backends], dict.fromkeys(defaults, wanted)))


def _timedelta(seconds: int) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST) or LONGEST)


def _has_timeout(seconds: int) -> bool:
    backends, defaults = _save_timeouts()
    return {*defaults.values(), *(timeout for _, timeout in backends)} == {_timedelta(seconds)}


SWITCHES = (
    Switch(
        "torch.distributed.timeout",
        _read_timeout,
        _write_timeout,
        state=(_save_timeouts, _load_timeouts),
        satisfied=_has_timeout,
    ),
)
