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
        gone = GONE  # at the interpreter's end there is no such name
        self.module = weakref.ref(model, lambda _: gone.append(self))
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
    return [(path, weakref.ref(module), *map(_place_of, [*module._parameters.values()])) for path, module in paths_of(model)]


def paths_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What ``model.named_modules()`` gives, without the wrappers of torch.compile in the paths.

    That is slower: there each module passes through a generator of every module around it.
    """
    found: dict[nn.Module, str] = {}
    todo = [("", model)]
    while todo:
        path, module = todo.pop()
        if module not in found:
            found[module] = path.replace("_orig_mod.", "")
            start = f"{path}." if path else ""
            todo += [(start + key, child) for key, child in reversed([*module._modules.items()]) if child is not None]
    return [(path, module) for module, path in found.items()]


def _place_of(parameter: torch.Tensor | None) -> int:
    try:
        return parameter.data_ptr() if parameter is not None else 0
    except (RuntimeError, ValueError):  # no memory of its own; not initialised yet
        return 0


_numbers = itertools.count(1)
_lock = locks.reentrant()  # what a finalizer computes in between may look for a model
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
