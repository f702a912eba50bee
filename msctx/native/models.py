"""The models that were given to ``ctx.watch(model)``, and which of them contexts watch that are open."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from msctx import locks

if TYPE_CHECKING:
    import torch
    from torch import nn


class Model:
    """A model that was watched.

    Attributes:
        number: its number in the library.
        paths: of all modules that it has had: it may be gone when they are needed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.number = next(_numbers)
        self.paths: frozenset[str] = frozenset()
        self.module = weakref.ref(model, lambda _: GONE.append(self))
        self._seen: list[Any] = []

    def is_as_it_was(self, model: nn.Module) -> bool:
        """Whether its modules, their names and the places of their weights are those of the last call. It costs a microsecond a
        module, so that a context may watch a model anew in every step.
        """
        before, self._seen = self._seen, _modules_of(model)
        return before == self._seen

    @property
    def is_open(self) -> bool:
        return self in OPEN


def _modules_of(model: nn.Module) -> list[Any]:
    found, todo, met = [], [("", model)], set()
    while todo:
        name, module = todo.pop()
        if id(module) not in met:
            met.add(id(module))
            found.append((name, weakref.ref(module), *map(_place_of, module._parameters.values())))
            todo += [(key, child) for key, child in module._modules.items() if child is not None]
    return found


def _place_of(parameter: torch.Tensor | None) -> int:
    try:
        return parameter.data_ptr() if parameter is not None else 0
    except (RuntimeError, ValueError):  # no memory of its own; not initialised yet
        return 0


_numbers = itertools.count(1)
_lock = locks.plain()
_known: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
OPEN: Counter[Model] = Counter()
"""How many open contexts watch a model."""
GONE: deque[Model] = deque()
"""Those that have died. Garbage collection may report one at any moment: it is forgotten when it is next looked for."""


def record(model: nn.Module) -> Model:
    with _lock:
        if (found := _known.get(model)) is None:
            found = _known[model] = Model(model)
    return found


def alive() -> list[tuple[Model, nn.Module]]:
    with _lock:
        return [(found, model) for model, found in _known.items()]


def open_ones() -> frozenset[Model]:
    return frozenset([*OPEN])
