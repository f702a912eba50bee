"""A forward pass again as it was: with the parameters, buffers, modes and random numbers that it had."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

Part = tuple[nn.Module, dict[str, Any], dict[str, Any], dict[str, Any]]
"""A module, its attributes (whether it trains is one), its parameters and buffers."""


class State:
    """What a block's forward pass depends on beside its inputs, when it is made; a context in which that holds again.

    Buffers that the block writes to are *changing*: they are copied, and each time computed with a fresh copy. torch's random
    numbers are the checkpoint's affair; of others, those of *sources* are kept.
    """

    def __init__(self, block: nn.Module, changing: set[tuple[int, str]], sources: list[Source]) -> None:
        self._then: list[Part] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._copied: list[tuple[int, str, torch.Tensor]] = []
        for number, part in enumerate(_parts(block)):
            self._then.append(part)
            self._versions += [(p, p._version) for p in part[2].values() if p is not None and not p.is_inference()]
            for name, buffer in part[3].items():
                if (number, name) in changing and buffer is not None:
                    self._copied.append((number, name, buffer.detach().clone()))
        self._sources = sources
        self._numbers = [source.read() for source in sources]
        self._block = block
        self._now: list[tuple[list[Part], list[Any]]] = []

    def __enter__(self) -> None:
        for parameter, version in self._versions:
            if parameter._version != version:
                raise RuntimeError(
                    "a parameter of a block whose forward pass is to be computed again (memory_optimize_level=O1) has been modified "
                    f"by an inplace operation since: it is at version {parameter._version}, expected version {version}"
                )
        self._now.append((_parts(self._block), [source.read() for source in self._sources]))
        for number, name, value in self._copied:
            self._then[number][3][name] = value.clone()
        self._install(self._then, self._numbers)

    def __exit__(self, *_: Any) -> None:
        self._install(*self._now.pop())

    def _install(self, parts: list[Part], numbers: list[Any]) -> None:
        for module, attributes, parameters, buffers in parts:
            _become(module.__dict__, attributes)
            _become(module._parameters, parameters)
            _become(module._buffers, buffers)
        for source, state in zip(self._sources, numbers, strict=True):
            source.write(state)

    def changed(self) -> set[tuple[int, str]]:
        """The copied buffers that are no longer what they were, inside (BatchNorm's averages change and no version counter tells)."""
        now = _parts(self._block)
        return {
            (number, name)
            for number, name, value in self._copied
            if (found := now[number][3].get(name)) is None
            or found is not self._then[number][3][name]
            or found._version
            or not _is_same(found, value)
        }

    def drawn(self) -> list[Source]:
        """The sources of random numbers that are no longer where they were, inside."""
        pairs = zip(self._sources, self._numbers, strict=True)
        return [source for source, numbers in pairs if not _is_same_state(numbers, source.read())]


def _parts(block: nn.Module) -> list[Part]:
    return [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in block.modules()]


def _become(present: dict[str, Any], wanted: dict[str, Any]) -> None:
    if present.keys() != wanted.keys():
        present.clear()
    present.update(wanted)


class Source(NamedTuple):
    """Random numbers that are not torch's own."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _sources(block: nn.Module) -> list[Source]:
    """Python's and NumPy's, and generators that modules have in attributes."""
    found = [
        Source(random.getstate, random.setstate),
        Source(lambda: numpy.random.get_state(legacy=False), numpy.random.set_state),
    ]
    attributes = {id(value): value for module in block.modules() for value in vars(module).values()}
    return found + [source for value in attributes.values() if (source := _source_of(value))]


def _source_of(value: Any) -> Source | None:
    if isinstance(value, random.Random):
        return Source(value.getstate, value.setstate)
    if isinstance(value, torch.Generator):
        return Source(value.get_state, value.set_state)
    if isinstance(value, numpy.random.RandomState):
        return Source(lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, numpy.random.Generator):
        return Source(lambda: value.bit_generator.state, lambda state: setattr(value.bit_generator, "state", state))
    return None


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_same_state(value, other[key]) for key, value in one.items())
    return bool(numpy.array_equal(one, other)) if isinstance(one, (numpy.ndarray, torch.Tensor)) else bool(one == other)


def own_containers(value: Any) -> Any:
    """The same with lists and dictionaries of its own: what is given may change after the call."""
    if type(value) in (list, tuple):
        return type(value)(own_containers(item) for item in value)
    if type(value) is dict:
        return {key: own_containers(item) for key, item in value.items()}
    return value


class Rehearsal:
    """A block's forward pass twice, with copies of its inputs and buffers and without a graph.

    It shows what the block changes, and whether it computes the same again.
    """

    def __init__(self, call: Callable[..., Any], block: nn.Module, args: Any, kwargs: Any) -> None:
        self.obstacle = ""
        self.sources = sources = _sources(block)
        """Of random numbers beside torch's: those that it draws from."""
        everything = {(number, name) for number, part in enumerate(_parts(block)) for name in part[3]}
        self.changing: set[tuple[int, str]] = everything
        results = []
        try:
            for _ in range(2):
                given = _copied((args, kwargs))
                own = own_containers(given)
                state = State(block, everything, sources)
                with ExitStack() as stack:
                    stack.enter_context(torch.no_grad())
                    stack.enter_context(_same_numbers(tree_leaves((args, kwargs))))
                    stack.enter_context(state)
                    results.append(call(block, *own[0], **own[1]))
                    self.changing, self.sources = state.changed(), state.drawn()
                self.obstacle = self.obstacle or _changed(given, own)
        except Exception:  # the real call says what is wrong, or does not mind
            return
        if not self.obstacle and not _are_same(*results):
            self.obstacle = "computing it again gives other results"


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value.detach().clone() if type(value) in (torch.Tensor, nn.Parameter) else value


def _changed(given: Any, own: Any) -> str:
    """What a call has done to what it was given."""
    if any(isinstance(value, torch.Tensor) and value._version for value in tree_leaves(given)):
        return "it writes to its inputs"
    if [id(value) for value in tree_leaves(given)] != [id(value) for value in tree_leaves(own)]:
        return "it changes a list or dictionary that it is given"
    return ""


def _same_numbers(leaves: list[Any]) -> Any:
    """torch's random numbers as they are now, and again afterwards."""
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")
    return torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind)


def _are_same(one: Any, other: Any) -> bool:
    """To the bit on a CPU; on an accelerator, some of whose operators add in no fixed order, nearly."""
    first, second = tree_leaves(one), tree_leaves(other)
    return len(first) == len(second) and all(
        _is_same(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor)
    )


def _is_same(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.layout is not torch.strided or a.is_meta:
        return True
    if a.device.type == "cpu":
        return torch.equal(a, b) or bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
