"""Switches of what torch.compile keeps on disk, and where."""

from __future__ import annotations

import os
from importlib import import_module

from msctx.native import cache_tag
from msctx.switches.base import Switch, reading, writing
from msctx.switches.forced import NOTHING, Forced, forced_switch

_AUTOGRAD = Forced(
    "torch._functorch.config", "enable_autograd_cache", lambda: os.environ.get("TORCHINDUCTOR_AUTOGRAD_CACHE", "1") == "1"
)
_JOB = Forced("torch.compiler.config", "job_id", lambda: None)


def _has_job(wanted: str) -> bool:
    """Any will do: with one, torch keeps what it has learnt about shapes."""
    return (_JOB.forced is NOTHING and _JOB.read() is not None) or _JOB.holds(wanted)


_CACHE = "msctx.graph.cache"
SWITCHES = (
    Switch(
        name="torch.compiler.cache",
        read=reading(f"{_CACHE}:read"),
        write=writing(f"{_CACHE}:write"),
        state=(lambda: import_module(_CACHE).save(), writing(f"{_CACHE}:load")),
        satisfied=lambda wanted: bool(import_module(_CACHE).serves(wanted)),
        blocked=lambda wanted: str(import_module(_CACHE).obstacle(wanted)),
    ),
    Switch(
        name="torch.compiler.force_disable_caches",
        read=cache_tag.are_disabled,
        write=cache_tag.disable,
        state=(cache_tag.disabling, cache_tag.disable),
        satisfied=lambda off: cache_tag.disabling() is off,
    ),
    Switch(name="torch.compiler.job_id", read=_JOB.read, write=_JOB.write, state=(_JOB.save, _JOB.load), satisfied=_has_job),
    forced_switch("torch.functorch.enable_autograd_cache", _AUTOGRAD),
)
