"""Blocks of watched models whose activations are computed again in the backward pass, as many as a cap on memory asks for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from msctx.memory import watched
from msctx.memory.budget import Budget
from msctx.memory.replay import Rehearsal, State, own_containers
from msctx.native.holders import Held

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated parts of a model by their paths: what its outermost containers hold and has modules of its own.

    A container inside a container is looked into, and so is an element that holds such containers itself. A model without any is
    one block.
    """
    found: dict[str, nn.Module] = {}

    def look(module: nn.Module, path: str, is_element: bool) -> bool:
        """Whether there is a block in a module."""
        inside = False
        for name, child in module.named_children():
            inside |= look(child, f"{path}.{name}" if path else name, isinstance(module, CONTAINERS))
        if inside or isinstance(module, CONTAINERS) or not is_element or not any(True for _ in module.children()):
            return inside
        found[path] = module
        return True

    if not look(model, "", False) and any(True for _ in model.children()):
        found[""] = model
    return found


# --- one call ---------------------------------------------------------------------------------------------------------

Call = Callable[..., Any]
"""``nn.Module.__call__`` as it was found."""


class _Block:
    """A block of a watched model."""

    def __init__(self, budget: Budget, path: str) -> None:
        self.budget, self.path = budget, path
        self._rehearsals: dict[bool, Rehearsal] = {}

    def run(self, call: Call, block: nn.Module, args: Any, kwargs: Any) -> Any:
        known = self._rehearsals.get(block.training)
        if known is None and any(is_lazy(parameter) for parameter in block.parameters()):
            return call(block, *args, **kwargs)  # its first pass makes it what it is
        if known is None:
            self._rehearsals[block.training] = known = Rehearsal(call, block, args, kwargs)
            if known.obstacle:
                self.budget.leave(self.path, known.obstacle)
        if not self.budget.recomputes(self.path):
            return call(block, *args, **kwargs)
        args, kwargs = own_containers(args), own_containers(kwargs)
        names, count = [*kwargs], len(args)
        forwards = iter([self.budget.measured(self.path, (args, kwargs))])

        def function(*values: Any) -> Any:
            """With keywords as positions: checkpoint has some of their names, and finds devices in what has none."""
            with next(forwards, nullcontext()):  # when it is computed again, nothing is measured
                return call(block, *values[:count], **dict(zip(names, values[count:], strict=True)))

        state = State(block, known.changing, known.sources)
        return checkpoint(function, *args, *kwargs.values(), use_reentrant=False, context_fn=lambda: (nullcontext(), state))


def _can_recompute() -> bool:
    """Not where nothing is saved for a backward pass, nor where torch takes no hooks on what is saved."""
    return (
        torch.is_grad_enabled()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


# --- all watched models -----------------------------------------------------------------------------------------------

_budgets: weakref.WeakKeyDictionary[nn.Module, Budget] = weakref.WeakKeyDictionary()
"""What has been found about each watched model: it stays from scope to scope, which may be as short as a step."""
_blocks: weakref.WeakKeyDictionary[nn.Module, _Block] = weakref.WeakKeyDictionary()


def _install() -> Callable[[], None]:
    """Put ours in place of ``nn.Module.__call__``: modules stay as they are, so copies, pickles and traces of them do too."""
    found: Call = nn.Module.__call__
    installed = True
    step = register_optimizer_step_post_hook(lambda *_: _stepped())

    @wraps(found)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not installed or torch.compiler.is_compiling() or not _can_recompute():
            return found(self, *args, **kwargs)
        if (budget := _budgets.get(self)) is not None:
            budget.begin((args, kwargs))
        if (block := _blocks.get(self)) is not None:
            return block.run(found, self, args, kwargs)
        return found(self, *args, **kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]

    def remove() -> None:
        nonlocal installed
        installed = False
        if nn.Module.__call__ is call:  # else somebody has wrapped it meanwhile
            nn.Module.__call__ = found  # type: ignore[method-assign]
        step.remove()
        for budget in list(_budgets.values()):
            budget.end_window()

    return remove


def _stepped() -> None:
    for budget in list(_budgets.values()):
        budget.step()


_recomputation = Held(_install)
_on = False


def read() -> bool:
    return _on


def write(on: bool) -> None:
    """Recompute blocks of all watched models, those watched later too; ``False``: as torch does."""
    global _on
    with watched.lock:
        if on != _on:
            _on = on
            _recomputation.want(1) if on else _recomputation.release(1)
            for model in watched.models():
                _take_on(model)


def decisions() -> list[dict[str, Any]]:
    """For each block of each model that was watched under O1: what was found, and whether it is recomputed."""
    rows = [(type(model).__name__, row) for model, budget in list(_budgets.items()) for row in budget.rows()]
    return [{**row._asdict(), "path": f"{name}.{row.path}".rstrip(".")} for name, row in rows]


def _take_on(model: nn.Module) -> None:
    if _on and model not in _budgets:
        found = {path: block for path, block in blocks(model).items() if block not in _blocks}
        device = next((parameter.device for parameter in model.parameters()), None)
        _budgets[model] = budget = Budget(list(found), device)
        _blocks.update({block: _Block(budget, path) for path, block in found.items()})


watched.listen(_take_on)
