"""Blocks of watched models whose activations are computed again in the backward pass, as many as a cap on memory asks for."""

from __future__ import annotations

import copyreg
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import _C, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from msctx.memory import watched
from msctx.memory.meter import Meter, left_under_caps
from msctx.memory.saved import is_of_leaf

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
MARGIN = 0.05
"""Part of a cap that is not planned for: sizes differ a little from step to step."""


# --- what is recomputed -----------------------------------------------------------------------------------------------


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated parts of a model by their paths: what its outermost containers hold and has modules of its own.

    A container inside a container is looked into, and so is an element that holds such containers itself. A model without any is
    one block.
    """
    found: dict[str, nn.Module] = {}

    def look(module: nn.Module, path: str, is_element: bool) -> bool:
        """Whether there is a block in a module."""
        inside = False
        for name, child in module.named_children():
            inside |= look(child, f"{path}.{name}" if path else name, isinstance(module, CONTAINERS))
        if inside or isinstance(module, CONTAINERS) or not is_element or not any(True for _ in module.children()):
            return inside
        found[path] = module
        return True

    if not look(model, "", False) and any(True for _ in model.children()):
        found[""] = model
    return found


class Decision(NamedTuple):
    """What was found about one block, and what follows."""

    path: str
    saved_bytes: int
    """What its forward pass keeps for the backward pass, beside its inputs and parameters."""
    seconds: float
    """How long its forward pass takes."""
    recomputed: bool
    reason: str


def choose(found: Sequence[tuple[str, int, float]], room: int | None) -> list[Decision]:
    """Which blocks (path, bytes, seconds) are recomputed so that the others' activations fit in *room* bytes (``None``: no cap).

    Those that take longest for their bytes are kept first. Without a cap memory comes first: all are recomputed.
    """
    kept: set[int] = set()
    left = 0 if room is None else room
    for number in sorted(range(len(found)), key=lambda i: -found[i][2] / max(1, found[i][1])):
        if 0 < found[number][1] <= left:
            left -= found[number][1]
            kept.add(number)
    rows = []
    for number, (path, size, seconds) in enumerate(found):
        if not size:
            reason = "its forward pass keeps nothing but its inputs"
        elif number in kept:
            reason = "fits under the cap"
        else:
            reason = "there is no cap, and O1 puts memory first" if room is None else "does not fit under the cap"
        rows.append(Decision(path, size, seconds, bool(size) and number not in kept, reason))
    return rows


# --- one block --------------------------------------------------------------------------------------------------------


class _Block:
    """A block of a watched model, and what has been found about it."""

    def __init__(self, model: _Model, path: str) -> None:
        self.model, self.path = model, path

    def run(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self.model.recomputes(self.path):
            return forward(module, *args, **kwargs)
        forwards = iter([self.model.measured(self.path, args, kwargs)])

        def function(*args: Any, **kwargs: Any) -> Any:
            with next(forwards, nullcontext()):  # when it is computed again, nothing is measured
                return forward(module, *args, **kwargs)

        buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        return checkpoint(
            function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _with_buffers(buffers)), **kwargs
        )


@contextmanager
def _with_buffers(found: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Compute again from what a block's buffers were (BatchNorm's averages …), and leave them as they are now."""
    now = [buffer.detach().clone() for buffer, _ in found]
    try:
        for buffer, before in found:
            buffer.data.copy_(before)
        yield
    finally:
        for (buffer, _), value in zip(found, now, strict=True):
            buffer.data.copy_(value)


# --- one model --------------------------------------------------------------------------------------------------------


class _Found:
    """What the first forward passes with inputs of some shapes have shown, and what was decided."""

    def __init__(self) -> None:
        self.passes = 0
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.meter: Meter | None = None
        self.peak: int | None = None
        """The most that a training step takes beyond what there is at its beginning, when all is recomputed."""
        self.cap: int | None = None
        self.decisions: dict[str, Decision] = {}


class _Model:
    """A watched model: all is recomputed in the two training steps that are measured, then what the caps ask for.

    Each combination of the inputs' shapes and dtypes is measured for itself.
    """

    MOST = 16
    """Combinations that are told apart; with later ones all is recomputed."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._of_shapes: dict[Any, _Found] = {}
        self._now: _Found | None = None

    def begin(self, args: Any, kwargs: Any) -> None:
        """A forward pass begins whose backward pass may come."""
        self.stop_measuring()
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if key not in self._of_shapes and len(self._of_shapes) < self.MOST:
            self._of_shapes[key] = _Found()
        self._now = now = self._of_shapes.get(key) if tensors else None
        if now is None:
            return
        now.passes += 1
        if now.peak is not None:
            self._decide(now, tensors[0].device)
        elif now.passes > 1:  # the first step also makes the optimizer's state
            now.meter = Meter(tensors[0].device)

    def stop_measuring(self) -> None:
        if self._now is not None and self._now.meter is not None:
            self._now.peak = self._now.meter.stop()
            self._now.meter = None

    def recomputes(self, path: str) -> bool:
        decision = self._now.decisions.get(path) if self._now is not None else None
        return decision is None or decision.recomputed

    @property
    def decisions(self) -> list[Decision]:
        return list(self._now.decisions.values()) if self._now is not None else []

    def _decide(self, now: _Found, device: torch.device) -> None:
        left = left_under_caps(device)
        cap = None if left is None else left[1]
        if now.decisions and cap == now.cap:
            return
        room = None
        if left is not None:
            others = sum(_kept_bytes(model) for model in _models.values() if model is not self)
            room = int(left[0] - MARGIN * left[1]) - (now.peak or 0) - others
        found = [(path, now.bytes.get(path, 0), now.seconds.get(path, 0.0)) for path in self.paths]
        now.cap, now.decisions = cap, {row.path: row for row in choose(found, room)}

    @contextmanager
    def measured(self, path: str, args: Any, kwargs: Any) -> Iterator[None]:
        """Count what the forward pass of a block saves for its backward pass, and how long it takes: once, in the second step."""
        now = self._now
        if now is None or now.meter is None:
            yield
            return
        begin = _clock(args)
        with _counting_saved((*args, *kwargs.values())) as sizes:
            yield
        now.seconds[path] = now.seconds.get(path, 0.0) + _clock(args) - begin
        now.bytes[path] = now.bytes.get(path, 0) + sum(sizes.values())


def _kept_bytes(model: _Model) -> int:
    return sum(row.saved_bytes for row in model.decisions if not row.recomputed)


def _clock(args: Any) -> float:
    device = next((value.device for value in args if isinstance(value, torch.Tensor)), None)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter()


@contextmanager
def _counting_saved(inputs: Any) -> Iterator[dict[int, int]]:
    """Storage → its bytes, of what is saved meanwhile; torch's hooks in force stay in force."""
    sizes: dict[int, int] = {}
    references = []  # what is saved may go at once, and its number must not come again meanwhile
    given = {value.untyped_storage()._cdata for value in inputs if isinstance(value, torch.Tensor)}
    pack, unpack = _C._autograd._top_saved_tensors_default_hooks(True) or (lambda tensor: tensor, lambda packed: packed)

    def count(tensor: torch.Tensor) -> Any:
        if tensor.layout is torch.strided and not is_of_leaf(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                references.append(StorageWeakRef(storage))
                sizes[storage._cdata] = storage.nbytes()
        return pack(tensor)

    with torch.autograd.graph.saved_tensors_hooks(count, unpack):
        yield sizes


# --- all watched models -----------------------------------------------------------------------------------------------

_on = False
_models: weakref.WeakKeyDictionary[nn.Module, _Model] = weakref.WeakKeyDictionary()
"""What has been found about each watched model: it stays from scope to scope, which may be as short as a step."""
_blocks: weakref.WeakKeyDictionary[nn.Module, _Block] = weakref.WeakKeyDictionary()


def read() -> bool:
    return _on


def write(on: bool) -> None:
    """Recompute blocks of all watched models, those watched later too; ``False``: as torch does."""
    global _on
    with watched.lock:
        if on == _on:
            return
        _on = on
        if on:
            for model in watched.models():
                _take_on(model)
            return
        for state in list(_models.values()):
            state.stop_measuring()
        for module in {*_models, *_blocks}:
            if (kind := type(module).__dict__.get("_msctx_class")) is not None:
                module.__class__ = kind


def decisions() -> list[dict[str, Any]]:
    """For each block of each watched model that has run often enough: what was found, and whether it is recomputed."""
    rows = [(type(model).__name__, row) for model, state in list(_models.items()) for row in state.decisions]
    return [{**row._asdict(), "path": f"{name}.{row.path}".rstrip(".")} for name, row in rows]


def _take_on(model: nn.Module) -> None:
    if not _on:
        return
    if model not in _models:
        found = {path: block for path, block in blocks(model).items() if block not in _blocks and _can_take(block)}
        _models[model] = state = _Model(list(found))
        _blocks.update({block: _Block(state, path) for path, block in found.items()})
    for module in (model, *(block for block, of in list(_blocks.items()) if of.model is _models[model])):
        if _can_take(module):
            module.__class__ = _recomputing(type(module))


def _can_take(module: nn.Module) -> bool:
    return not isinstance(module, torch.jit.ScriptModule) and "forward" not in module.__dict__


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """The class *kind* whose modules are recomputed; copies and pickles of them are of *kind* itself."""
    if "_msctx_class" in kind.__dict__:
        return kind

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)
        if (model := _models.get(self)) is not None:
            model.begin(args, kwargs)
        if (block := _blocks.get(self)) is not None:
            return block.run(self, kind.forward, args, kwargs)
        return kind.forward(self, *args, **kwargs)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        function, arguments, *rest = kind.__reduce_ex__(self, protocol)
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            function, arguments = copyreg._reconstructor, (kind, object, None)  # type: ignore[attr-defined]
        return kind if function is type(self) else function, arguments, *rest

    names = {"forward": forward, "__reduce_ex__": reduced, "_msctx_class": kind}
    return type(kind)(kind.__name__, (kind,), names | {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


watched.listen(_take_on)
