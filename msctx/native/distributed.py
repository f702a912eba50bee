"""Several processes of one run (torch.distributed): all of them choose by the same tuning results.

Nothing waits: a collective at the entry of a scope would hang where one rank alone enters it. The first process that needs the
results puts them into the store by which the processes found each other; every other one takes what is there.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from typing import Any
from weakref import WeakKeyDictionary

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def _distributed() -> Any:
    """torch.distributed, where this process is one of several."""
    dist = sys.modules.get("torch.distributed")
    is_one_of_several = dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist if is_one_of_several else None


def run() -> int:
    """A number for the process group that is there now; 0: this process is alone."""
    dist = _distributed()
    return 0 if dist is None else _runs.setdefault(dist.group.WORLD, len(_runs) + 1)


def rank() -> int | None:
    """The rank of this process, or ``None`` where it is alone."""
    dist = _distributed()
    return None if dist is None else int(dist.get_rank())


def flight_record() -> dict[str, Any] | None:
    """The trace of PyTorch's Flight Recorder; ``None``: it holds no collective."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for kind in ("nccl", "fr"):  # NCCL's has one of its own
        if (dump := getattr(c10d, f"_dump_{kind}_trace_json", None)) is not None:
            found: dict[str, Any] = json.loads(dump())
            if found.get("entries"):
                return found
    return None


def agreed(name: str, mine: str) -> str | None:
    """The text that the first process of this run gave under *name*; ``None`` where no store has it."""
    from torch.distributed import distributed_c10d

    packed = base64.b64encode(zlib.compress(mine.encode())).decode()
    try:
        found = distributed_c10d._get_default_store().compare_set(f"msctx/tuning/{name}", "", packed)
    except (RuntimeError, AttributeError, ValueError):  # it is lost; torch has none of that name; there is no group
        return None
    try:
        return zlib.decompress(base64.b64decode(found)).decode()
    except (ValueError, zlib.error):  # somebody else's under our name
        return None
