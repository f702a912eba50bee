"""What a trial of a forward pass writes to that was there before it: noticed, and taken back.

Tensors are seen below autograd, at each operator that writes to one, and where ``tensor.data`` is assigned. Of Python's objects
those are looked at that a module reaches by its attributes, its classes and the names in its ``forward``; of generators those, too,
that are given to torch: see sources. What is written behind all of these (files, memory of NumPy, objects of extensions) is not
noticed.
"""

from __future__ import annotations

import itertools
import sys
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from msctx.memory.sources import GENERATORS, Draws

# --- tensors ----------------------------------------------------------------------------------------------------------

UNDECLARED = ("running_mean", "running_var")
"""Arguments that operators write to without saying so in their schemas."""


class Tensors(TorchDispatchMode):
    """While it is entered, what is written to memory of tensors that were there before; on leaving they are as they were."""

    def __init__(self, own: Iterable[torch.Tensor], draws: Draws) -> None:
        """*own*: copies, which may be written to."""
        super().__init__()
        self._made = {storage._cdata for tensor in own if (storage := _storage_of(tensor)) is not None}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._assigned: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._calls = _Calls(self.assigns, draws)
        self.wrote = False
        """Whether any of them has other values now; known after leaving."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled parts of a block run compiled."""
        return True

    def __enter__(self) -> Tensors:
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._calls.__exit__(*error)
        del self._calls  # it holds this, in a circle
        with torch.no_grad():
            for tensor, data in reversed(self._assigned):
                self.wrote = True
                tensor.data = data
            for storage, before in self._before.values():
                if storage.nbytes() != before.nbytes():
                    storage.resize_(before.nbytes())
                elif torch.equal(_bytes_of(storage), _bytes_of(before)):
                    continue
                self.wrote = True
                _bytes_of(storage).copy_(_bytes_of(before))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, name in _written(function):
            for tensor in tree_leaves(args[index] if index < len(args) else kwargs.get(name)):
                self._keep(tensor)
        result = function(*args, **kwargs)
        # A view of what is there is no new memory; what lift_fresh gets has just been made
        given = set() if "lift_fresh" in str(function) else {*_numbers_of((args, kwargs))}
        self._made.update(number for number in _numbers_of(result) if number not in given)
        return result

    def assigns(self, tensor: torch.Tensor) -> None:
        """Other memory is about to be assigned to *tensor*."""
        data = tensor.detach()
        storage = _storage_of(data)
        if storage is not None and storage._cdata not in self._made:
            self._assigned.append((tensor, data))

    def _keep(self, tensor: Any) -> None:
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata not in self._made and storage._cdata not in self._before:
            self._before[storage._cdata] = storage, storage.clone()


class _Calls(TorchFunctionMode):
    """``tensor.data = …``, which no operator sees, and generators, of which an operator sees only copies."""

    def __init__(self, assigns: Callable[[torch.Tensor], None], draws: Draws) -> None:
        super().__init__()
        self._assigns, self._draws = assigns, draws

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__set__" and getattr(function.__self__, "__name__", "") == "data":
            self._assigns(args[0])
        for value in (*args, *(kwargs or {}).values()):
            self._draws.meet_in_call(value)
        return function(*args, **(kwargs or {}))


@cache
def _written(function: Any) -> tuple[tuple[int, str], ...]:
    """The arguments of an operator that it may write to."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    return tuple(
        (index, argument.name) for index, argument in enumerate(arguments) if argument.is_write or argument.name in UNDECLARED
    )


def _storage_of(value: Any) -> torch.UntypedStorage | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta:
        return None
    try:
        return value.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a tensor subclass without memory of its own
        return None


def _numbers_of(values: Any) -> Iterator[int]:
    for value in tree_leaves(values):
        if (storage := _storage_of(value)) is not None:
            yield storage._cdata


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


# --- Python's objects -------------------------------------------------------------------------------------------------

MOST = 4096
"""Objects that are looked at, and what each may hold: beyond that nothing is noticed."""
OF_ALL_MODULES = frozenset(vars(nn.Module()))
"""Attributes that a module has anyhow."""
NOT_OF_USERS = frozenset((*sys.stdlib_module_names, "torch", "torch_npu", "numpy", "msctx")) - {"__main__"}
CONTAINERS = (dict, list, deque, set, tuple)
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Objects:
    """While it is entered, what becomes of the Python objects that a block and its inputs reach; on leaving they are as they were.

    Attributes of the block's own modules may be bound to other objects.
    """

    def __init__(self, block: nn.Module, inputs: Any, draws: Draws) -> None:
        self._draws = draws
        self._kept: list[tuple[Callable[[], Any], Callable[[Any], object], Any]] = []
        modules = list(block.modules())
        self._seen = {id(module) for module in modules}
        self.wrote = False
        """Whether any of them is another now; known after leaving."""
        for value in tree_leaves(inputs):
            self._look(value)
        for module in modules:
            self._look_at_attributes(vars(module))
            for kind in type(module).__mro__:
                if not _is_library(kind):
                    self._look_at_class(kind)
            forward = getattr(module.forward, "__func__", module.forward)
            if isinstance(forward, FunctionType) and not _is_library(forward):
                self._look_at_names(forward)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for read, write, before in self._kept:
            if not _is_same(read(), before):
                self.wrote = True
                write(before)

    def _look(self, value: Any) -> None:
        if id(value) in self._seen or len(self._kept) >= MOST or (isinstance(value, CONTAINERS) and len(value) > MOST):
            return
        self._seen.add(id(value))
        if self._draws.meet(value):
            return
        if isinstance(value, dict):
            self._keep(lambda: dict(value), lambda before: _become(value, before))
        elif isinstance(value, list | deque):
            self._keep(lambda: list(value), lambda before: (value.clear(), value.extend(before)))
        elif isinstance(value, set):
            self._keep(lambda: set(value), lambda before: _become(value, before))
        elif isinstance(value, tuple):
            for item in value:
                self._look(item)
        elif isinstance(value, nn.Module) or (hasattr(value, "__dict__") and _is_users(value)):
            self._look(vars(value))

    def _look_at_attributes(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            if name not in OF_ALL_MODULES:
                self._look(value)
        counts = [name for name, value in attributes.items() if type(value) is itertools.count]
        if counts:
            self._keep(lambda: {name: attributes[name] for name in counts}, attributes.update)

    def _look_at_class(self, kind: type) -> None:
        if id(kind) not in self._seen:
            self._seen.add(id(kind))
            self._keep(lambda: dict(vars(kind)), lambda before: _assign(kind, before))

    def _look_at_names(self, forward: FunctionType) -> None:
        """What a function names: only numbers, containers and generators, not what hangs on them."""
        names, cells = forward.__code__.co_names, [cell for cell in forward.__closure__ or () if _is_simple(_content(cell))]
        known = forward.__globals__

        def named() -> dict[str, Any]:
            return {name: known[name] for name in names if _is_simple(known.get(name, names))}

        self._keep(named, known.update)
        self._keep(lambda: [cell.cell_contents for cell in cells], lambda before: _fill(cells, before))

    def _keep(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        before = _with_own_counts(read())
        self._kept.append((read, write, before))
        for value in list(before.values()) if isinstance(before, dict) else before:
            self._look(value)


def _is_library(what: Any) -> bool:
    return (getattr(what, "__module__", None) or "").partition(".")[0] in NOT_OF_USERS


def _is_users(value: Any) -> bool:
    return not isinstance(value, torch.Tensor | type | ModuleType | FunctionType) and not _is_library(type(value))


def _is_simple(value: Any) -> bool:
    return type(value) in (*PLAIN, list, dict, set, deque, itertools.count) or isinstance(value, GENERATORS)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return Objects


def _fill(cells: list[Any], contents: list[Any]) -> None:
    for cell, content in zip(cells, contents, strict=True):
        cell.cell_contents = content


def _assign(kind: type, before: dict[str, Any]) -> None:
    now = dict(vars(kind))
    for name in now.keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if name not in now or not _is_same(now[name], value):
            setattr(kind, name, value)


def _become(present: Any, wanted: Any) -> None:
    """Both are dictionaries, or both sets."""
    if [*present] != [*wanted]:
        present.clear()
    present.update(wanted)


def _with_own_counts(values: Any) -> Any:
    """Iterators that count are used up by looking: equal ones in their places."""
    if isinstance(values, dict):
        return {key: own_count(value) for key, value in values.items()}
    return [own_count(value) for value in values] if isinstance(values, list) else values


def own_count(value: Any) -> Any:
    """An iterator that counts, as another that goes on like it; else the value."""
    if type(value) is not itertools.count:
        return value
    return itertools.count(*literal_eval(f"({repr(value).removeprefix('count(').removesuffix(')')},)"))


def _is_same(one: Any, other: Any) -> bool:
    """Whether the same objects stand in the same places."""
    if isinstance(one, dict):
        return [*one] == [*other] and all(_is_one(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_one, one, other))
    return bool(one == other)


def _is_one(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    return bool(one == other) if isinstance(one, PLAIN) else isinstance(one, itertools.count) and repr(one) == repr(other)
