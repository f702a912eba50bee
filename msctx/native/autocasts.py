"""Sees each torch.autocast that is entered or left while a precision policy is in force.

Where its dtype is the policy's own, nothing that the guards of compiled code look at tells the two apart: torch does not guard how
deeply autocasts are nested. The last thing torch.autocast calls, when it is entered and when it is left, is
torch.set_autocast_cache_enabled: while some policy is in force, that name also notes what is now overruled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.native.holders import Held


def _install() -> Callable[[], None]:
    import torch

    found = torch.set_autocast_cache_enabled

    def set_autocast_cache_enabled(*args: Any, **kwargs: Any) -> None:
        found(*args, **kwargs)
        _note()

    def remove() -> None:
        if torch.set_autocast_cache_enabled is set_autocast_cache_enabled:  # else somebody has wrapped it since
            torch.set_autocast_cache_enabled = found

    torch.set_autocast_cache_enabled = set_autocast_cache_enabled
    return remove


_hook = Held(_install)
want, release = _hook.want, _hook.release


@outside_dynamo
def _note() -> None:
    from msctx.native import precision

    precision.note_autocasts()
