"""Optimizers step outside precision policies, by a hook on all of them: their own arithmetic is none of the model's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.native import precision
from msctx.native.installed import Held


def _install() -> Callable[[], None]:
    from torch.optim import optimizer

    begins, ended = optimizer.register_optimizer_step_pre_hook, optimizer.register_optimizer_step_post_hook
    handles = (begins(_begin), ended(_end))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


_hooks = Held(_install)


want, release = _hooks.want, _hooks.release


@outside_dynamo
def _pause(is_stepping: bool) -> None:
    precision.pause(is_stepping)


def _begin(*_: Any) -> None:
    _pause(True)


def _end(*_: Any) -> None:
    _pause(False)
