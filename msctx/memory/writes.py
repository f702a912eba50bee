"""What a trial of a forward pass writes to that was there before it: noticed, and taken back.

Tensors are seen below autograd, at each operator that writes to one, and where ``tensor.data`` is assigned. Of Python's objects
those are looked at that a block reaches by its attributes, and those that a function names that it calls, just before that runs; of
generators those, too, that are given to torch: see sources. What is written behind all of these (files, objects of libraries and
extensions) is not noticed.
"""

from __future__ import annotations

import gc
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from functools import cache
from types import CellType, CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType, TracebackType
from typing import Any
from weakref import ref

import numpy
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from msctx.memory.sources import Draws
from msctx.native.installed import Held

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
        self._assigned: list[tuple[torch.Tensor, str, Any]] = []
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
            for tensor, name, value in reversed(self._assigned):
                self.wrote = True
                setattr(tensor, name, value)
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

    def assigns(self, tensor: torch.Tensor, name: str) -> None:
        """Other memory, or another gradient, is about to be assigned to *tensor*."""
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata not in self._made:
            self._assigned.append((tensor, name, tensor.detach() if name == "data" else tensor.grad))

    def _keep(self, tensor: Any) -> None:
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata not in self._made and storage._cdata not in self._before:
            self._before[storage._cdata] = storage, storage.clone()


class _Calls(TorchFunctionMode):
    """``tensor.data = …`` and ``tensor.grad = …``, which no operator sees, and generators, of which an operator sees only copies."""

    def __init__(self, assigns: Callable[[torch.Tensor, str], None], draws: Draws) -> None:
        super().__init__()
        self._assigns, self._draws = assigns, draws

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__set__" and (name := function.__self__.__name__) in ("data", "grad"):
            self._assigns(args[0], name)
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

MOST, MOST_BYTES = 2**18, 2**30
"""Objects that are looked at, what each may hold, and the size of an array: a block that reaches more is not tried."""
OF_ALL_MODULES = frozenset(vars(nn.Module()))
"""Attributes that a module has anyhow."""
HOLDERS = ("__main__", "argparse", "collections", "types")
"""Modules of the standard library whose objects (namespaces and the like) hold what users put there."""
OF_TORCH = ("torch", "torch_npu", "triton", "filelock", "fsspec", "jinja2", "mpmath", "networkx", "sympy", "typing_extensions")
"""PyTorch and what it calls itself."""
NOT_OF_USERS = frozenset((*sys.stdlib_module_names, *OF_TORCH, "numpy", "msctx")) - {*HOLDERS}
CREATION = ("__init__", "__new__")
"""Methods that run only where code names the class."""
LINKS = ("__self__", "__func__", "__wrapped__", "func", "args", "keywords", "fget", "fset")
"""Where methods, partial functions, caches and properties hold what they call."""
BACKWARD = torch.autograd.backward.__code__
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class CannotBePutBack(BaseException):
    """Why a block must not be tried. It may be raised inside the block, where a function is about to run: no ``except Exception``
    there may go on.
    """


def _stop_collection() -> Callable[[], None]:
    was_on = gc.isenabled()
    gc.disable()
    return gc.enable if was_on else lambda: None


_no_collection = Held(_stop_collection)
"""Finalizers and callbacks of Python's collector of garbage are no part of a block."""


class Objects:
    """While it is entered, what becomes of the Python objects that a block and its inputs reach; on leaving they are as they were.

    Attributes of the block's own modules may be bound to other objects. Global variables and attributes of classes count as reached
    once a function that names them is called.
    """

    def __init__(self, block: nn.Module, inputs: Any, draws: Draws) -> None:
        self._draws = draws
        self._kept: list[tuple[str, Callable[[], Any], Callable[[Any], object], Any]] = []
        self.changed = ""
        """One of them that is another now; known after leaving."""
        modules = dict(block.named_modules())
        self._seen: dict[int, Any] = {id(module): module for module in modules.values()}
        self._next: list[tuple[Any, str]] = []
        self._classes: set[type] = set()
        self._ran: dict[tuple[int, int], tuple[CodeType, dict[str, Any]]] = {}
        """The functions that were called: their code, their global variables."""
        self._named: dict[int, set[str]] = {}
        """Of the global variables of a module: those that are kept."""
        self._modules = {*sys.modules}
        self._names = {"forward"}
        self._unnamed: dict[str, list[tuple[Any, str]]] = {}
        """Methods and attributes of classes that no code has named yet."""
        for value in tree_leaves(inputs):
            self._add(value, "input")
        for path, module in modules.items():
            for name, value in vars(module).items():
                place = f"self.{path}.{name}".replace("..", ".")
                if name not in OF_ALL_MODULES:
                    self._add(value, place)
                elif name.endswith("_hooks"):  # of the original, too
                    self._look_at_names(value, place, "[{}]")
            self._look_at_classes(type(module))
        self._look_at_all()

    def __enter__(self) -> None:
        _no_collection.want(1)
        sys.setprofile(self._called)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(None)
        _no_collection.release(1)
        for path, read, write, before in self._kept:
            if not _is_same(read(), before):
                self.changed = self.changed or path
                write(before)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        """A function is about to run: what it names is kept as it is now."""
        code, space = frame.f_code, frame.f_globals
        if event != "call" or (id(code), id(space)) in self._ran:
            return
        if code is BACKWARD:
            raise CannotBePutBack("it calls backward() in its forward pass, which adds to gradients each time")
        self._ran[id(code), id(space)] = code, space
        name = space.get("__name__")
        is_new = name in sys.modules and name not in self._modules  # imported since
        if not is_new and not _is_of_library(name):
            self._look_at_code(code, space)
            self._look_at_all()

    def _look_at_all(self) -> None:
        while self._next:
            self._look(*self._next.pop())

    def _add(self, value: Any, path: str) -> None:
        if type(value) in PLAIN or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        size = value.nbytes if isinstance(value, numpy.ndarray) else 0
        count = len(value) if isinstance(value, dict | list | deque | Set | tuple) else 0
        if max(len(self._seen), count) > MOST or size > MOST_BYTES:
            raise CannotBePutBack(f"it reaches more objects than are looked at: {path}")
        self._next.append((value, path))

    def _keep(self, path: str, read: Callable[[], Any], write: Callable[[Any], object]) -> Any:
        before = read()
        self._kept.append((path, read, write, before))
        return before

    def _look(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, torch.Tensor | ModuleType) or self._draws.meet(value):
            return
        if isinstance(value, dict):
            self._look_at_names(value, path, "[{!r}]")
        elif isinstance(value, list | deque):
            self._look_at_items(
                self._keep(path, lambda: list(value), lambda before: (value.clear(), value.extend(before))), path
            )
        elif isinstance(value, set):
            self._look_at_items(
                self._keep(path, lambda: set(value), lambda before: value.symmetric_difference_update(value ^ before)), path
            )
        elif isinstance(value, tuple | frozenset):
            self._look_at_items(value, path)
        elif isinstance(value, numpy.ndarray):
            if value.flags.writeable:
                self._keep(path, value.copy, lambda before: value.__setitem__(..., before))
            if value.dtype.hasobject:
                self._look_at_items(value.flat, path)
        elif isinstance(value, bytearray | array):
            self._keep(path, lambda: value[:], lambda before: value.__setitem__(slice(None), before))
        elif _has_bytes(value):  # of ctypes, mmap; a memoryview
            self._keep(path, lambda: bytes(value), lambda before: memoryview(value).cast("B").__setitem__(slice(None), before))
        elif isinstance(value, CellType):
            self._add(self._keep(path, lambda: [_content(value)], lambda before: _fill(value, *before))[0], path)
        elif isinstance(value, FunctionType):
            self._look_at_function(value, path)
        elif isinstance(value, type):
            self._look_at_classes(value, is_named=True)
            return
        elif isinstance(value, ref):
            self._add(value(), path)
        elif isinstance(value, Iterator) and _is_library(kind):
            raise CannotBePutBack(f"it reaches an iterator that cannot be put back: {path} ({kind.__qualname__})")
        if not _is_library(kind) or isinstance(value, nn.Module | threading.local):
            if hasattr(value, "__dict__"):
                self._look_at_names(vars(value), path)
            slots = {n: slot for k in kind.__mro__ for n, slot in vars(k).items() if isinstance(slot, MemberDescriptorType)}
            self._look_at_slots(value, slots, path)
            self._look_at_classes(kind)
        elif not isinstance(value, FunctionType):
            for name in LINKS:
                self._add(getattr(value, name, None), path)

    def _look_at_items(self, items: Iterable[Any], path: str) -> None:
        for number, item in enumerate(items):
            self._add(item, f"{path}[{number}]")

    def _look_at_names(self, values: dict[Any, Any], path: str, form: str = ".{}") -> None:
        for key, value in self._keep(path, lambda: dict(values), lambda before: _become(values, before)).items():
            self._add(key, path)
            self._add(value, path + form.format(key if type(key) in PLAIN else type(key)))

    def _look_at_slots(self, value: Any, slots: dict[str, Any], path: str) -> None:
        if not slots:
            return

        def read() -> dict[str, Any]:
            return {name: getattr(value, name) for name in slots if hasattr(value, name)}

        def write(before: dict[str, Any]) -> None:
            for name in read().keys() - before.keys():
                slots[name].__delete__(value)
            for name, content in before.items():
                slots[name].__set__(value, content)

        for name, content in self._keep(path, read, write).items():
            self._add(content, f"{path}.{name}")

    def _look_at_classes(self, kind: type, *, is_named: bool = False) -> None:
        for base in kind.__mro__:
            if _is_library(base):
                continue
            if is_named:
                for name in CREATION:
                    self._add(vars(base).get(name), f"{base.__qualname__}.{name}")
            if base in self._classes:
                continue
            self._classes.add(base)
            for name, value in self._keep_class(base).items():
                path = f"{base.__qualname__}.{name}"
                if name in self._names or (name.startswith("__") and name not in CREATION):
                    self._add(value, path)
                elif name not in CREATION:
                    self._unnamed.setdefault(name, []).append((value, path))

    def _keep_class(self, kind: type) -> dict[str, Any]:
        kept: dict[str, Any] = self._keep(kind.__qualname__, lambda: dict(vars(kind)), lambda before: _assign(kind, before))
        return kept

    def _look_at_function(self, function: FunctionType, path: str) -> None:
        self._look_at_names(vars(function), path)
        self._add(function.__defaults__, path)
        self._add(function.__kwdefaults__, path)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":  # of super()
                self._add(cell, f"{name} (in {function.__qualname__})")

    def _look_at_code(self, code: CodeType, space: dict[str, Any]) -> None:
        names = _names_in(code)
        for name in names - self._names:
            for attribute in self._unnamed.pop(name, ()):
                self._add(*attribute)
        self._names |= names
        spaces = [space]
        for space in spaces:  # which grows
            for name, value in self._keep_some(space, names).items():
                self._add(value, f"{name} (in {code.co_name})")
            for value in [space[name] for name in names if isinstance(space.get(name), ModuleType)]:
                if not _is_of_library(value.__name__) and all(vars(value) is not other for other in spaces):
                    spaces.append(vars(value))

    def _keep_some(self, space: dict[str, Any], names: set[str]) -> dict[str, Any]:
        kept = self._named.setdefault(id(space), set())
        names = names - kept  # what is kept already may have been changed since
        kept |= names

        def read() -> dict[str, Any]:
            return {name: space[name] for name in names if name in space}

        def write(before: dict[str, Any]) -> None:
            for name in read().keys() - before.keys():
                del space[name]
            space.update(before)

        found: dict[str, Any] = self._keep(f"global variables of {space.get('__name__')}", read, write)
        return found


def _has_bytes(value: Any) -> bool:
    """Whether it is memory that can be written to as it lies."""
    try:
        with memoryview(value) as view:
            return not view.readonly and view.c_contiguous and view.nbytes <= MOST_BYTES
    except (TypeError, ValueError, BufferError):
        return False


def _is_library(what: type) -> bool:
    return _is_of_library(what.__module__)


def _is_of_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in NOT_OF_USERS


def _names_in(code: CodeType) -> set[str]:
    """What it and the functions in it name: in attributes, too, and in strings, as getattr() takes them."""
    names = {*code.co_names}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            names |= _names_in(value)
        elif isinstance(value, str):
            names.add(value)
    return names


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return CellType


def _fill(cell: CellType, content: Any) -> None:
    if content is CellType:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def _assign(kind: type, before: dict[str, Any]) -> None:
    now = dict(vars(kind))
    for name in now.keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if name not in now or not _is_one(now[name], value):
            setattr(kind, name, value)


def _become(present: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    if [*present] != [*wanted]:
        present.clear()
    for key, value in wanted.items():  # a Counter's update() adds
        present[key] = value


def _is_same(one: Any, other: Any) -> bool:
    """Whether the same objects stand in the same places."""
    if isinstance(one, dict):
        return [*one] == [*other] and all(_is_one(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_one, one, other))
    if isinstance(one, numpy.ndarray | array):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


def _is_one(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and bool(one == other))
