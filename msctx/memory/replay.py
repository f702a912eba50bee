"""A forward pass again as it was: with the parameters, buffers, modes and random numbers that it had."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as nn_module
from torch.utils._pytree import tree_leaves

from msctx.memory.fingerprints import Fingerprint, Fingerprints, Kind, fingerprint, kind_of
from msctx.memory.saved import span
from msctx.memory.sources import Draws, Source
from msctx.memory.writes import OF_ALL_MODULES, CannotBePutBack, Objects, Tensors
from msctx.native import memory

Part = tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]
"""A module, its attributes (whether it trains is one), its parameters and buffers. ``Any``: the tables are taken by number, too."""
PARAMETERS, BUFFERS = KINDS = 2, 3
"""Where they are in a part."""
TABLES = ("_parameters", "_buffers", "_modules")
Name = tuple[int, int, str]
"""Of a parameter or buffer: the number of its part, which of the two, its name there."""


class State:
    """What a block's forward pass depends on beside its inputs, when it is made; a context in which that holds again.

    Buffers that the block writes to are *changing*: they are copied, and each time computed with a fresh copy. torch's random
    numbers are the checkpoint's affair; those of *sources* are kept.
    """

    def __init__(self, path: str, block: nn.Module, known: Rehearsal, sources: list[Source]) -> None:
        self._then = _parts(block)
        changing = known.changing
        self._names = sorted(changing)
        self._values = _copies(self._present())
        self._versions = [
            (value, value._version)
            for number, part in enumerate(self._then)
            for kind in KINDS
            for name, value in part[kind].items()
            if value is not None and (number, kind, name) not in changing and not value.is_inference()
        ]
        self._sources = sources
        self._numbers = [source.read() for source in sources]
        self._block, self._path = block, path
        self._now: list[tuple[list[Part], list[Any], AbstractContextManager[None], list[Any]]] = []
        constant = (value for value, _ in self._versions if value.layout is torch.strided)
        self.fingerprints = Fingerprints(path, {value.untyped_storage()._cdata for value in constant}, known.unset)

    def _present(self) -> list[torch.Tensor]:
        return [self._then[number][kind][name] for number, kind, name in self._names]

    def __enter__(self) -> None:
        for tensor, version in self._versions:
            if tensor._version != version:
                raise RuntimeError(
                    "a parameter or buffer of a block whose forward pass is to be computed again (memory_optimize_level=O1) has been "
                    f"modified by an inplace operation since: it is at version {tensor._version}, expected version {version}"
                )
        comparing = self.fingerprints.comparing()
        gradients = [(parameter, parameter.grad, _version(parameter.grad)) for parameter in self._block.parameters()]
        self._now.append((_parts(self._block), [source.read() for source in self._sources], comparing, gradients))
        for (number, kind, name), value in zip(self._names, _copies(self._values), strict=True):
            self._then[number][kind][name] = value
        self._install(self._then, self._numbers)
        comparing.__enter__()

    def __exit__(self, *error: Any) -> None:
        parts, numbers, comparing, gradients = self._now.pop()
        self._install(parts, numbers)
        comparing.__exit__(*error)
        if any(parameter.grad is not grad or _version(grad) != version for parameter, grad, version in gradients):
            raise RuntimeError(
                f"memory_optimize_level=O1: the forward pass of block {self._path!r} changes gradients, and has now done so twice, "
                "since it is computed again for the backward pass. Leave the block out: ctx.watch() the other parts of the model"
            )

    def _install(self, parts: list[Part], numbers: list[Any]) -> None:
        for module, attributes, parameters, buffers in parts:
            _become(module.__dict__, attributes)
            _become(module._parameters, parameters)
            _become(module._buffers, buffers)
        for source, state in zip(self._sources, numbers, strict=True):
            source.write(state)


class Trial:
    """While it is entered, a copy of a block to be tried, with copies of its inputs, parameters and buffers: the block itself, which
    other threads may call meanwhile, is not touched. On leaving, what it has changed elsewhere is as it was.
    """

    def __init__(self, block: nn.Module, inputs: Any, *, keeps: bool = False) -> None:
        """*keeps*: what is saved for a backward pass is there, at the cost of the memory that O1 is to save."""
        originals = _parts(block)
        self._names = [
            (number, kind, name)
            for number, part in enumerate(originals)
            for kind in KINDS
            for name, value in part[kind].items()
            if value is not None
        ]
        self._values = [originals[number][kind][name] for number, kind, name in self._names]
        self._copies = _copies(self._values)
        known: dict[int, Any] = {id(value): copy for value, copy in zip(self._values, self._copies, strict=True)}
        self._modules: list[nn.Module] = [_twin(part[0], known) for part in originals]
        self._children = [[*module._modules.items()] for module in self._modules]
        for value, copy in zip(self._values, self._copies, strict=True):
            if value.is_leaf and value.grad is not None:
                copy.grad = value.grad.detach().clone()
        self._versions = [copy._version for copy in self._copies]
        self._given = _copied(inputs)
        self.block, self.inputs = self._modules[0], own_containers(self._given)
        tensors = [value for value in tree_leaves(self._given) if isinstance(value, torch.Tensor)]
        self._draws = Draws(block, inputs)
        self._objects = Objects(self.block, inputs, self._draws)
        self._tensors = Tensors([*self._copies, *tensors], self._draws)
        self._stack = ExitStack()
        self.saved: list[tuple[Kind, Fingerprint | None]] = []
        """What it has saved for a backward pass."""
        self._hooks = _looking(self.saved, keeps=keeps)
        self.changing: set[Name] = set()
        """The buffers that it has written to."""
        self.draws = False
        """Whether it has drawn random numbers beside torch's."""
        self.obstacle = ""

    def __enter__(self) -> Trial:
        with ExitStack() as stack:
            for one in (_rehearsing(), _same_numbers(tree_leaves(self.inputs)), self._objects, self._tensors, self._hooks):
                stack.enter_context(one)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._draws.put_back()
        self.draws = self._draws.from_own
        self._stack.__exit__(*error)
        changed = self._changed()
        self.changing = {name for name in changed if name[1] == BUFFERS}
        if self.changing != changed:
            self.obstacle = "it writes to its parameters"
        elif other := self._changed_otherwise():
            self.obstacle = other
        elif self._tensors.wrote:
            self.obstacle = "it writes to tensors that are not its own"
        elif self._objects.changed:
            self.obstacle = f"it changes Python objects that stay: {self._objects.changed}"
        elif self._draws.from_others:
            self.obstacle = "it draws from a generator that is neither an attribute of its modules nor an input"
        else:
            self.obstacle = _changed(self._given, self.inputs)

    def _changed(self) -> set[Name]:
        """What is no longer what it was (BatchNorm's averages change without a version counter)."""
        found: set[Name] = set()
        for name, value, copy, version in zip(self._names, self._values, self._copies, self._versions, strict=True):
            module = self._modules[name[0]]
            now = (module._parameters if name[1] == PARAMETERS else module._buffers).get(name[2])
            if now is not copy or copy._version != version or not _is_same(copy, value):
                found.add(name)
        return found

    def _changed_otherwise(self) -> str:
        """What else it has done to its modules and their parameters."""
        if any([*module._modules.items()] != found for module, found in zip(self._modules, self._children, strict=True)):
            return "it exchanges its modules"
        for value, copy in zip(self._values, self._copies, strict=True):
            if copy.requires_grad != value.requires_grad:
                return "it changes which of its parameters are trained"
            if value.is_leaf and not (copy.grad is value.grad is None or _is_same(value.grad, copy.grad)):
                return "it changes gradients"
        return ""


def _twin(value: Any, known: dict[int, Any]) -> Any:
    """A module with all that is below it, or what hangs on its attributes; *known*: id → what is there in its place."""
    if id(value) in known:
        return known[id(value)]
    twin = value
    if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
        if "_orig_mod" in value._modules:  # a compiled module: what it calls is bound to the one it was made of
            return _twin(value._modules["_orig_mod"], known)
        twin = known[id(value)] = type(value).__new__(type(value))
        for name, attribute in vars(value).items():
            # Tables of hooks stay: a hook is removed from them by its handle
            vars(twin)[name] = _twin(attribute, known) if name in TABLES or name not in OF_ALL_MODULES else attribute
        vars(twin)["_compiled_call_impl"] = None
    elif isinstance(value, MethodType):
        twin = MethodType(value.__func__, _twin(value.__self__, known))
    elif type(value) is partial:
        twin = partial(value.func, *_twin(value.args, known), **_twin(value.keywords, known))
    elif type(value) in (list, set, tuple, deque):
        items = [_twin(item, known) for item in value]
        twin = deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
    elif type(value) in (dict, OrderedDict):
        twin = type(value)((key, _twin(item, known)) for key, item in value.items())
    known[id(value)] = twin
    return twin


def _version(gradient: torch.Tensor | None) -> int:
    return -1 if gradient is None else gradient._version


def _parts(block: nn.Module) -> list[Part]:
    return [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in block.modules()]


def _become(present: dict[str, Any], wanted: dict[str, Any]) -> None:
    if present.keys() != wanted.keys():
        present.clear()
    present.update(wanted)


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of the same kinds; those that share memory do so in the copies, too."""
    spans: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        if _is_plain(tensor):
            number, (begin, count) = tensor.untyped_storage()._cdata, span(tensor)
            least, end = spans.get(number, (begin, 0))
            spans[number] = min(least, begin), max(end, begin + count)
    memories: dict[int, torch.UntypedStorage] = {}
    made = []
    for tensor in tensors:
        if not _is_plain(tensor):
            copy = tensor.detach().clone()
        else:
            storage = tensor.untyped_storage()
            begin, end = spans[storage._cdata]
            if storage._cdata not in memories:
                there = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, begin, (end - begin,), (1,))
                memories[storage._cdata] = there.clone().untyped_storage()
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            offset = tensor.storage_offset() - begin // tensor.itemsize
            copy = empty.set_(memories[storage._cdata], offset, tensor.shape, tensor.stride())
        if isinstance(tensor, nn.Parameter):
            copy = torch.Tensor._make_subclass(type(tensor), copy, tensor.requires_grad)
            copy.__dict__.update(tensor.__dict__)
        else:
            copy.requires_grad_(tensor.requires_grad)
        made.append(copy)
    return made


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = type(tensor) is torch.Tensor or isinstance(tensor, nn.Parameter)
    if (
        not kind
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return False
    begin, count = span(tensor)
    return begin + count <= tensor.untyped_storage().nbytes()


def own_containers(value: Any) -> Any:
    """The same with lists and dictionaries of its own: what is given may change after the call."""
    if type(value) in (list, tuple):
        return type(value)(own_containers(item) for item in value)
    if type(value) is dict:
        return {key: own_containers(item) for key, item in value.items()}
    return value


FILLED = 0, 0xA5
"""With what new memory is filled in the first trial of a block and in the second: what it does not set differs."""


class Rehearsal:
    """A block's forward pass twice, with copies of its inputs, parameters and buffers: it shows what the block writes to, and whether
    it computes the same again. What it has written elsewhere is taken back.
    """

    def __init__(self, call: Callable[..., Any], block: nn.Module, args: Any, kwargs: Any) -> None:
        self.obstacle = ""
        self.changing: set[Name] = set()
        """The buffers that the block writes to."""
        self.draws = False
        """Whether it draws random numbers beside torch's."""
        self.unset: set[Kind] = set()
        """What it saves with other bits each time (nobody reads them: its results are the same)."""
        results: list[list[Any]] = []
        saved: list[list[tuple[Kind, Fingerprint | None]]] = []
        for byte in FILLED:
            try:
                with memory.filled(byte):
                    try:
                        trial = self._try(results, call, block, args, kwargs)
                    except _Gone:  # it has a backward pass inside
                        trial = self._try(results, call, block, args, kwargs, keeps=True)
            except CannotBePutBack as reason:
                self.obstacle = str(reason)
                return
            except Exception as error:  # the real call raises it, too, or does not mind
                self.obstacle = f"trying it fails: {type(error).__name__}: {error}"
                return
            self.changing, self.draws, self.obstacle = trial.changing, trial.draws, trial.obstacle
            saved.append(trial.saved)
            del trial  # with its copies
            if self.obstacle:
                return
        if not _are_same(*results):
            self.obstacle = "computing it again gives other results"
        self.unset = {kind for (kind, one), (_, other) in zip(*saved, strict=False) if one != other}

    def _try(
        self, results: list[Any], call: Callable[..., Any], block: nn.Module, args: Any, kwargs: Any, *, keeps: bool = False
    ) -> Trial:
        with Trial(block, (args, kwargs), keeps=keeps) as trial:
            made = call(trial.block, *trial.inputs[0], **trial.inputs[1])
            results.append([_detached(value) for value in tree_leaves(made)])
        return trial


def _looking(saved: list[tuple[Kind, Fingerprint | None]], *, keeps: bool) -> saved_tensors_hooks:
    """Hooks that note what is saved. They hold nothing else: a graph holds its hooks, and a block may hold a graph."""

    def see(tensor: torch.Tensor) -> torch.Tensor | None:
        saved.append((kind_of(tensor), fingerprint(tensor)))
        return tensor.detach() if keeps else None  # itself: a circle, where it is the result of what saves it

    return saved_tensors_hooks(see, (lambda kept: kept) if keeps else is_gone)


class _Gone(RuntimeError):
    """A trial does not keep what is saved for a backward pass."""


def is_gone(_: Any) -> torch.Tensor:
    raise _Gone


class _Thread(threading.local):
    is_rehearsing = False


_thread = _Thread()


def is_rehearsing() -> bool:
    """Whether what runs now in this thread is only tried."""
    return _thread.is_rehearsing


@contextmanager
def _rehearsing() -> Iterator[None]:
    _thread.is_rehearsing = True
    try:
        yield
    finally:
        _thread.is_rehearsing = False


def hook_of_user(block: nn.Module) -> bool:
    """Whether calls of its modules run something that was not made to run again: a hook that is not torch's or ours."""
    tables = [table for module in block.modules() for table in (module._forward_pre_hooks, module._forward_hooks)]
    of_all_modules = (nn_module._global_forward_pre_hooks, nn_module._global_forward_hooks)
    return any(not _is_made_to_run_again(hook) for table in (*tables, *of_all_modules) for hook in table.values())


def _is_made_to_run_again(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return (getattr(hook, "__module__", None) or "").partition(".")[0] in ("torch", "torch_npu", "msctx")


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) not in (torch.Tensor, nn.Parameter):
        return value
    # No leaf: what a block writes to its input may be allowed there
    return value.detach().requires_grad_(value.requires_grad).clone()


def _changed(given: Any, own: Any) -> str:
    """What a call has done to what it was given."""
    if any(isinstance(value, torch.Tensor) and value._version for value in tree_leaves(given)):
        return "it writes to its inputs"
    if [id(value) for value in tree_leaves(given)] != [id(value) for value in tree_leaves(own)]:
        return "it changes a list or dictionary that it is given"
    return ""


def _same_numbers(leaves: list[Any]) -> Any:
    """torch's random numbers as they are now, and again afterwards."""
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")
    return torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind)


def _are_same(one: Any, other: Any) -> bool:
    """To the bit on a CPU; on an accelerator, some of whose operators add in no fixed order, nearly."""
    first, second = tree_leaves(one), tree_leaves(other)
    return len(first) == len(second) and all(
        _is_same(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor)
    )


def _is_same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.layout is not torch.strided or a.is_meta:
        return True
    if a.device.type == "cpu":
        return torch.equal(a, b) or bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
