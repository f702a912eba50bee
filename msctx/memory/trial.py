"""A trial of a block: the bytes that it saves for its backward pass, and why it must not run twice, if so."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from msctx import locks
from msctx.options.kinds import Size

COLLECTIVE = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
SPECIAL = {"ScriptModule", "FullyShardedDataParallel", "FSDPModule"}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""The buffers of batch norms."""
_one_at_a_time = locks.plain()  # the stance of Dynamo, random numbers and attributes are the process's


def trial(block: nn.Module, forward: Callable[[], Any], tensors: list[torch.Tensor], device: torch.device) -> tuple[int, str]:
    """The bytes beside inputs and parameters, and the obstacle. The first operator that would change anything is not run."""
    if SPECIAL & {kind.__name__ for module in block.modules() if module is not block for kind in type(module).__mro__}:
        return 0, "it holds a scripted module or an FSDP module"
    given, mode, saved = _storages([tensors, [*block.parameters()]]), _Looking(block), dict[int, int]()

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved.update((storage, tensor.untyped_storage().nbytes()) for storage in _storages(tensor) - given)
        return tensor.detach()

    devices = [] if device.index is None else [device.index]
    with _one_at_a_time, _eager(), torch.random.fork_rng(devices, device_type=device.type), unchanged(block) as changed:
        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), mode:
                forward()
        except _Stop:
            pass
    return Size(sum(saved.values())), mode.obstacle or (f"it changes {changed[0]}" if changed else "")


def _eager() -> Any:
    """Dynamo would never again compile a function that it meets under a mode."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def unchanged(block: nn.Module) -> Iterator[list[str]]:
    """Restores running statistics of batch norms, which count a batch once, and the names that it yields."""
    statistics = [(buffer, buffer.clone()) for buffer in _statistics(block)]
    tables = [(table, dict(table)) for m in block.modules() for table in (m._parameters, m._buffers, vars(m))]
    of_python, of_numpy, changed = random.getstate(), numpy.random.get_state(), list[str]()
    try:
        yield changed
    finally:
        for buffer, value in statistics:
            buffer.data.copy_(value)  # of .data: its version, which another pass may have saved, stays
        for table, before in tables:
            names = [name for name in {**before, **table} if table.get(name, table) is not before.get(name, table)]
            if names:
                changed += names
                table.clear()
                table.update(before)
        if random.getstate() != of_python or str(numpy.random.get_state()) != str(of_numpy):
            changed.append("the random numbers of Python or NumPy")
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)


class _Stop(BaseException):
    pass


class _Looking(TorchDispatchMode):
    """Stops a block before it writes to a tensor that it has not made, communicates, or draws from its own generator."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.obstacle, self._made = "", _storages(_statistics(block))
        self._names = {s: name for name, t in (*block.named_parameters(), *block.named_buffers()) for s in _storages(t)}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, formal = tree_leaves((args, kwargs)), function._schema.arguments
        values = {argument.name: value for argument, value in zip(formal, args, strict=False)} | kwargs
        written = [values.get(one.name) for one in formal if one.alias_info is not None and one.alias_info.is_write]
        if function.namespace in COLLECTIVE or any(type(leaf).__name__ == "DTensor" for leaf in leaves):
            self.obstacle = "it communicates with other processes"
        elif any(isinstance(leaf, torch.Generator) for leaf in leaves):
            self.obstacle = "it draws random numbers from its own torch.Generator"
        elif foreign := _storages(written) - self._made:
            self.obstacle = f"it writes to {self._names.get(foreign.pop(), 'a tensor that it has not made')}"
        if self.obstacle:
            raise _Stop
        result, is_new = function(*args, **kwargs), function is torch.ops.aten.lift_fresh.default  # as in torch.tensor()
        self._made |= _storages(result) - (set() if is_new else _storages(leaves))
        return result


def _storages(values: Any) -> set[int]:
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided)
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _statistics(block: nn.Module) -> list[torch.Tensor]:
    found = (module._buffers.get(name) for module in block.modules() for name in STATISTICS)
    return [buffer for buffer in found if buffer is not None]
