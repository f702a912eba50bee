"""Training and eval mode of models while sessions run them: threads that want the same share it, and the last puts it back.

A module has one mode for all threads. Each module is remembered by itself, since models may share some.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msctx.errors import ScopeError
from msctx.native.watched import paths_of

if TYPE_CHECKING:
    from torch import nn

WORDS = {True: "train", False: "eval"}


@dataclass(slots=True)
class _Mode:
    """What a module was found in, and who wants what it is in."""

    was: bool
    training: bool
    holders: dict[int, int] = field(default_factory=dict)
    """Thread → how often."""


_lock = threading.Lock()
_modes: dict[int, list[_Mode]] = {}
"""id of a module → its modes, the innermost last."""


def take(models: Iterable[nn.Module], *, training: bool) -> list[nn.Module]:
    """Have models in train or eval mode until :func:`give_back` is called with what this returns. To be called uninterrupted.

    Those in train mode already are left as they are: they may have frozen parts.

    Raises:
        ScopeError: another thread wants a model in the other mode. Nothing was changed.
    """
    taken: list[nn.Module] = []
    try:
        for model in models:
            with _lock:
                is_new = _hold([module for _, module in paths_of(model)], type(model).__name__, training, taken)
            if is_new and not (training and model.training):
                model.train(training)
    except BaseException:
        give_back(taken)
        raise
    return taken


def _hold(modules: list[nn.Module], name: str, training: bool, taken: list[nn.Module]) -> bool:
    """Whether any of them is not held in this mode yet."""
    me = threading.get_ident()
    found = {id(module): stack[-1] for module in modules if (stack := _modes.get(id(module)))}
    if any(mode.training is not training and mode.holders.keys() - {me} for mode in found.values()):
        raise ScopeError(
            f"{name} cannot go into {WORDS[training]} mode: a session of another thread runs it in {WORDS[not training]} mode, and a "
            "model has one for all threads. Give each thread a copy, or run one after the other."
        )
    is_new = False
    for module in modules:
        mode = found.get(id(module))
        if mode is None or mode.training is not training:
            mode, is_new = _Mode(module.training, training), True
            _modes.setdefault(id(module), []).append(mode)
        mode.holders[me] = mode.holders.get(me, 0) + 1
        taken.append(module)
    return is_new


def give_back(taken: list[nn.Module]) -> None:
    """Put each module back where nobody wants its mode any more. To be called uninterrupted."""
    me = threading.get_ident()
    with _lock:
        while taken:
            module = taken.pop()
            stack = _modes[id(module)]
            holders = stack[-1].holders
            holders[me] -= 1
            if holders[me]:
                continue
            del holders[me]
            if not holders:
                was = stack.pop().was
                if not stack:
                    del _modes[id(module)]
                if module.training is not was:
                    module.training = was
