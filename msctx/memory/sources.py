"""Generators of random numbers beside torch's default ones: which a block owns, how their states are read and written."""

from __future__ import annotations

import random
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


def owned(block: nn.Module, inputs: Any) -> list[Any]:
    """Python's and NumPy's generators, and those that a block's modules have in attributes or that it receives."""
    values = [value for module in block.modules() for value in vars(module).values()] + tree_leaves(inputs)
    return [*{id(value): value for value in (*OF_LIBRARIES, *values) if isinstance(value, GENERATORS)}.values()]


def source_of(generator: Any) -> Source:
    if isinstance(generator, random.Random):
        return Source(generator.getstate, generator.setstate)
    if isinstance(generator, torch.Generator):
        return Source(lambda: generator.get_state().numpy().tobytes(), lambda state: _set_state(generator, state))
    if isinstance(generator, numpy.random.RandomState):
        return Source(lambda: generator.get_state(legacy=False), generator.set_state)
    return Source(lambda: generator.bit_generator.state, lambda state: setattr(generator.bit_generator, "state", state))


def _set_state(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
