"""A forward pass of a block again as it was: what was saved for the backward pass is saved again, to the bit, or an error is raised.

The graph stays that of the first pass: of the second one, the backward pass takes nothing but what is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import _C, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import _infer_device_type, checkpoint, get_device_states, set_device_states

from msctx.errors import named
from msctx.memory import saved
from msctx.memory.block_state import Kind, Known, RecomputationError, State
from msctx.memory.fingerprints import Fingerprint, fingerprint
from msctx.memory.look import Hooks, Lasting, Look
from msctx.signals import uninterrupted

OTHER_RESULTS = "computing it again gives other results"
LOOKS = 2
"""How often a block is looked at that cannot be computed again: its first call may make what all others find."""
RECEIVED = "an object that it receives is changed before its backward pass: {}"
NESTED = "it computes with nested tensors"
MOST_LEAVES = 10_000
Call = Callable[..., Any]
"""``nn.Module.__call__`` as it was found, or what stands for it."""


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

        with uninterrupted():  # what a signal's handler raises is no error of the block's
            try:
                with saved_tensors_hooks(compare, unpack):
                    yield
            except (RecomputationError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                raise self._error(f"fails ({named(error)})") from error
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
        self._state, self._numbers = State(path, block, inputs, known), _Numbers(inputs)
        self._seeds = known is None or known.seeds
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
                self._state.end(draws=around.draws if isinstance(around, Look) else None)
                self._numbers.end(around.seeds if isinstance(around, Look) else self._seeds)
                return made
            args, kwargs = tree_unflatten(leaves, self._spec)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            with self._alone(), self._numbers.again(), self._state.again(tensors), self._saves.comparing():
                return self._call(self._block, *args, **kwargs)

        # To the end: what stops early runs through the block as an exception, and leaves undone what the block does after it.
        # Random numbers are put back by _Numbers, what is saved is compared by Saves.
        return checkpoint(
            compute, *leaves, use_reentrant=False, preserve_rng_state=False, early_stop=False, determinism_check="none"
        )

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
        leaves = tree_leaves(inputs)
        once = cls(path, call, block, inputs, None)
        made = once.run(look)
        state, saves = once._state, once._saves
        received = look.received()
        changing, obstacle, lasting = state.changing(), str(look.obstacle or NESTED * saves.nested), look.lasting()
        draws, seeds, past_versions = look.draws, look.seeds, look.past_versions
        del look  # it holds all that it has seen
        state.keep_only(changing)
        if not obstacle:
            obstacle = once._computed_again(leaves, state, made)
        if obstacle:
            saves.keep(below)
        elif received is not None:
            saves.keep(below, _Received(received, lambda changed: later(Known(LOOKS, RECEIVED.format(changed)))))
        else:
            saves.let_go()
        kept = None if obstacle else lasting
        return made, Known(looks, obstacle, changing, frozenset(saves.unset), kept, draws, seeds, past_versions)

    def _computed_again(self, leaves: list[Any], state: State, made: Any) -> str:
        """What keeps the block from being computed again, now that it is tried; what a signal's handler raises does not."""
        with uninterrupted():
            try:
                with _alone(), self._numbers.again(), state.again(), self._saves.trying():
                    args, kwargs = tree_unflatten(leaves, self._spec)
                    again = self._call(self._block, *args, **kwargs)
                return "" if _are_same(made, again) else OTHER_RESULTS
            except Exception as error:
                return f"computing it again fails: {named(error)}"


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
    """torch's random numbers as they are now, if some are drawn until :meth:`end`: else other threads may draw them."""

    def __init__(self, inputs: Any) -> None:
        leaves = tree_leaves(inputs)
        self._kind = _infer_device_type(*leaves)
        self._devices, self._states = get_device_states(*leaves)
        self._of_host: torch.Tensor | None = torch.get_rng_state()

    def end(self, seeds: bool) -> None:
        """*seeds*: the block may have set them to what they were before."""
        if seeds:
            return
        if self._of_host is not None and torch.equal(self._of_host, torch.get_rng_state()):
            self._of_host = None
        module: Any = torch.get_device_module(self._kind) if self._devices else None
        drawn = []
        for device, before in zip(self._devices, self._states, strict=True):
            with module.device(device):
                drawn.append(not torch.equal(before, module.get_rng_state()))
        self._devices = [device for device, is_drawn in zip(self._devices, drawn, strict=True) if is_drawn]
        self._states = [state for state, is_drawn in zip(self._states, drawn, strict=True) if is_drawn]

    @contextmanager
    def again(self) -> Iterator[None]:
        if self._of_host is None and not self._devices:
            before = torch.get_rng_state()
            try:
                yield
            finally:
                if threading.active_count() == 1 and not torch.equal(before, torch.get_rng_state()):
                    torch.set_rng_state(before)  # seeded with what it was
            return
        with torch.random.fork_rng(self._devices, device_type=self._kind):
            if self._of_host is not None:
                torch.set_rng_state(self._of_host)
            set_device_states(self._devices, self._states, device_type=self._kind)
            yield


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
