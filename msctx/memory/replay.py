"""A forward pass of a block again as it was: what was saved for the backward pass is saved again, to the bit, or an error is raised.

The graph stays that of the first pass: of the second one, the backward pass takes nothing but what is saved.
"""

from __future__ import annotations

import copy
import operator
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import _C, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as nn_module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import _infer_device_type, checkpoint, get_device_states, set_device_states

from msctx.memory import saved
from msctx.memory.fingerprints import Fingerprint, fingerprint
from msctx.memory.look import MANY, OF_MODULES, Hooks, Lasting, Look, hooks_of
from msctx.memory.sources import Source, owned, source_of
from msctx.native import memory

Name = tuple[int, str]
"""Of a buffer: the number of its module in the block, its name there."""
Kind = tuple[torch.dtype, int]
"""Of a tensor: its dtype, its number of dimensions."""
LOOKS = 2
"""How often a block is looked at that cannot be computed again: its first call may make what all others find."""
RECEIVED = "an object that it receives is changed before its backward pass: {}"
NESTED = "it computes with nested tensors"
SMALL = 1 << 16
"""Bytes of a buffer that is copied in each pass."""
MOST_LEAVES = 10_000
FILLED = 0, 0xA5
"""With what new memory is filled in the first pass of a block and when that is tried again: what it does not set differs."""
Call = Callable[..., Any]
"""``nn.Module.__call__`` as it was found, or what stands for it."""


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


class RecomputationError(RuntimeError):
    """A block's forward pass cannot be computed again as it was."""


class State:
    """What a block's forward pass depends on beside its inputs, when it is made: but torch's random numbers, which checkpoint has."""

    def __init__(self, path: str, block: nn.Module, inputs: Any, known: Known | None) -> None:
        """*known*: ``None`` when it is not known yet what the block changes."""
        self._path, self._block = path, block
        self._parts: list[Part] = [
            (module, _without_graphs(held), own, _without_graphs(buffers)) for module, held, own, buffers in _parts(block)
        ]
        self._of_parameters = {p.untyped_storage()._cdata for p in block.parameters() if p.layout is torch.strided}
        self._lasting = known.lasting if known else None
        self._sources = [source_of(generator) for generator in owned(block, inputs)]
        self._numbers = [source.read() for source in self._sources]
        self._unused: list[Source] = []
        tensors = {
            (number, name): value
            for number, (_, _, *tables) in enumerate(self._parts)
            for table in tables
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

    def end(self) -> None:
        """The first pass is done: generators that it did not use are left alone, since other threads may use them meanwhile."""
        used = [_bits(source.read()) != _bits(it) for source, it in zip(self._sources, self._numbers, strict=True)]
        self._unused = [source for source, is_used in zip(self._sources, used, strict=True) if not is_used]
        self._numbers = [number for number, is_used in zip(self._numbers, used, strict=True) if is_used]
        self._sources = [source for source, is_used in zip(self._sources, used, strict=True) if is_used]

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
            if any(parameter.grad is not grad or _version(grad) != version for parameter, grad, version in gradients):
                changed = "gradients"
            if hooks != [hooks_of(tensor) for tensor in inputs]:
                changed = "hooks of its inputs"
            if changed:
                raise RecomputationError(
                    f"memory_optimize_level=O1: the forward pass of block {self._path!r} changes {changed}, and has now done so "
                    "twice, since it is computed again for the backward pass. Leave the block out: ctx.watch() the other parts of "
                    "the model"
                )

    def _install(self, parts: list[Part], numbers: list[Any]) -> None:
        for module, *tables in parts:
            now: list[Any] = [module.__dict__, module._parameters, module._buffers]
            for present, wanted in zip(now, tables, strict=True):
                if present.keys() != wanted.keys():
                    present.clear()
                present.update(wanted)
        for source, state in zip(self._sources, numbers, strict=True):
            source.write(state)


Table = dict[str, Any]
Part = tuple[nn.Module, Table, Table, Table]
"""A module, its attributes (whether it trains is one), its parameters and buffers."""


def _parts(block: nn.Module) -> list[Part]:
    return [(m, dict(vars(m)), dict(m._parameters), dict(m._buffers)) for m in block.modules()]


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


# --- what is saved ----------------------------------------------------------------------------------------------------


class Constant(NamedTuple):
    """Of a tensor that is the same in both passes, a parameter say: which it is."""

    storage: int
    offset: int | torch.SymInt
    shape: torch.Size
    stride: tuple[int, ...]


def _nothing() -> None:
    pass


class _Held:
    """What is saved while a block is looked at: itself, until it is known whether it can be computed again."""

    __slots__ = ("before", "packed", "unpack")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.before: Callable[[], None] = _nothing
        """Called before it is used."""
        self.packed: Any = saved.keep(tensor)
        self.unpack: Callable[[Any], Any] = saved.unpack

    def tensor(self) -> torch.Tensor:
        self.before()
        tensor: torch.Tensor = self.unpack(self.packed)
        return tensor


class Saves:
    """What a block's forward pass saves for the backward pass, in order: checksums, and of what is the same in both passes (its
    parameters) which it is. Other tensors of accelerators are not compared, since some of their operators add in no fixed order.
    """

    def __init__(self, path: str, constant: set[int], known: Known | None) -> None:
        self._path, self._constant, self._holds = path, constant, known is None
        self.unset = {*known.unset} if known is not None else set[Kind]()
        self.nested = False
        """Whether some of it is a nested tensor: each time, torch makes its shape of other symbols."""
        self._first: list[Fingerprint | Constant | None] = []
        self._held: list[tuple[_Held, Any, Callable[[Any], Any]]] = []
        """With what the checkpoint holds in their places. Nothing here may lead to the graph for longer: it could never be freed."""

    @contextmanager
    def saving(self) -> Iterator[None]:
        pack, unpack = _C._autograd._top_saved_tensors_default_hooks(True)
        held = self._held  # a graph holds its hooks: they hold little else

        def save(tensor: torch.Tensor) -> Any:
            self.nested |= tensor.is_nested
            self._first.append(self._of(tensor))
            packed = pack(tensor)
            if not self._holds:
                return packed
            held.append((_Held(tensor), packed, unpack))
            return held[-1][0]

        with saved_tensors_hooks(save, lambda packed: packed.tensor() if isinstance(packed, _Held) else unpack(packed)):
            yield

    @contextmanager
    def trying(self) -> Iterator[None]:
        """The same again at once: kinds of tensors that differ are noted, and nothing is held twice."""
        first = iter([*zip(self._first, self._held, strict=True)])

        def compare(tensor: torch.Tensor) -> torch.Tensor:
            (before, (held, _, _)), now = next(first), self._of(tensor)
            if before != now:
                if isinstance(before, Constant) or isinstance(now, Constant):
                    raise RuntimeError("it computes with other parameters")
                self.unset.add(_kind(tensor))
            return held.tensor()

        with saved_tensors_hooks(compare, lambda packed: packed):
            yield
        if next(first, None) is not None:
            raise RuntimeError("less is saved for the backward pass")

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Raises what is wrong at the end, too: an ``except`` of the block's may have swallowed it."""
        first = iter([*self._first])
        pack, unpack = _C._autograd._top_saved_tensors_default_hooks(True)
        wrong: list[str] = []  # not the error, which leads to the graph

        def compare(tensor: torch.Tensor) -> Any:
            wanted = next(first, None)  # that there are more than before is checkpoint's to notice
            if wanted is not None and self._differ(wanted, self._of(tensor), tensor):
                wrong.append("gives other bits than before")
                raise self._error(wrong[0])
            return pack(tensor)

        try:
            with saved_tensors_hooks(compare, unpack):
                yield
        except (RecomputationError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise self._error(f"fails ({type(error).__name__}: {error})") from error
        if wrong:
            raise self._error(wrong[0])

    def _error(self, what: str) -> RecomputationError:
        return RecomputationError(
            f"memory_optimize_level=O1: computing block {self._path!r} again for the backward pass {what}: something that it "
            "reads was changed in between (an object's attribute, a global variable, a tensor refilled in place), or an option "
            "that it ran under (an algorithm, the threads), or its operators add in no fixed order. "
            "Change it only after backward(), call backward() inside the same with-block, or leave the block out: "
            "ctx.watch() the other parts of the model"
        )

    def _differ(self, one: Any, other: Any, tensor: torch.Tensor) -> bool:
        is_compared = isinstance(one, Constant) or isinstance(other, Constant) or _kind(tensor) not in self.unset
        return is_compared and bool(one != other)

    def let_go(self) -> None:
        """It can be computed again."""
        for held, packed, unpack in self._held:
            held.packed, held.unpack = packed, unpack
        self._held.clear()

    def keep(self, below: Hooks | None, before: Callable[[], None] | None = None) -> None:
        """It cannot, or not yet: it is held as it would be without us, by hooks that were in force before.

        *before*: called in the backward pass.
        """
        for held, _, _ in self._held:
            if below:
                held.packed, held.unpack = below[0](held.tensor()), below[1]
            held.before = before or _nothing
        self._held.clear()

    def _of(self, tensor: torch.Tensor) -> Fingerprint | Constant | None:
        if tensor.layout is torch.strided and (storage := tensor.untyped_storage()._cdata) in self._constant:
            return Constant(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.device.type != "cpu":
            return tensor.dtype, tuple(tensor.shape) if not tensor.is_nested else ()
        return None if _kind(tensor) in self.unset else fingerprint(tensor)


def _kind(tensor: torch.Tensor) -> Kind:
    return tensor.dtype, tensor.dim()


# --- a forward pass ---------------------------------------------------------------------------------------------------


class Pass:
    """A block's forward pass that is computed again in the backward pass."""

    def __init__(self, path: str, call: Call, block: nn.Module, inputs: tuple[Any, Any], known: Known | None) -> None:
        """*known*: ``None`` while it is looked at: then what is saved is held until :meth:`learn`."""
        self._call, self._block = call, block
        self._leaves, self._spec = tree_flatten(inputs)
        self._first: list[tuple[Any, AbstractContextManager[Any]]] = []
        self._inputs = [inputs]
        self._alone = nullcontext if known is not None else _alone
        self._state = State(path, block, inputs, known)
        self._saves = Saves(path, self._state.constant(), known)

    def run(self, around: AbstractContextManager[Any]) -> Any:
        """*around*: what is entered around the first computation."""
        leaves, self._leaves = self._leaves, []  # which the graph keeps as long as it needs them
        self._first = [(self._inputs.pop(), around)]
        del around  # the graph keeps what is entered again alone

        def compute(*leaves: Any) -> Any:
            if self._first:
                (args, kwargs), around = self._first.pop()
                with self._alone(), self._saves.saving(), around:
                    made = self._call(self._block, *args, **kwargs)
                self._state.end()
                return made
            args, kwargs = tree_unflatten(leaves, self._spec)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            with self._alone(), self._state.again(tensors), self._saves.comparing():
                return self._call(self._block, *args, **kwargs)

        # To the end: what stops early runs through the block as an exception, and leaves undone what the block does after it
        return checkpoint(compute, *leaves, use_reentrant=False, early_stop=False, determinism_check="none")  # Saves checks

    @classmethod
    def looked_at(
        cls, path: str, call: Call, block: nn.Module, inputs: tuple[Any, Any], looks: int, later: Callable[[Known], None]
    ) -> tuple[Any, Known]:
        """The results of a forward pass, and what it shows: where nothing is in the way, it is computed a second time at once.

        What it saves is held until then, so that it is there if it cannot be computed again; and until the backward pass where the
        block receives objects.

        Args:
            later: called with what the backward pass shows: whoever called the block has changed such an object.
        """
        below = _C._autograd._top_saved_tensors_default_hooks(True)
        look = Look(block, inputs, below)
        if look.obstacle:
            return call(block, *inputs[0], **inputs[1]), Known(looks, look.obstacle)
        numbers, leaves = _Numbers(inputs), tree_leaves(inputs)
        once = cls(path, call, block, inputs, None)
        with memory.filled(FILLED[0]):
            made = once.run(look)
        state, saves = once._state, once._saves
        received = look.received()
        changing, obstacle, lasting = state.changing(), str(look.obstacle or NESTED * saves.nested), look.lasting()
        del look  # it holds all that it has seen
        state.keep_only(changing)
        if not obstacle:
            try:
                with _alone(), memory.filled(FILLED[1]), numbers.again(), state.again(), saves.trying():
                    args, kwargs = tree_unflatten(leaves, once._spec)
                    again = call(block, *args, **kwargs)
                obstacle = "" if _are_same(made, again) else "computing it again gives other results"
            except Exception as error:
                obstacle = f"computing it again fails: {type(error).__name__}: {error}"
        if obstacle:
            saves.keep(below)
        elif received is not None:
            saves.keep(below, _Received(received, lambda changed: later(Known(LOOKS, RECEIVED.format(changed)))))
        else:
            saves.let_go()
        return made, Known(looks, obstacle, changing, frozenset(saves.unset), None if obstacle else lasting)


class _Received:
    """Called in a backward pass: whether what a block received has been changed since its forward pass."""

    def __init__(self, received: Lasting, changed: Callable[[str], None]) -> None:
        self._received, self._changed = received, changed
        self._before = received.now()

    def __call__(self) -> None:
        if changed := self._received.changed(self._before):
            self._changed(changed)


_thread = threading.local()


def is_alone() -> bool:
    """Whether a block is looked at in this thread: other watched models in it are computed as without O1, each time it is."""
    return getattr(_thread, "is_alone", False)


@contextmanager
def _alone() -> Iterator[None]:
    _thread.is_alone = True
    try:
        yield
    finally:
        _thread.is_alone = False


class _Numbers:
    """torch's random numbers as they are now."""

    def __init__(self, inputs: Any) -> None:
        self._kind = _infer_device_type(*tree_leaves(inputs))
        self._devices, self._states = get_device_states(*tree_leaves(inputs))
        self._of_host = torch.get_rng_state()

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(self._devices, device_type=self._kind):
            torch.set_rng_state(self._of_host)
            set_device_states(self._devices, self._states, device_type=self._kind)
            yield


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


def _are_same(one: Any, other: Any) -> bool:
    """To the bit on a CPU; on an accelerator, some of whose operators add in no fixed order, nearly."""
    first, second = _leaves(one), _leaves(other)
    return len(first) == len(second) and all(
        _is_same(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b) for a, b in zip(first, second, strict=True)
    )


def _leaves(made: Any) -> list[Any]:
    """What results hold, objects with attributes (those of dataclasses) looked into."""
    found: list[Any] = []
    left, seen = [made], {}  # kept, or another object would get the number of one that is gone
    while left and len(found) < MOST_LEAVES:
        for leaf in tree_leaves(left.pop()):
            if isinstance(leaf, torch.Tensor) or not hasattr(leaf, "__dict__"):
                found.append(leaf)
            elif id(leaf) not in seen:
                seen[id(leaf)] = leaf
                left.append(vars(leaf))
    return found


def _is_same(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.device.type == "cpu" or a.layout is not torch.strided or a.is_meta:
        return fingerprint(a) == fingerprint(b)
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
