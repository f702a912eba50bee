"""When the modules of watched FSDP2 models gather their weights: while the module before computes, or just before use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from msctx.memory import watched

_FSDP = "torch.distributed.fsdp._fully_shard._fully_shard"
_LISTS = {"forward": "_states_to_forward_prefetch", "backward": "_states_to_backward_prefetch"}
_wanted: dict[str, bool | None] = {"forward": None, "backward": None}
_found: dict[str, WeakKeyDictionary[Any, tuple[list[Any], list[Any]]]] = {way: WeakKeyDictionary() for way in _LISTS}
"""Pass → the state of an FSDP module → the modules that it gathered for, and what it has got instead."""


def read(way: str) -> bool | None:
    """Whether one module ahead is gathered; ``None``: as the program has it."""
    return _wanted[way]


def write(way: str, ahead: bool | None) -> None:
    with watched.lock:
        if ahead == _wanted[way]:
            return
        _put_back(way, [*_found[way]])
        _wanted[way] = ahead
        for model in watched.models():
            _set(model, way)


def states(module: nn.Module, *, children_first: bool = False) -> Iterator[Any]:
    """FSDP's own objects in a module; those that share their parameters have one object."""
    if (fsdp := sys.modules.get(_FSDP)) is None:
        return
    own = [module._get_fsdp_state()] if isinstance(module, fsdp.FSDPModule) else []
    yield from own if not children_first else ()
    for child in module.children():
        yield from states(child, children_first=children_first)
    yield from own if children_first else ()


def _in_order(model: nn.Module, way: str) -> list[Any]:
    """As the pass comes to them, where modules run in the order in which they were registered."""
    if way == "forward":
        return [*dict.fromkeys(states(model))]
    return [*dict.fromkeys(reversed([*states(model, children_first=True)]))]


def _has_weights(state: Any) -> bool:
    groups = getattr(state, "_fsdp_param_groups", None)  # from torch 2.12 on; before, there was one at most
    return bool(groups) if groups is not None else state._fsdp_param_group is not None


def _set(model: nn.Module, way: str) -> None:
    ahead = _wanted[way]
    if ahead is None:
        return
    order = _in_order(model, way)
    for place, state in enumerate(order):
        if state in _found[way]:
            continue
        following = next((one for one in order[place + 1 :] if _has_weights(one)), None)
        chosen = [following] if ahead and following is not None else []
        if not ahead and way == "backward":
            chosen = [state]  # FSDP looks ahead by itself where nothing is named; this one is there already
        _found[way][state] = getattr(state, _LISTS[way]), chosen
        setattr(state, _LISTS[way], chosen)


def _put_back(way: str, those: list[Any]) -> None:
    """A list that the program has set since stays."""
    for state in those:
        found, chosen = _found[way].pop(state)
        if getattr(state, _LISTS[way]) is chosen:
            setattr(state, _LISTS[way], found)


def _begins(model: nn.Module) -> None:
    with watched.lock:
        for way in _LISTS:
            _set(model, way)


def _ends(model: nn.Module) -> None:
    """Nobody watches it now."""
    if not any(_found.values()):
        return
    with watched.lock:
        others = {state for other in watched.models() for state in states(other)}
        for way, found in _found.items():
            _put_back(way, [state for state in dict.fromkeys(states(model)) if state in found and state not in others])


watched.listen(_begins, _ends)
