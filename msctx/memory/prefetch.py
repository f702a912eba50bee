"""When the modules of watched FSDP2 models gather their weights: while the module before computes, or just before use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from msctx.memory.changes import Changes


class _Ahead(Changes):
    """Whether one module ahead is gathered; ``None``: as the program has it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def parts(self, model: nn.Module) -> Iterator[Any]:
        return modules(model)

    def change(self, model: nn.Module) -> Iterator[tuple[Any, tuple[list[Any], list[Any]]]]:
        """What a module had is the list that was found, and the list in its place."""
        order = _in_order(model, self.way)
        for place, module in enumerate(order):
            if id(module) in self.before:
                continue
            following = [one for one in order[place + 1 :] if _has_weights(one)][:1] if self.wanted else []
            if not self.wanted and self.way == "backward":
                following = [module]  # FSDP prefetches by itself if the list is empty; this module is gathered already
            found = _list(module, self.way)
            getattr(module, f"set_modules_to_{self.way}_prefetch")(following)
            yield module, (found, _list(module, self.way))

    def put_back(self, part: Any, before: tuple[list[Any], list[Any]]) -> None:
        """A list that the program has set since stays."""
        found, chosen = before
        if _list(part, self.way) is chosen:
            setattr(part._get_fsdp_state(), f"_states_to_{self.way}_prefetch", found)


def modules(module: nn.Module, *, backward: bool = False) -> Iterator[Any]:
    """The FSDP modules in a module, in the order of the pass if they run in the order in which they were registered."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, fsdp.FSDPModule):
        yield module
    children = [*module.children()]
    for child in reversed(children) if backward else children:
        yield from modules(child, backward=backward)


def _in_order(model: nn.Module, way: str) -> list[Any]:
    """One of those that share a state."""
    order = modules(model, backward=way == "backward")
    return [*{id(module._get_fsdp_state()): module for module in reversed([*order])}.values()][::-1]


def _list(module: Any, way: str) -> list[Any]:
    """FSDP has setters of these lists, and no getters."""
    found: list[Any] = getattr(module._get_fsdp_state(), f"_states_to_{way}_prefetch")
    return found


def _has_weights(module: Any) -> bool:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.12 and later
    return bool(groups) if groups is not None else state._fsdp_param_group is not None


FORWARD, BACKWARD = _Ahead("forward"), _Ahead("backward")
