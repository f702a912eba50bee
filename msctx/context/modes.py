"""Training and eval mode of models while sessions run them: threads that want the same share it, and the last puts it back.

A module has one mode for all threads. Each module is remembered by itself, since models may share some.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msctx import locks
from msctx.errors import ScopeError
from msctx.signals import uninterrupted

if TYPE_CHECKING:
    from torch import nn

WORDS = {True: "train", False: "eval"}


@dataclass(slots=True)
class _Mode:
    """What a module was found in, and who wants what it is in."""

    module: nn.Module
    was: bool
    training: bool
    holders: Counter[int] = field(default_factory=Counter)
    """By thread, how often."""


_lock = locks.plain()
_modes: dict[int, list[_Mode]] = {}
"""id of a module → its modes, the innermost last."""


@contextmanager
def in_mode(models: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Have models in train or eval mode inside, and each of their modules as it was found afterwards.

    Those in train mode already are left as they are: they may have frozen parts.
    """
    taken: list[nn.Module] = []
    try:
        with uninterrupted(), _lock:
            for model in models:
                _take(model, training, taken)
        yield
    finally:
        with uninterrupted(), _lock:
            _give_back(taken)


def _take(model: nn.Module, training: bool, taken: list[nn.Module]) -> None:
    me, modules = threading.get_ident(), [*model.modules()]
    found = {id(module): stack[-1] for module in modules if (stack := _modes.get(id(module)))}
    if any(mode.training is not training and set(mode.holders) - {me} for mode in found.values()):
        raise ScopeError(
            f"{type(model).__name__} cannot go into {WORDS[training]} mode: a session of another thread runs it in "
            f"{WORDS[not training]} mode, and a model has one for all threads. Give each thread a copy, or run one after the other."
        )
    is_new = False
    for module in modules:
        mode = found.get(id(module))
        if mode is None or mode.training is not training:
            mode, is_new = _Mode(module, module.training, training), True
            _modes.setdefault(id(module), []).append(mode)
        mode.holders[me] += 1
        taken.append(module)
    if is_new and not (training and model.training):
        model.train(training)


def _give_back(taken: list[nn.Module]) -> None:
    me = threading.get_ident()
    while taken:
        module = taken.pop()
        mode = _modes[id(module)][-1]
        mode.holders[me] -= 1
        mode.holders += Counter()  # without those that hold it no more
        if not mode.holders:
            _modes[id(module)].pop()
            if not _modes[id(module)]:
                del _modes[id(module)]
            module.training = mode.was
