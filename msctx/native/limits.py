"""How much memory this process may have: ``ulimit -v``, the control groups of a container (versions 1 and 2), a GPU's cap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

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
    return min((1.0 - used / cap for used, cap in _caps()), default=1.0)


def share_left_on_gpu() -> float:
    """The same of the current GPU's cap, which torch's allocator keeps to: that of ``max_device_memory``, or one set past msctx."""
    import torch

    if not torch.cuda.is_initialized() or (fraction := torch.cuda.get_per_process_memory_fraction()) >= 1.0:
        return 1.0
    cap = fraction * torch.cuda.get_device_properties().total_memory
    # what the allocator has reserved and not given out, it gives back where it would pass the cap
    return 1.0 - torch.cuda.memory_allocated() / cap if cap else 0.0


def free_bytes() -> int:
    """How many bytes this process can still have: what the system has left, or the tightest cap on the process."""
    return min([_available(), *(max(0, cap - used) for used, cap in _caps())])


def _available() -> int:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _caps() -> Iterator[tuple[int, int]]:
    """Bytes in use and allowed: of the address space, of this process's control group and of those around it."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # of Unix

        allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
        if allowed != resource.RLIM_INFINITY:
            yield int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(), allowed
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
