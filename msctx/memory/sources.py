"""Random numbers beside those of torch's own generators: where a block draws from, and what a trial of it has drawn."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

GENERATORS = (random.Random, torch.Generator, numpy.random.RandomState, numpy.random.Generator)
OF_LIBRARIES = (random.random.__self__, numpy.random.rand.__self__)  # type: ignore[attr-defined]
"""What the functions of the modules draw from."""


class Source(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


def sources_of(block: nn.Module, inputs: Any) -> list[Source]:
    """Python's and NumPy's, and generators that a block's modules have in attributes or that it is given."""
    return [_source_of(generator) for generator in _own(block, inputs).values()]


def _own(block: nn.Module, inputs: Any) -> dict[int, Any]:
    values = [value for module in block.modules() for value in vars(module).values()] + tree_leaves(inputs)
    return {id(value): value for value in (*OF_LIBRARIES, *values) if isinstance(value, GENERATORS)}


def _source_of(generator: Any) -> Source:
    if isinstance(generator, random.Random):
        return Source(generator.getstate, generator.setstate)
    if isinstance(generator, torch.Generator):
        return Source(generator.get_state, generator.set_state)
    if isinstance(generator, numpy.random.RandomState):
        return Source(lambda: generator.get_state(legacy=False), generator.set_state)
    return Source(lambda: generator.bit_generator.state, lambda state: setattr(generator.bit_generator, "state", state))


class Draws:
    """What is drawn while a block is tried; :meth:`put_back` afterwards."""

    def __init__(self, block: nn.Module, inputs: Any) -> None:
        self._own = [(source, source.read()) for source in sources_of(block, inputs)]
        self._known = {*_own(block, inputs)}
        self._others: list[tuple[Callable[[], Any], Any]] = []
        self.from_own = self.from_others = False
        """Whether numbers were drawn from the block's sources, and from generators that are none of them."""

    def meet(self, value: Any) -> bool:
        """Whether something that was there before the trial is a generator."""
        return self._meet(value, lambda: value)

    def meet_in_call(self, value: Any) -> None:
        """An argument of a function of torch: perhaps a generator that the block makes, and that is gone after the trial."""
        if isinstance(value, torch.Generator):
            self._meet(value, weakref.ref(value))

    def _meet(self, value: Any, reference: Callable[[], Any]) -> bool:
        if not isinstance(value, GENERATORS):
            return False
        if id(value) not in self._known and all(known() is not value for known, _ in self._others):
            self._others.append((reference, _source_of(value).read()))
        return True

    def put_back(self) -> None:
        alive = [(_source_of(value), before) for known, before in self._others if (value := known()) is not None]
        self.from_own, self.from_others = _put_back(self._own), _put_back(alive)


def _put_back(states: list[tuple[Source, Any]]) -> bool:
    changed = [(source, before) for source, before in states if not _is_same(source.read(), before)]
    for source, before in changed:
        source.write(before)
    return bool(changed)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_same(value, other[key]) for key, value in one.items())
    return bool(numpy.array_equal(one, other)) if isinstance(one, (numpy.ndarray, torch.Tensor)) else bool(one == other)
