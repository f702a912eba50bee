"""The memory caps of the native core, what it counts, and how much memory this process may have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_int64
from functools import cache
from pathlib import Path
from typing import Any

from msctx.errors import SwitchError
from msctx.native import core
from msctx.options.kinds import Size

GROUPS = Path("/sys/fs/cgroup")
FILES = (
    ("0::/", GROUPS, "memory.max", "memory.current", "inactive_file"),
    (":memory:/", GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""What a line of /proc/self/cgroup has in it, the root, and the names of the cap, of the use, and of the pages of files in it, which
the kernel takes back when memory is short."""
NO_CAP = 1 << 60
"""Version 1 has a number of this order in the place of no cap."""


def share_left() -> float:
    """What is left of the tightest cap, as a share of it; 1.0 where there is none."""
    return min((1.0 - used / cap for used, cap in _group_caps()), default=1.0)


def free_bytes() -> int:
    """How many bytes this process can still have: what the system has left, or the tightest cap on the process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    return min([available, *(max(0, cap - used) for used, cap in _group_caps())])


def _group_caps() -> Iterator[tuple[int, int]]:
    """Bytes in use and allowed: of this process's control group and of those around it."""
    with suppress(OSError, ValueError):
        for cap, used, counts, pages in _capped(Path("/proc/self/cgroup").read_text()):
            yield int(_text(used)) - int(dict(entry.split() for entry in _text(counts).splitlines()).get(pages, 0)), cap


@cache
def _capped(groups: str) -> list[tuple[int, Path, Path, str]]:
    """The caps of control groups, looked up once, with the files of their use, and the entry of what the kernel takes back."""
    found = []
    for line in groups.splitlines():
        for sign, root, cap, used, pages in FILES:
            own = root / line.partition(sign)[2]
            for group in (own, *own.parents) if sign in line else ():
                limit = _text(group / cap) if root in (group, *group.parents) else ""
                if limit.isdigit() and int(limit) < NO_CAP:
                    found.append((int(limit), group / used, group / "memory.stat", pages))
    return found


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


COUNTS = ("limit_bytes", "current_bytes", "peak_bytes", "allocations", "out_of_memory", "idle_bytes")
"""What the library has of a cap, and the idle bytes of all."""

Cap = tuple[int, str]
"""The bytes, and who set it."""


_lock = threading.RLock()
_kept: int | None = None
_caps: tuple[Cap, ...] = ()
"""Those in force, the outermost first."""
_numbers: list[int] = []
"""Of the same in the library."""


def read_pool() -> int | None:
    """How much is kept, in percent of the peak; ``None``: torch's own allocator is in force, or another one."""
    kept = _kept  # once: another thread may be writing
    return kept if kept is not None and core.load().c.msctx_pool_is_installed() else None


def write_pool(value: int | None) -> None:
    global _kept
    with _lock:
        if value is None and _kept is None:
            return
        if problem := core.load().c.msctx_pool_set(-1 if value is None else value):
            raise SwitchError(f"the memory of CPU tensors cannot be counted: {problem}. Nothing was changed.")
        _kept = value


def read_caps() -> tuple[Cap, ...]:
    return _caps


def write_caps(value: tuple[Cap, ...]) -> None:
    """Open and close caps until these are in force; those that stay go on counting."""
    global _caps
    with _lock:
        both = min(len(_caps), len(value))
        for number, before, wanted in zip(_numbers, _caps, value, strict=False):
            if before != wanted:  # the base has been changed
                core.load().c.msctx_cap_set(number, *_limit(wanted, _counts(number)["current_bytes"]))
        while len(_numbers) > both:
            core.load().c.msctx_cap_close(_numbers.pop())
        for wanted in value[both:]:
            _numbers.append(int(core.load().c.msctx_cap_set(0, *_limit(wanted))))
        _caps = value


def _limit(wanted: Cap, counted: int = 0) -> tuple[int, bytes]:
    """The limit of a cap, no more than is free (with idle blocks and what the cap has *counted* already), and its text."""
    requested, origin = wanted
    most = free_bytes() + _counts(0)["idle_bytes"] + counted
    return min(requested, most), (origin if requested <= most else f"{origin}, lowered to what was free").encode()


def _counts(number: int) -> dict[str, int]:
    """Of a cap; 0: of all that was counted in this process."""
    found = (c_int64 * len(COUNTS))()
    core.load().c.msctx_cap_counts(number, found)
    return {name: Size(count) if "bytes" in name else count for name, count in zip(COUNTS, found, strict=True)}


def statistics() -> dict[str, Any]:
    """What was counted of all tensors, and by each cap."""
    if core.loaded() is None:
        return dict.fromkeys(COUNTS[1:], 0) | {"caps": []}
    with _lock:
        open_ones = zip(_caps, _numbers, strict=True)
        caps = [{"requested_bytes": size, "origin": origin, **_counts(number)} for (size, origin), number in open_ones]
    of_all = _counts(0)
    for one in caps:
        del one["idle_bytes"]
    return {name: of_all[name] for name in COUNTS[1:]} | {"caps": caps}


def accelerator() -> str:
    """The current device of the accelerator that the program uses, ``""`` as long as it uses none: it is not initialised for this."""
    import torch

    found = torch.accelerator.current_accelerator()
    if found is None or not getattr(torch.get_device_module(found), "is_initialized", bool)():
        return ""
    return f"{found.type}:{torch.accelerator.current_device_index()}"


def empty_cache() -> int:
    return 0 if core.loaded() is None else int(core.load().c.msctx_pool_empty_cache())


def reset_peak() -> None:
    if core.loaded() is not None:
        core.load().c.msctx_pool_reset_peak()
