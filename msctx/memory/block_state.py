"""What a block of a model depends on beside its inputs: kept before its forward pass, put back while that is computed again."""

from __future__ import annotations

import copy
import operator
import pickle
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import _C, nn
from torch.nn.modules import module as nn_module

from msctx.memory.fingerprints import fingerprint
from msctx.memory.look import MANY, OF_MODULES, Lasting, hooks_of
from msctx.memory.sources import OF_LIBRARIES, Source, owned, source_of

Name = tuple[int, str]
"""Of a buffer: the number of its module in the block, its name there."""
Kind = tuple[torch.dtype, int]
"""Of a tensor: its dtype, its number of dimensions."""
SMALL = 1 << 16
"""Bytes of a buffer that is copied in each pass."""


@dataclass(frozen=True)
class Known:
    """What looks at forward passes of a block have shown."""

    looks: int = 0
    obstacle: str = ""
    changing: frozenset[Name] = frozenset()
    """The buffers that it changes."""
    unset: frozenset[Kind] = frozenset()
    """What it saves with other bits each time, though its results are the same: operators leave parts of it unset."""
    lasting: Lasting | None = None
    """What it reaches and must not change in later passes, either."""
    draws: bool = True
    """Whether its code names Python's or NumPy's random numbers."""
    seeds: bool = True
    """Whether it names ways to seed torch's."""
    past_versions: bool = False
    """Whether it may write to tensors that do not notice it."""


class RecomputationError(RuntimeError):
    """A block's forward pass cannot be computed again as it was."""


class State:
    """What a block's forward pass depends on beside its inputs, when it is made: but torch's random numbers, which checkpoint has."""

    def __init__(self, path: str, block: nn.Module, inputs: Any, known: Known | None) -> None:
        """*known*: ``None`` when it is not known yet what the block changes."""
        self._path, self._block = path, block
        self._parts: list[Part] = [
            (module, _without_graphs(held), own, _without_graphs(buffers), inner)
            for module, held, own, buffers, inner in _parts(block)
        ]
        self._of_parameters = {p.untyped_storage()._cdata for p in block.parameters() if p.layout is torch.strided}
        self._lasting = known.lasting if known else None
        self._past_versions = known is not None and known.past_versions
        self._draws = known is None or known.draws
        self._generators = owned(block, inputs)
        self._sources = [source_of(generator) for generator in self._generators]
        self._numbers = [source.read() for source in self._sources]
        self._unused: list[Source] = []
        tensors = {
            (number, name): value
            for number, (_, _, own, buffers, _) in enumerate(self._parts)
            for table in (own, buffers)
            for name, value in table.items()
            if value is not None
        }
        self._versions: dict[Name, tuple[Any, int]] = {name: (value, _version(value)) for name, value in tensors.items()}
        self._copies: dict[Name, torch.Tensor] = {}
        changing = [name for name in tensors if self._may_change(name, tensors[name], known)]
        for name, value in zip(changing, _copies([tensors[name] for name in changing]), strict=True):
            self._copies[name] = value

    def _may_change(self, name: Name, tensor: torch.Tensor, known: Known | None) -> bool:
        """Whether a tensor is a buffer that the block may change: a small one may do so in a later pass for the first time."""
        number, attribute = name
        plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
        if attribute not in self._parts[number][3] or not plain or type(tensor) not in (torch.Tensor, nn.Buffer):
            return False
        if known is None or name in known.changing:
            return True
        storage = tensor.untyped_storage()
        return storage.nbytes() <= SMALL and storage._cdata not in self._of_parameters

    def changing(self) -> frozenset[Name]:
        """The buffers that have been written to (BatchNorm's averages without a version counter).

        Of those that are other ones now the one before is still there, and needs no copy.
        """
        found = set()
        for name, kept in self._copies.items():
            buffer, version = self._versions[name]
            if _version(buffer) != version or fingerprint(buffer) != fingerprint(kept):
                found.add(name)
        return frozenset(found)

    def end(self, draws: bool | None) -> None:
        """The first pass is done: generators that it did not use are left alone, since other threads may use them meanwhile.

        Where there are any, those of libraries are not taken for used by a block whose code does not name them.

        Args:
            draws: whether it does; ``None`` where it was not looked at: what is known.
        """
        names_them = self._draws if draws is None else draws
        shared = OF_LIBRARIES if not names_them and threading.active_count() > 1 else ()
        read = [*zip(self._generators, self._sources, self._numbers, strict=True)]
        self._generators, self._sources, self._numbers = [], [], []
        for generator, source, number in read:
            if any(generator is each for each in shared):
                continue
            if _bits(source.read()) == _bits(number):
                self._unused.append(source)
            else:
                self._sources.append(source)
                self._numbers.append(number)

    def keep_only(self, changing: Collection[Name]) -> None:
        self._copies = {name: value for name, value in self._copies.items() if name in changing}

    def constant(self) -> set[int]:
        """The storages that are the same in both passes."""
        values = [value for name, (value, _) in self._versions.items() if name not in self._copies]
        return {value.untyped_storage()._cdata for value in values if value.layout is torch.strided}

    @contextmanager
    def again(self, inputs: Collection[torch.Tensor] = ()) -> Iterator[None]:
        """While it is entered, all is as it was."""
        hooks = [hooks_of(tensor) for tensor in inputs]
        for name, (value, version) in self._versions.items():
            if name not in self._copies and _version(value) != version:
                raise RecomputationError(
                    "a parameter or buffer of a block whose forward pass is to be computed again (memory_optimize_level=O1) has been "
                    f"modified by an inplace operation since: it is at version {value._version}, expected version {version}"
                )
        if hook_of_user(self._block):
            raise RecomputationError(
                f"memory_optimize_level=O1: hooks were registered in block {self._path!r} since its forward pass, which is to be "
                "computed again: register them after backward()"
            )
        parts, numbers = _parts(self._block), [source.read() for source in self._sources]
        others = [(source, source.read()) for source in self._unused]
        leaves = [parameter for parameter in self._block.parameters() if parameter.is_leaf]
        gradients = [(parameter, parameter.grad, _version(parameter.grad)) for parameter in leaves]
        lasting = self._lasting.now() if self._lasting else []
        bits = self._bits_past_versions()
        try:
            self._install(self._parts, self._numbers)
            for (number, buffer), value in zip(self._copies, _copies([*self._copies.values()]), strict=True):
                self._parts[number][0]._buffers[buffer] = value
            yield
        finally:
            self._install(parts, numbers)
            for source, number in others:  # it may have been seeded, with what it was
                if _bits(source.read()) != _bits(number):
                    source.write(number)
            changed = self._lasting.changed(lasting) if self._lasting else ""
            if any(_version(value) != version for name, (value, version) in self._versions.items() if name not in self._copies):
                changed = "parameters or buffers"
            if bits != self._bits_past_versions():
                changed = "buffers"
            if any(parameter.grad is not grad or _version(grad) != version for parameter, grad, version in gradients):
                changed = "gradients"
            if hooks != [hooks_of(tensor) for tensor in inputs] and not _C._len_torch_dispatch_stack():  # a mode's own
                changed = "hooks of its inputs"
            if changed:
                raise RecomputationError(
                    f"memory_optimize_level=O1: the forward pass of block {self._path!r} changes {changed}, and has now done so "
                    "twice, since it is computed again for the backward pass. Leave the block out: ctx.watch() the other parts of "
                    "the model"
                )

    def _bits_past_versions(self) -> list[Any]:
        """Of large buffers that are not copied, and that may be written to unnoticed."""
        if not self._past_versions:
            return []
        buffers = [value for name, (value, _) in self._versions.items() if name[1] in self._parts[name[0]][3]]
        kept = [self._versions[name][0] for name in self._copies]
        return [
            fingerprint(value) for value in buffers if all(value is not other for other in kept) and value.device.type == "cpu"
        ]

    def _install(self, parts: list[Part], numbers: list[Any]) -> None:
        for module, *tables in parts:
            now: list[Any] = [module.__dict__, module._parameters, module._buffers, module._modules]
            for present, wanted in zip(now, tables, strict=True):
                if present.keys() != wanted.keys():
                    present.clear()
                present.update(wanted)
        for source, state in zip(self._sources, numbers, strict=True):
            source.write(state)


Table = dict[str, Any]
Part = tuple[nn.Module, Table, Table, Table, Table]
"""A module, its attributes (whether it trains is one), its parameters, buffers and modules."""


def _parts(block: nn.Module) -> list[Part]:
    return [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers), dict(m._modules)) for m in block.modules()]


def _without_graphs(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes without the graphs of activations: who keeps one keeps the pass that it came from, and what that kept in turn."""
    return {name: value if name in OF_MODULES else _without_graph(value, 3) for name, value in attributes.items()}


def _without_graph(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_() if value.grad_fn is not None else value
    if not depth or type(value) not in (list, tuple, dict, OrderedDict) or not 0 < len(value) <= MANY:
        return value
    inside = [*value.values()] if isinstance(value, dict) else value
    held = [_without_graph(each, depth - 1) for each in inside]
    if all(map(operator.is_, held, inside)):
        return value
    return type(value)(zip(value, held, strict=True) if isinstance(value, dict) else held)


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those that share memory do so in the copies, too. Not by deepcopy alone, whose memory the pool does not see."""
    memories: dict[int, torch.UntypedStorage] = {}
    made = []
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            made.append(copy.deepcopy(tensor.detach()))
        else:
            storage, empty = tensor.untyped_storage(), torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            if storage._cdata not in memories:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                memories[storage._cdata] = whole.clone().untyped_storage()
            place = tensor.storage_offset(), tensor.size(), tensor.stride()
            made.append(empty.set_(memories[storage._cdata], *place))
        made[-1].requires_grad_(tensor.requires_grad)
    return made


def _bits(state: Any) -> bytes:
    return pickle.dumps(state)


def _version(tensor: torch.Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def hook_of_user(block: nn.Module) -> str:
    """What calls of its modules run that was not made to run again, a hook that is not torch's or ours; ``""``: nothing."""
    tables = [table for module in block.modules() for table in (module._forward_pre_hooks, module._forward_hooks)]
    of_all_modules = (nn_module._global_forward_pre_hooks, nn_module._global_forward_hooks)
    hooks = (hook for table in (*tables, *of_all_modules) for hook in table.values() if not _is_made_to_run_again(hook))
    return next(
        (f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__name__)}" for hook in hooks), ""
    )


def _is_made_to_run_again(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return (getattr(hook, "__module__", None) or "").partition(".")[0] in ("torch", "torch_npu", "msctx")
