"""The user's own model: ``package.module:function``, which returns a module and an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from msctx.errors import EntryError, EntryFailed, Mark, MsctxError
from msctx.run.config import Experiment
from msctx.run.entry import resolve, users_traceback


@dataclass
class Model:
    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def forward(self) -> list[torch.Tensor]:
        """The tensors of its result."""
        found = self.module(*self.args, **self.kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(_opened(found)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise ValueError(f"its result, of type {type(found).__name__}, holds no tensor")
        return tensors

    def fresh(self) -> Model:
        """With a copy of its input, which it may write to."""
        return self._with(self.module, torch.clone)

    def to(self, device: torch.device) -> Model:
        """On a device, module and input."""
        return self._with(self.module.to(device), lambda tensor: tensor.to(device))

    def exact(self, module: nn.Module) -> Model:
        """In float64, *module* being a copy of its own."""
        return self._with(module._apply(widest), widest)

    def _with(self, module: nn.Module, convert: Any) -> Model:
        def each(value: Any) -> Any:
            return convert(value) if isinstance(value, torch.Tensor) else value

        return replace(self, module=module, args=pytree.tree_map(each, self.args), kwargs=pytree.tree_map(each, self.kwargs))


def widest(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double() if tensor.is_floating_point() else tensor


def _opened(found: Any) -> Any:
    """What is in a result: a model output of transformers, and an object of a class of its own with tensors for attributes."""
    if hasattr(found, "to_tuple"):
        return found.to_tuple()
    return pytree.tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", leaf), found)


def load(entry: str, file: Path | None = None, mark: Mark | None = None) -> Model:
    """The model that a function makes, which a *file* names at a *mark*: a path of a .py file is meant from its folder."""
    function = resolve(Experiment(levels={}, file=file, entry=entry, entry_mark=mark))
    try:
        made = function(None)
    except MsctxError:
        raise
    except SystemExit as end:
        raise EntryFailed(f"{entry} ends itself with {end.code!r}") from None
    except Exception as error:
        raise EntryFailed(f"{entry} raised\n{users_traceback(error)}") from None
    if not isinstance(made, tuple | list) or len(made) != 2 or not isinstance(made[0], nn.Module):
        kinds = [type(one).__name__ for one in made] if isinstance(made, tuple | list) else []
        what = f"{len(kinds)} values ({', '.join(kinds)})" if kinds else type(made).__name__
        raise EntryError(f"entry {entry!r}: it returns {what}; it must return a torch.nn.Module and an input for it")
    module, given = made
    kwargs = dict(given) if isinstance(given, Mapping) else {}
    args = () if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
    inputs = [(f"input {i}", value) for i, value in enumerate(pytree.tree_leaves(given))]
    named = [*module.named_parameters(), *module.named_buffers(), *inputs]
    if empty := next((name for name, value in named if isinstance(value, torch.Tensor) and value.is_meta), ""):
        raise EntryError(
            f"entry {entry!r}: {empty} is on the meta device, which has no values. Return a module and an input "
            "with values, on a CPU or an accelerator (module.to_empty(device='cpu') and initial values, or a checkpoint)"
        )
    return Model(entry.rpartition(":")[2], module, args, kwargs)
