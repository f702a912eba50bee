"""A forward pass again as it was: with the parameters, buffers, modes and random numbers that it had."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

Part = tuple[nn.Module, bool, dict[str, Any], dict[str, Any]]
"""A module, whether it trains, its parameters and buffers."""


class State:
    """What a block's forward pass depends on beside its inputs, when it is made; a context in which that holds again.

    Buffers that the block writes to are *changing*: they are copied, and each time computed with a fresh copy. torch's random
    numbers are the checkpoint's affair; Python's and NumPy's are kept where the block draws some (*draws*).
    """

    def __init__(self, block: nn.Module, changing: set[tuple[int, str]], draws: bool) -> None:
        self._then: list[Part] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._copied: list[tuple[int, str, torch.Tensor]] = []
        for number, part in enumerate(_parts(block)):
            self._then.append(part)
            self._versions += [(p, p._version) for p in part[2].values() if p is not None and not p.is_inference()]
            for name, buffer in part[3].items():
                if (number, name) in changing and buffer is not None:
                    self._copied.append((number, name, buffer.detach().clone()))
        self._random = _random() if draws else None
        self._block = block
        self._now: list[tuple[list[Part], Any]] = []

    def __enter__(self) -> None:
        for parameter, version in self._versions:
            if parameter._version != version:
                raise RuntimeError(
                    "a parameter of a block whose forward pass is to be computed again (memory_optimize_level=O1) has been modified "
                    f"by an inplace operation since: it is at version {parameter._version}, expected version {version}"
                )
        self._now.append((_parts(self._block), _random()))
        for number, name, value in self._copied:
            self._then[number][3][name] = value.clone()
        _install(self._then)
        if self._random is not None:
            _set_random(self._random)

    def __exit__(self, *_: Any) -> None:
        parts, numbers = self._now.pop()
        _install(parts)
        if self._random is not None:
            _set_random(numbers)

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


def _parts(block: nn.Module) -> list[Part]:
    return [(m, m.training, dict(m._parameters), dict(m._buffers)) for m in block.modules()]


def _install(parts: list[Part]) -> None:
    for module, training, parameters, buffers in parts:
        module.__dict__["training"] = training
        for present, wanted in ((module._parameters, parameters), (module._buffers, buffers)):
            if present.keys() != wanted.keys():
                present.clear()
            present.update(wanted)


def _random() -> Any:
    return random.getstate(), numpy.random.get_state(legacy=False)


def _set_random(state: Any) -> None:
    random.setstate(state[0])
    numpy.random.set_state(state[1])


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
        self.draws = False
        everything = {(number, name) for number, part in enumerate(_parts(block)) for name in part[3]}
        self.changing: set[tuple[int, str]] = everything
        results = []
        try:
            for _ in range(2):
                given = _copied((args, kwargs))
                own = own_containers(given)
                state = State(block, everything, draws=True)
                with ExitStack() as stack:
                    stack.enter_context(torch.no_grad())
                    stack.enter_context(_same_numbers(tree_leaves((args, kwargs))))
                    stack.enter_context(state)
                    numbers = _random()
                    results.append(call(block, *own[0], **own[1]))
                    self.draws = self.draws or not _equal_states(numbers, _random())
                    self.changing = state.changed()
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


def _equal_states(one: Any, other: Any) -> bool:
    return bool(
        one[0] == other[0]
        and numpy.array_equal(one[1]["state"]["key"], other[1]["state"]["key"])
        and (one[1]["state"]["pos"] == other[1]["state"]["pos"])
    )


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
