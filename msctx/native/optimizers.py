"""Optimizers step outside precision policies, by a hook on all of them: their own arithmetic is none of the model's."""

from __future__ import annotations

import threading
from typing import Any

from msctx.dynamo import outside_dynamo

_lock = threading.Lock()
_holders = 0
_handles: tuple[Any, ...] = ()


def want(count: int) -> None:
    """So many more policies are in force in this thread."""
    global _holders, _handles
    if not count:
        return
    from torch.optim import optimizer

    with _lock:
        _holders += count
        if not _handles:
            begins, ended = optimizer.register_optimizer_step_pre_hook, optimizer.register_optimizer_step_post_hook
            _handles = (begins(_begin), ended(_end))


def release(count: int) -> None:
    global _holders, _handles
    if not count:
        return
    with _lock:
        _holders -= count
        if not _holders:
            for handle in _handles:
                handle.remove()
            _handles = ()
    _pause(False)  # a step that raised has not ended it


@outside_dynamo
def _pause(is_stepping: bool) -> None:
    from msctx.native import precision

    precision.pause(is_stepping)


def _begin(*_: Any) -> None:
    _pause(True)


def _end(*_: Any) -> None:
    _pause(False)
