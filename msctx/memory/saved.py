"""Tensors that wait for the backward pass: on the host meanwhile, or fetched again from the parameter they were copied from.

One pair of torch's hooks on saved tensors in each thread, since of nested pairs only the innermost is called. Where hooks are in
force torch leaves it to them to notice that a saved tensor was written to; they do, with torch's own kind of error. Transforms of
functions (torch.func.grad, vmap …) refuse to begin in a thread that has hooks, whatever those do: torch checks that itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import _C
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from msctx import locks
from msctx.errors import SwitchError

LEAST = 1 << 18
"""Bytes below which nothing is moved: such a copy takes longer to start than to make."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.reasons: set[str] = set()
        """What the hooks of this thread are for: ``"activations"`` go to the host, ``"parameters"`` are fetched again."""
        self.hooks: tuple[Callable[..., Any], Callable[..., Any]] | None = None


_thread = _Thread()


def is_on(reason: str) -> bool:
    return reason in _thread.reasons


def turn(reason: str, on: bool) -> None:
    """Install the hooks of this thread for *reason*, or take them away with the last one."""
    if on and not _thread.reasons:
        _thread.hooks = (_pack, unpack)
        _C._autograd._push_saved_tensors_default_hooks(*_thread.hooks)
    elif not on and _thread.reasons == {reason}:
        if _C._autograd._top_saved_tensors_default_hooks(True) != _thread.hooks:
            raise SwitchError("other hooks on saved tensors were installed inside the scope and are still there")
        _C._autograd._pop_saved_tensors_default_hooks()
    if on:
        _thread.reasons.add(reason)
    else:
        _thread.reasons.discard(reason)


class _Saved:
    """What is saved, and the version it had: to be given back only as long as nobody writes to it."""

    __slots__ = ("counter", "version", "what")

    def __init__(self, tensor: torch.Tensor, what: torch.Tensor | Packed, counter: torch.Tensor) -> None:
        self.what, self.counter, self.version = what, counter, tensor._version

    def tensor(self) -> torch.Tensor:
        now = self.counter._version
        if now != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.counter.type()} {[*self.what.shape]}] is at version {now}; expected version {self.version} instead."
            )
        return self.what.tensor() if isinstance(self.what, Packed) else self.what


class Packed:
    """A tensor as what it takes to make it again: a storage, and its place in it."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(self, tensor: torch.Tensor, storage: Any, begin: int = 0) -> None:
        self.storage = storage
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset() - begin // tensor.itemsize
        self.shape, self.stride = tensor.shape, tensor.stride()

    def tensor(self) -> torch.Tensor:
        storage = self.storage.fetch()
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        return made.set_(storage, self.offset, self.shape, self.stride)


def _pack(tensor: torch.Tensor) -> Any:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return tensor
    packed = _packed(tensor) if tensor.device.type != "cpu" and _is_plain(tensor) else None
    return keep(tensor) if packed is None else _Saved(tensor, packed, _counter_of(tensor))


def keep(tensor: torch.Tensor) -> Any:
    """The tensor itself, as hooks may hold it; :func:`unpack` returns it."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return tensor
    # The result of an operator holds that operator, which would hold it in turn: nothing could ever free the two
    kept = tensor if tensor.is_leaf else tensor.detach()
    return _Saved(tensor, kept, kept)


def _packed(tensor: torch.Tensor) -> Packed | None:
    """A tensor as something else than itself; ``None``: it stays."""
    if (parameter := _copies.find(tensor)) is not None:
        return Packed(tensor, parameter)
    return _moved_to_host(tensor) if "activations" in _thread.reasons and not is_of_leaf(tensor) else None


def unpack(packed: Any) -> torch.Tensor:
    return packed.tensor() if isinstance(packed, _Saved) else packed


def _counter_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the version counter of another, and none of its memory."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def is_of_leaf(tensor: torch.Tensor) -> bool:
    """A parameter or a view of one: it is there anyhow."""
    base = _owner(tensor)
    return base.is_leaf and base.requires_grad


def _owner(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is one of: all its views count versions together."""
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base


class _ByOwner:
    """Something about each tensor and its views, as long as it lives in the same memory and nobody writes to it.

    What has a version counter of its own, as ``tensor.data`` has, is another tensor.
    """

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()
        self._lock = locks.plain()

    def find(self, tensor: torch.Tensor) -> Any:
        with self._lock:
            storage, version, found = self._known.get(_owner(tensor), (None, -1, None))
        if storage is None or version != tensor._version or storage.expired():
            return None
        return found if storage.cdata == tensor.untyped_storage()._cdata else None

    def remember(self, tensor: torch.Tensor, what: Any) -> None:
        with self._lock:
            self._known[_owner(tensor)] = (StorageWeakRef(tensor.untyped_storage()), tensor._version, what)


# --- activations on the host ------------------------------------------------------------------------------------------


_moved = {"storages": 0, "bytes": 0}


def moved() -> dict[str, int]:
    """How much has been moved to the host so far."""
    return dict(_moved)


class _OnHost:
    """Bytes of a storage in host memory: copied on a stream of its own, and back on the one that needs them."""

    __slots__ = ("__weakref__", "copied", "device", "fetched", "host")

    def __init__(self, tensor: torch.Tensor, begin: int, count: int) -> None:
        self.device = tensor.device
        self.fetched: tuple[Any, StorageWeakRef] | None = None
        """What is on the device again, while anybody there needs it, and the stream on which it came."""
        there = torch.empty(0, dtype=torch.uint8, device=self.device)
        there.set_(tensor.untyped_storage(), begin, (count,), (1,))
        self.host = torch.empty(there.shape, dtype=torch.uint8, pin_memory=is_pinnable(self.device))
        module, side = torch.get_device_module(self.device), _side_stream(self.device)
        side.wait_stream(module.current_stream(self.device))
        with module.stream(side):
            self.host.copy_(there, non_blocking=True)
            self.copied = side.record_event()
        there.record_stream(side)  # or the allocator would give its memory to somebody else before it is copied
        _moved["storages"] += 1
        _moved["bytes"] += self.host.numel()

    def fetch(self) -> torch.UntypedStorage:
        stream = torch.get_device_module(self.device).current_stream(self.device)
        if self.fetched is not None and self.fetched[0] == stream:
            storage = torch.UntypedStorage._new_with_weak_ptr(self.fetched[1].cdata)
            if storage is not None:
                return storage
        stream.wait_event(self.copied)
        there = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
        there.copy_(self.host, non_blocking=True)
        storage = there.untyped_storage()
        self.fetched = stream, StorageWeakRef(storage)
        return storage


def _moved_to_host(tensor: torch.Tensor) -> Packed | None:
    """What several operators have saved is moved once: with the whole storage, or alone where it is the smaller part of it."""
    whole = tensor.untyped_storage().nbytes()
    begin, count = span(tensor)
    if begin + count > whole:
        return None  # its memory has been taken away
    copies: dict[tuple[int, int], weakref.ref[_OnHost]] = _on_host.find(tensor) or {}
    for where in ((0, whole), (begin, count)):
        if where in copies and (copy := copies[where]()) is not None:
            return Packed(tensor, copy, where[0])
    where = (begin, count) if count < whole / 2 else (0, whole)
    if where[1] < LEAST:
        return None
    copy = _OnHost(tensor, *where)
    _on_host.remember(tensor, {key: kept for key, kept in copies.items() if kept() is not None} | {where: weakref.ref(copy)})
    return Packed(tensor, copy, where[0])


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a storage that a tensor reads, and how many from there to its last."""
    if not tensor.numel():
        return 0, 0
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) * tensor.itemsize, count * tensor.itemsize


def is_pinnable(device: torch.device) -> bool:
    """Whether host memory can be pinned for copies from and to a device."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


@cache
def _side_stream(device: torch.device) -> Any:
    """The stream of copies to the host."""
    return torch.get_device_module(device).Stream(device)


_on_host = _ByOwner()


# --- copies of parameters ---------------------------------------------------------------------------------------------


class _Parameter:
    """A parameter that lives elsewhere than where it is used, or what was computed from parameters there."""

    __slots__ = ("device", "parameter", "version")

    def __init__(self, parameter: torch.Tensor, device: torch.device) -> None:
        self.device, self.version = device, parameter._version
        self.parameter = parameter if parameter.is_leaf else parameter.detach()

    def fetch(self) -> torch.UntypedStorage:
        if self.parameter._version != self.version:
            raise RuntimeError(
                "a parameter that the backward pass needs has been modified by an inplace operation since its forward pass: "
                f"it is at version {self.parameter._version}, expected version {self.version}"
            )
        # Not behind the back of the host, which may write to the parameter at once
        return self.parameter.detach().to(self.device).untyped_storage()


_copies = _ByOwner()


def remember_copy(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    """Save *parameter* instead of *copy* from now on, where this thread's hooks are for that."""
    _copies.remember(copy, _Parameter(parameter, copy.device))
