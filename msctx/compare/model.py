"""The user's own model: ``package.module:function``, which returns a module and an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from msctx.errors import EntryError, EntryFailed, Mark, MsctxError
from msctx.run.config import Experiment
from msctx.run.entry import resolve, users_traceback


@dataclass
class Model:
    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    changes_input: bool | None = None
    """Whether it writes to its input, which it then gets a copy of; ``None``: it has not run yet."""

    def forward(self, *, seeded: bool = True) -> list[torch.Tensor]:
        """The tensors of its result, from the same input each time, and from the same random numbers if it is to be *seeded*."""
        if seeded:
            torch.manual_seed(0)
        if self.changes_input is None:
            self.look()
        args, kwargs = _copied((self.args, self.kwargs)) if self.changes_input else (self.args, self.kwargs)
        found = self.module(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves(_opened(found)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise ValueError(f"its result, of type {type(found).__name__}, holds no tensor")
        return tensors

    def look(self) -> None:
        """Find out whether it writes to its input, by running it on a copy."""
        with torch.random.fork_rng():
            self.once()

    def once(self) -> None:
        """Run it on a copy of its input."""
        given = _copied((self.args, self.kwargs))
        before = [_version(value) for value in tree_leaves(given)]
        self.module(*given[0], **given[1])
        self.changes_input = before != [_version(value) for value in tree_leaves(given)]

    def to(self, device: torch.device) -> Model:
        """On a device, module and input."""

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, torch.Tensor) else value

        return Model(self.name, self.module.to(device), tree_map(move, self.args), tree_map(move, self.kwargs))

    def converted(self, module: nn.Module, dtype: torch.dtype) -> Model:
        """With another module in its place, and floating inputs in a dtype."""

        complex_ = torch.complex128 if dtype == torch.float64 else torch.complex64

        def convert(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.to(dtype) if value.is_floating_point() else value.to(complex_) if value.is_complex() else value

        return Model(self.name, module, tree_map(convert, self.args), tree_map(convert, self.kwargs))


def _opened(found: Any) -> Any:
    """What is in a result: a model output of transformers, and an object of a class of its own with tensors for attributes."""
    if hasattr(found, "to_tuple"):
        return found.to_tuple()
    return tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", leaf), found)


def _copied(given: Any) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, given)


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def load(entry: str, file: Path | None = None, mark: Mark | None = None) -> Model:
    """The model that a function makes.

    Args:
        file: the file that names it: a path of a .py file is meant from its folder.
        mark: where in it.

    Raises:
        EntryError: the function is not there, or returns something else.
        EntryFailed: it raised.
    """
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
        raise EntryError(f"entry {entry!r}: it returns {_kind(made)}; it must return a torch.nn.Module and an input for it")
    module, given = made
    if isinstance(module, torch.jit.ScriptModule):
        raise EntryError(
            f"entry {entry!r}: it returns a ScriptModule, whose layers cannot be named; return the module it is made of"
        )
    kwargs = dict(given) if isinstance(given, Mapping) else {}
    args_ = () if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
    return Model(entry.rpartition(":")[2], module, args_, kwargs)


def _kind(made: Any) -> str:
    if isinstance(made, tuple | list):
        return f"{len(made)} values ({', '.join(type(one).__name__ for one in made)})"
    return type(made).__name__
