"""Tensors that wait for the backward pass: on the host meanwhile, or fetched again from the parameter they were copied from.

One pair of torch's hooks on saved tensors in each thread, since of nested pairs only the innermost is called.
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

from msctx.errors import SwitchError

LEAST = 1 << 18
"""Bytes below which a tensor stays where it is: such a copy takes longer to start than to make."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.reasons: set[str] = set()
        """What the hooks of this thread are for: ``"activations"`` go to the host, ``"parameters"`` are fetched again."""
        self.hooks: tuple[Callable[..., Any], Callable[..., Any]] | None = None


_thread = _Thread()


# --- the switches -----------------------------------------------------------------------------------------------------


def is_on(reason: str) -> bool:
    return reason in _thread.reasons


def turn(reason: str, on: bool) -> None:
    """Install the hooks of this thread for *reason*, or take them away with the last one."""
    if on and not _thread.reasons:
        _thread.hooks = (_pack, _unpack)
        _C._autograd._push_saved_tensors_default_hooks(*_thread.hooks)
    elif not on and _thread.reasons == {reason}:
        if _C._autograd._top_saved_tensors_default_hooks(True) != _thread.hooks:
            raise SwitchError("other hooks on saved tensors were installed inside the scope and are still there")
        _C._autograd._pop_saved_tensors_default_hooks()
    if on:
        _thread.reasons.add(reason)
    else:
        _thread.reasons.discard(reason)


# --- the hooks --------------------------------------------------------------------------------------------------------


class Packed:
    """A tensor as what it takes to make it again: a storage, and its place in it."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(self, tensor: torch.Tensor, storage: Any) -> None:
        self.storage = storage
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset()
        self.shape, self.stride = tensor.shape, tensor.stride()

    def tensor(self) -> torch.Tensor:
        storage = self.storage.fetch()
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        return made.set_(storage, self.offset, self.shape, self.stride)


def _pack(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "cpu" or not _is_plain(tensor):
        return tensor
    if (parameter := _copies.find(tensor)) is not None:
        return Packed(tensor, parameter)
    if "activations" not in _thread.reasons or is_of_leaf(tensor) or tensor.untyped_storage().nbytes() < LEAST:
        return tensor
    return Packed(tensor, _on_host.storage_of(tensor))


def _unpack(packed: Any) -> torch.Tensor:
    return packed.tensor() if isinstance(packed, Packed) else packed


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def is_of_leaf(tensor: torch.Tensor) -> bool:
    """A parameter or a view of one: it is there anyhow."""
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.is_leaf and base.requires_grad


class _ByStorage:
    """Something about each storage, as long as it lives and nobody writes to it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int, Any]] = {}
        self._purge_at = 64
        self._lock = threading.Lock()

    def find(self, tensor: torch.Tensor) -> Any:
        storage, version, found = self._known.get(tensor.untyped_storage()._cdata, (None, -1, None))
        return found if storage is not None and not storage.expired() and version == tensor._version else None

    def remember(self, tensor: torch.Tensor, what: Any) -> None:
        storage = tensor.untyped_storage()
        with self._lock:
            if len(self._known) >= self._purge_at:
                self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
                self._purge_at = max(64, 2 * len(self._known))
            self._known[storage._cdata] = (StorageWeakRef(storage), tensor._version, what)


# --- activations on the host ------------------------------------------------------------------------------------------


_moved = {"storages": 0, "bytes": 0}


def moved() -> dict[str, int]:
    """How much has been moved to the host so far."""
    return dict(_moved)


class _OnHost:
    """The bytes of one storage in host memory: copied on a stream of its own, and back on the one that needs them."""

    __slots__ = ("__weakref__", "copied", "device", "host")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        there = _bytes_of(tensor.untyped_storage())
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
        torch.get_device_module(self.device).current_stream(self.device).wait_event(self.copied)
        there = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
        there.copy_(self.host, non_blocking=True)
        return there.untyped_storage()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return flat.set_(storage, 0, (storage.nbytes(),), (1,))


def is_pinnable(device: torch.device) -> bool:
    """Whether host memory can be pinned for copies from and to a device."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


@cache
def _side_stream(device: torch.device) -> Any:
    """The stream of copies to the host."""
    return torch.get_device_module(device).Stream(device)


class _HostCopies(_ByStorage):
    """A storage that several operators have saved is moved once."""

    def storage_of(self, tensor: torch.Tensor) -> _OnHost:
        reference = self.find(tensor)
        found = reference() if reference is not None else None
        if found is None:
            found = _OnHost(tensor)
            self.remember(tensor, weakref.ref(found))
        return found


_on_host = _HostCopies()


# --- copies of parameters ---------------------------------------------------------------------------------------------


class _Parameter:
    """A parameter that lives elsewhere than where it is used."""

    __slots__ = ("device", "parameter", "version")

    def __init__(self, parameter: torch.Tensor, device: torch.device) -> None:
        self.parameter, self.device, self.version = parameter, device, parameter._version

    def fetch(self) -> torch.UntypedStorage:
        if self.parameter._version != self.version:
            raise RuntimeError(
                "a parameter that the backward pass needs has been modified by an inplace operation since its forward pass: "
                f"it is at version {self.parameter._version}, expected version {self.version}"
            )
        return self.parameter.detach().to(self.device, non_blocking=True).untyped_storage()


_copies = _ByStorage()


def remember_copy(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    """Save *parameter* instead of *copy* from now on, where this thread's hooks are for that."""
    _copies.remember(copy, _Parameter(parameter, copy.device))
