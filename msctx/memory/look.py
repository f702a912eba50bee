"""What a forward pass changes beside its results: the objects and tensors that it reaches, compared before and after.

Reached are the block's modules, its arguments, and what a function names (global variables, attributes of classes) that is about to
run. Functions and most objects of PyTorch, NumPy and the standard library are not looked into.
"""

from __future__ import annotations

import gc
import pickle
import random
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import local
from types import CellType, CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any
from weakref import ref

import numpy
import torch
from torch import _C, nn
from torch._functorch.vmap import doesnt_support_saved_tensors_hooks

from msctx.errors import named
from msctx.memory import communication
from msctx.memory.fingerprints import fingerprint
from msctx.memory.sources import GENERATORS, OF_LIBRARIES, owned, source_of
from msctx.native.installed import Held
from msctx.signals import uninterrupted

MOST, MOST_BYTES = 2**15, 2**30
"""Objects that are looked at, what each may hold, and the size of an array: a block that reaches more is left alone."""
OF_MODULES = ("_parameters", "_buffers", "_modules")
"""Tables that are put back after each pass."""
MANY = 1000
"""Objects in a container of which only the number is read in each pass."""
MOST_EACH_PASS = 1 << 16
"""Bytes of an array that is read in each pass."""
HOLDERS = ("__main__", "argparse", "collections", "types")
"""Modules of the standard library whose objects (namespaces and the like) hold what users put there."""
OF_TORCH = ("torch", "torch_npu", "triton", "filelock", "fsspec", "jinja2", "mpmath", "networkx", "sympy", "typing_extensions")
"""PyTorch and what it calls itself."""
NOT_OF_USERS = frozenset((*sys.stdlib_module_names, *OF_TORCH, "numpy", "msctx")) - {*HOLDERS}
LINKS = ("__self__", "__func__", "__wrapped__", "func", "args", "keywords", "fget", "fset")
"""Where methods, partial functions, caches and properties hold what they call."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
LEAVES = (*PLAIN, torch.Tensor, numpy.ndarray, numpy.generic)
BACKWARD = torch.autograd.backward.__code__
HOOKS_OF_TENSORS = (torch.Tensor.register_hook.__code__, torch.Tensor.register_post_accumulate_grad_hook.__code__)
HOOKED = ("register_hook", "register_prehook")
"""Of the nodes of a graph: functions in C."""
COMPILED = "it calls compiled code"
PAST_VERSIONS = {"data", "numpy", "from_numpy", "frombuffer", "untyped_storage", "data_ptr", "batch_norm", "instance_norm"}
"""Names by which tensors are written to that do not notice it."""
SEEDS = {"manual_seed", "manual_seed_all", "seed", "set_state", "set_rng_state", "fork_rng", "default_generator"}
"""Names by which torch's random numbers may begin anew: afterwards their state may be what it was before."""
REGISTERS = "it registers hooks for the backward pass, which would run twice"
TRANSFORM = doesnt_support_saved_tensors_hooks(len).__code__
"""Around each of torch.func's transforms: they do not begin where there are hooks on saved tensors."""
SPECIAL = re.compile(r"\.__(?!dict__|defaults__|kwdefaults__)")
"""Of classes, whose attributes of such names hardly change; functions keep counters and caches in theirs."""
ABSENT = object()
Hooks = tuple[Callable[..., Any], Callable[..., Any]]
Content = dict[Any, Any]
"""What an object holds, by its name or place there."""


def _stop_collection() -> Callable[[], None]:
    was_on = gc.isenabled()
    gc.disable()
    return gc.enable if was_on else lambda: None


_no_collection = Held(_stop_collection)
"""Finalizers and callbacks of Python's collector of garbage are no part of a block."""


class _Unknown(Exception):
    """Why it cannot be known what a block changes."""


class Lasting:
    """What a block reached in a pass that was looked at and may reach again: compared when it is computed again."""

    def __init__(self, kept: Iterable[tuple[str, Callable[[], Content]]], by_bits: bool) -> None:
        """*by_bits*: tensors may be written to past their version counters."""
        own = ((path, read) for path, read in kept if not path.endswith(OF_MODULES))
        self._kept = [(path, cheap) for path, read in own if (cheap := _cheap(read, by_bits)) is not None]

    def now(self) -> list[Content]:
        return [read() for _, read in self._kept]

    def changed(self, before: list[Content]) -> str:
        """The first place where something else stands than *before*."""
        found = (_difference(path, was, read()) for (path, read), was in zip(self._kept, before, strict=True))
        return next(filter(None, found), "")


class Look:
    """While it is entered, what this thread's forward pass of a block changes; :attr:`obstacle` names what must not change twice.

    The block's modules may bind their attributes to other objects, and change their buffers.
    """

    def __init__(self, block: nn.Module, inputs: tuple[Any, dict[str, Any]], below: Hooks | None) -> None:
        """*below*: torch's hooks on saved tensors that are not ours."""
        self.obstacle = ""
        self._block, self._below, self._popped = block, below, list[Hooks]()
        self._transforms = 0
        self._kept: list[tuple[str, Callable[[], Content], Content]] = []
        modules = dict(block.named_modules())
        self._seen = {id(value): value for value in (*modules.values(), *owned(block, inputs))}
        self._next: list[tuple[Any, str]] = []
        self._classes: dict[type, set[str]] = {}
        """Classes that were met → their attributes that are kept: those that code names."""
        self._ran: dict[tuple[int, int], CodeType] = {}
        """The functions that were called, with their global variables."""
        self._heard: set[FunctionType] = set()
        """Methods whose names were met."""
        self._named: dict[int, set[str]] = {}
        """Of the global variables of a module: those that are kept."""
        self._modules = {*sys.modules}
        self._names = {"forward"}
        self.draws = self.seeds = self.past_versions = False
        """Whether Python's or NumPy's random numbers are reached; whether code names ways to seed torch's, and ways to write to
        tensors that do not notice it."""
        self._is_one_of_several = communication.is_one_of_several()
        self._look(partial(self._meet_block, modules, inputs))

    def _meet_block(self, modules: dict[str, nn.Module], inputs: tuple[Any, dict[str, Any]]) -> None:
        self._add([*inputs[0]], "args")
        self._add(inputs[1], "kwargs")
        for path, module in modules.items():
            for name, value in vars(module).items():
                if name not in ("_buffers", "_compiled_call_impl"):
                    self._add(value, f"self.{path}.{name}".replace("..", "."))
            self._meet_class(type(module))

    def __enter__(self) -> None:
        _no_collection.want(1)
        sys.setprofile(self._profile)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        _no_collection.release(1)
        if not self.obstacle:
            self._look(self._compare)

    def _compare(self) -> None:
        for path, read, before in self._kept:
            if what := _difference(path, before, read()):
                raise _Unknown(f"it changes {what}")

    def lasting(self) -> Lasting:
        """What was reached beside the arguments: later passes are not looked at, but may not change it, either."""
        now = Look(self._block, ((), {}), self._below)  # the pass may have made some of it
        seen = {path for path, _, _ in self._kept}
        kept = [*self._kept, *(each for each in now._kept if each[0] not in seen)]
        there = ((path, read) for path, read, _ in kept if not SPECIAL.search(path) and not _is_argument(path, read))
        return Lasting(there, self.past_versions)

    def received(self) -> Lasting | None:
        """What the objects among the arguments hold, which whoever calls the block may change before the backward pass."""
        kept = [(path, read) for path, read, _ in self._kept if _is_argument(path, read)]
        return Lasting(kept, by_bits=False) if any(_is_object(read) for _, read in kept) else None

    def _profile(self, frame: FrameType, event: str, what: Any) -> None:
        if frame.f_code is TRANSFORM and event in ("call", "return"):
            self._transforms += 1 if event == "call" else -1
            if event == "call" and self._transforms == 1:
                self.obstacle = self.obstacle or "it calls transforms of torch.func, which allow no hooks on saved tensors"
                while (hooks := _C._autograd._top_saved_tensors_default_hooks(True)) != self._below:
                    self._popped.append(hooks)
                    _C._autograd._pop_saved_tensors_default_hooks()
            while event == "return" and not self._transforms and self._popped:
                _C._autograd._push_saved_tensors_default_hooks(*self._popped.pop())
        elif event == "call" and not self.obstacle:
            self._look(partial(self._called, frame.f_code, frame.f_globals))
            if self.obstacle == COMPILED:  # or what follows would be compiled, too
                sys.setprofile(None)
        elif event == "c_call" and not self.obstacle:
            self.draws = self.draws or _draws(what)
            self.seeds = self.seeds or (
                getattr(what, "__name__", "") in SEEDS and isinstance(getattr(what, "__self__", None), torch.Generator)
            )
            if self._is_one_of_several and communication.is_message(what):
                self.obstacle = communication.REASON
            if getattr(what, "__name__", "") in HOOKED:
                self.obstacle = REGISTERS

    def _called(self, code: CodeType, space: dict[str, Any]) -> None:
        """A function is about to run: what it names is kept as it is now."""
        if (id(code), id(space)) in self._ran:
            return
        if code is BACKWARD:
            raise _Unknown("it calls backward() in its forward pass, which adds to gradients each time")
        if code in HOOKS_OF_TENSORS:
            raise _Unknown(REGISTERS)
        if code.co_name == "compile_wrapper" and space.get("__name__") == "torch._dynamo.eval_frame":
            raise _Unknown(COMPILED)
        self._ran[id(code), id(space)] = code
        module = space.get("__name__")
        self.seeds = self.seeds or (module == "torch.random" and code.co_name in SEEDS)
        if self._is_one_of_several and communication.runs(module, code):
            raise _Unknown(communication.REASON)
        is_new = module in sys.modules and module not in self._modules  # imported since
        if is_new or _is_of_library(module):
            return
        names = _names_in(code)
        self._names |= names
        self._hear_of(names, space)
        for kind in [*self._classes]:
            self._look_at_class(kind)
        spaces = [space]
        for each in spaces:  # which grows
            known = self._named.setdefault(id(each), set())
            self._keep(str(each.get("__name__")), partial(_named, each, sorted(names - known)))
            known |= names
            imported = [module for name in names if name in self._modules and (module := sys.modules.get(name)) is not None]
            for value in [*(each[name] for name in names if isinstance(each.get(name), ModuleType)), *imported]:
                if not _is_of_library(value.__name__) and all(vars(value) is not other for other in spaces):
                    spaces.append(vars(value))

    def _hear_of(self, names: set[str], space: dict[str, Any]) -> None:
        """What code names that runs; and the methods that it names, which a later pass may run."""
        if self._is_one_of_several and communication.is_named(names, space):
            raise _Unknown(communication.REASON)
        self.draws = self.draws or "random" in names or any(_draws(space.get(name)) for name in names)
        self.seeds = self.seeds or not names.isdisjoint(SEEDS)
        self.past_versions = self.past_versions or not names.isdisjoint(PAST_VERSIONS)
        methods = [vars(kind)[name] for kind in self._classes for name in names & vars(kind).keys()]
        for method in methods:
            if isinstance(method, FunctionType) and method not in self._heard:
                self._heard.add(method)
                self._hear_of(_names_in(method.__code__), method.__globals__)

    def _look(self, meet: Callable[[], None]) -> None:
        """Into what is met, and all that it reaches, unless the block must be left alone anyhow."""
        with uninterrupted():  # what a signal's handler raises is no obstacle
            try:
                meet()
                while self._next:
                    self._look_at(*self._next.pop())
            except _Unknown as reason:
                self.obstacle = str(reason)
            except Exception as error:  # of a class of the user's; or another thread changes what is looked at
                self.obstacle = f"what it reaches cannot be compared: {named(error)}"

    def _look_at(self, value: Any, path: str) -> None:
        if isinstance(value, type):
            self._meet_class(value)
            return
        if isinstance(value, Iterator) and _is_library(type(value)):
            raise _Unknown(f"it reaches an iterator, whose state cannot be compared: {path} ({type(value).__qualname__})")
        self._keep(path, partial(_content, value))
        self._meet_class(type(value))

    def _keep(self, path: str, read: Callable[[], Content]) -> None:
        content = read()
        self._kept.append((path, read, content))
        if len(content) > MOST:
            raise _Unknown(f"it reaches more objects than are looked at: {path}")
        for key, value in content.items():
            self._add(value, path, key)

    def _add(self, value: Any, path: str, key: Any = "") -> None:
        self.draws = self.draws or any(value is generator for generator in OF_LIBRARIES)
        if type(value) in PLAIN or id(value) in self._seen or isinstance(value, ModuleType) or value is ABSENT:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MOST or _size(value) > MOST_BYTES:
            raise _Unknown(f"it reaches more objects than are looked at: {_join(path, key)}")
        self._next.append((value, _join(path, key)))

    def _meet_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base not in self._classes and not _is_library(base):
                self._classes[base] = set()
                self._look_at_class(base)

    def _look_at_class(self, kind: type) -> None:
        special = {name for name in vars(kind) if name.startswith("__")}
        if names := (self._names | special) - self._classes[kind]:
            self._classes[kind] |= names
            self._keep(kind.__qualname__, partial(_named, vars(kind), sorted(names)))


def _draws(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value in (random, numpy.random)
    owner = getattr(value, "__self__", None)
    return any(owner is generator for generator in OF_LIBRARIES)


# --- what an object holds ---------------------------------------------------------------------------------------------


def _content(value: Any) -> Content:
    """To be compared: values of plain types, and objects by what they are."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return {"": repr(fingerprint(value)), **_of_tensor(value)}
    if isinstance(value, GENERATORS):
        return {"": pickle.dumps(source_of(value).read())}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held = {f".{name}": cell for name, cell in cells if name != "__class__"}  # of super()
        return {".__defaults__": value.__defaults__, ".__kwdefaults__": value.__kwdefaults__, ".__dict__": vars(value), **held}
    held = _items(value)
    if not _is_library(kind) or isinstance(value, nn.Module | local):
        held |= {f".{name}": attribute for name, attribute in getattr(value, "__dict__", {}).items()}
        slots = [name for each in kind.__mro__ for name, it in vars(each).items() if isinstance(it, MemberDescriptorType)]
        held |= {f".{name}": getattr(value, name) for name in slots if hasattr(value, name)}
    elif kind not in (dict, list, tuple, set):
        held |= {f".{name}": getattr(value, name) for name in LINKS if hasattr(value, name)}
    return held


def _is_argument(path: str, read: Callable[[], Content]) -> bool:
    of_module = isinstance(read, partial) and read.func is _named  # one that has such a name
    return path.startswith(("args[", "kwargs[")) or (path in ("args", "kwargs") and not of_module)


def _is_object(read: Callable[[], Content]) -> bool:
    value = read.args[0] if isinstance(read, partial) else None
    return hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, nn.Module, FunctionType, type))


def _cheap(read: Callable[[], Content], by_bits: bool) -> Callable[[], Content] | None:
    """What can be read in each pass: of a tensor, which is not kept alive, that it was written to. ``None``: it hardly changes."""
    if not isinstance(read, partial):
        return read
    value: Any = read.args[0]
    if read.func is _named:
        fixed = (FunctionType, type, ModuleType, nn.Module)
        of_module = isinstance(value, dict)  # in a class, most of what code names is absent
        names = [name for name, it in read().items() if not isinstance(it, fixed) and (of_module or it is not ABSENT)]
        return (
            partial(_named, value, [name.removeprefix(".") for name in names if not name.startswith(".__")]) if names else None
        )
    if isinstance(value, torch.Tensor):
        tensor, look = ref(value), _content if by_bits else _of_tensor
        return lambda: {} if (it := tensor()) is None else look(it)
    if isinstance(value, (dict, list, set, deque)) and len(value) > MANY:
        return lambda: {"": len(value)}
    if isinstance(value, (dict, list, set, deque)) and not all(isinstance(each, LEAVES) for each in read().values()):
        return None  # it may lead back to the block, which what is kept of it must not keep alive
    if hasattr(value, "__weakref__") and not isinstance(value, (dict, list, set, deque)):
        reference = ref(value)
        return lambda: {} if (it := reference()) is None else _content(it)
    never = isinstance(value, (tuple, frozenset, FunctionType, nn.Module)) or _size(value) > MOST_EACH_PASS
    return None if never or (not read() and isinstance(value, OrderedDict)) else read  # the tables of modules


def hooks_of(tensor: torch.Tensor) -> int:
    """How many it has for the backward pass."""
    return len(tensor._backward_hooks or ()) + len(getattr(tensor, "_post_accumulate_grad_hooks", None) or ())


def _of_tensor(tensor: torch.Tensor) -> Content:
    """What belongs to it beside its bits."""
    attributes = {f".{name}": value for name, value in vars(tensor).items()}
    attributes["._version"] = -1 if tensor.is_inference() else tensor._version
    attributes[".hooks"] = hooks_of(tensor)
    return {".requires_grad": tensor.requires_grad, ".grad": tensor.grad if tensor.is_leaf else None, **attributes}


def _items(value: Any) -> Content:
    held: Any = value  # read as these classes hold it: a subclass may do anything when it is asked
    if isinstance(value, dict):
        return dict(dict.items(held))
    kind: Any
    for kind in (list, tuple, deque, set, frozenset):
        if isinstance(value, kind):
            items = kind.__iter__(held)
            return {item: item for item in items} if kind in (set, frozenset) else dict(enumerate(items))
    if isinstance(value, ref):
        return {"": value()}
    if isinstance(value, CellType):
        try:
            return {"": value.cell_contents}
        except ValueError:  # not assigned yet
            return {}
    if isinstance(value, numpy.ndarray):
        objects = enumerate(value.flat) if value.dtype.hasobject else ()
        return {**dict(objects), "": value.tobytes()}
    try:  # arrays, memory of ctypes and mmap
        with memoryview(value) as view:
            return {} if view.readonly else {"": view.tobytes()}
    except (TypeError, ValueError, BufferError):
        return {}


def _size(value: Any) -> int:
    try:
        return 0 if isinstance(value, torch.Tensor) else memoryview(value).nbytes
    except (TypeError, ValueError, BufferError):
        return 0


def _named(space: Any, names: Iterable[str]) -> Content:
    return {f".{name}": space.get(name, ABSENT) for name in names}


def _difference(path: str, before: Content, now: Content) -> str:
    """The first place where other objects stand."""
    if [*before] != [*now]:
        key = next((key for key in (*now, *before) if key not in before or key not in now), "")
        return _join(path, key)
    return next((_join(path, key) for key, value in before.items() if not _is_one(value, now[key])), "")


def _is_one(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and bool(one == other))


def _join(path: str, key: Any) -> str:
    """As Python writes it."""
    if isinstance(key, str) and (not key or key.startswith(".")):
        return path + key
    return f"{path}[{key!r}]" if type(key) in PLAIN else f"{path}[{type(key).__qualname__}]"


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
