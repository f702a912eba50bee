"""When the modules of watched FSDP2 models gather their weights: while the module before computes, or just before use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from msctx.native import watched

_wanted: dict[str, bool | None] = {"forward": None, "backward": None}
_found: dict[str, WeakKeyDictionary[Any, tuple[list[Any], list[Any]]]] = {way: WeakKeyDictionary() for way in _wanted}
"""Pass → an FSDP module → the list that it had, and the list that it has instead."""


def read(way: str) -> bool | None:
    """Whether one module ahead is gathered; ``None``: as the program has it."""
    return _wanted[way]


def write(way: str, ahead: bool | None) -> None:
    with watched.lock:
        if ahead == _wanted[way]:
            return
        _restore(way, [*_found[way]])
        _wanted[way] = ahead
        for model in watched.models():
            _set(model, way)


def modules(module: nn.Module, *, children_first: bool = False) -> Iterator[Any]:
    """The FSDP modules in a module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    own = [module] if fsdp is not None and isinstance(module, fsdp.FSDPModule) else []
    yield from own if not children_first else ()
    for child in module.children():
        yield from modules(child, children_first=children_first)
    yield from own if children_first else ()


def _in_order(model: nn.Module, way: str) -> list[Any]:
    """In the order of the pass, if modules run in the order in which they were registered; one of those that share a state."""
    order = modules(model) if way == "forward" else reversed([*modules(model, children_first=True)])
    return [*{id(module._get_fsdp_state()): module for module in reversed([*order])}.values()][::-1]


def _list(module: Any, way: str) -> list[Any]:
    """FSDP has setters of these lists, and no getters."""
    found: list[Any] = getattr(module._get_fsdp_state(), f"_states_to_{way}_prefetch")
    return found


def _has_weights(module: Any) -> bool:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.12 and later
    return bool(groups) if groups is not None else state._fsdp_param_group is not None


def _set(model: nn.Module, way: str) -> None:
    ahead = _wanted[way]
    if ahead is None:
        return
    order = _in_order(model, way)
    for place, module in enumerate(order):
        if module in _found[way]:
            continue
        following = [one for one in order[place + 1 :] if _has_weights(one)][:1] if ahead else []
        if not ahead and way == "backward":
            following = [module]  # FSDP prefetches by itself if the list is empty; this module is gathered already
        found = _list(module, way)
        getattr(module, f"set_modules_to_{way}_prefetch")(following)
        _found[way][module] = found, _list(module, way)


def _restore(way: str, those: list[Any]) -> None:
    """A list that the program has set since stays."""
    for module in those:
        found, chosen = _found[way].pop(module)
        if _list(module, way) is chosen:
            setattr(module._get_fsdp_state(), f"_states_to_{way}_prefetch", found)


def _begins(model: nn.Module) -> None:
    with watched.lock:
        for way in _wanted:
            _set(model, way)


def _ends(model: nn.Module) -> None:
    """Nobody watches it any more."""
    with watched.lock:
        others = {module for other in watched.models() for module in modules(other)}
        for way, found in _found.items():
            _restore(way, [module for module in dict.fromkeys(modules(model)) if module in found and module not in others])


watched.listen(_begins, _ends)
