"""Tensors that wait for the backward pass: in host memory (``save_on_cpu``), or fetched again from the parameter they copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import _C
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from msctx.errors import SwitchError


class _Thread(threading.local):
    reasons: frozenset[str] = frozenset()
    """Why this thread has hooks: ``"activations"`` go to the host, ``"parameters"`` are fetched again."""
    hooks: saved_tensors_hooks | None = None


_thread = _Thread()
_copies = WeakTensorKeyDictionary()
"""A copy on a device → its parameter on the host, and the versions of both."""


def is_on(reason: str) -> bool:
    return reason in _thread.reasons


def turn(reason: str, on: bool) -> None:
    """Install the hooks of this thread for its reasons. ``save_on_cpu`` moves copies of parameters, too, so it serves both."""
    if is_on(reason) is on:
        return
    if (before := _thread.hooks) is not None:
        if (hooks_in_force() or (None,))[0] != before.pack_hook:
            raise SwitchError("other hooks on saved tensors were installed inside the scope and are still there")
        before.__exit__()
    _thread.reasons, _thread.hooks = _thread.reasons | {reason} if on else _thread.reasons - {reason}, None
    if _thread.reasons:
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        moves = save_on_cpu(pin_memory=device.type != "cpu", device_type=device.type)
        _thread.hooks = moves if is_on("activations") else saved_tensors_hooks(_pack, lambda unpack: unpack())
        _thread.hooks.__enter__()


def hooks_in_force() -> Any:
    """The innermost pair of hooks on saved tensors in this thread; ``None``: there are none."""
    return _C._autograd._top_saved_tensors_default_hooks(True)


def remember_copy(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    """Save *parameter* instead of *copy* and its views from now on, where this thread's hooks are for that."""
    _copies[copy] = parameter if parameter.is_leaf else parameter.detach(), parameter._version, copy._version


def _pack(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    base = tensor._base if tensor._is_view() else None
    found: tuple[torch.Tensor, int, int] = _copies.get(tensor if base is None else base, (tensor, 0, -1))
    source, version, of_copy = found
    is_copy = of_copy == tensor._version and source.dtype == tensor.dtype
    place, device = (tensor.shape, tensor.stride(), tensor.storage_offset()) if is_copy else None, tensor.device
    if not is_copy:
        # The result of an operator holds that operator: kept as it is, the two would hold each other
        source, version = tensor if tensor.is_leaf else tensor.detach(), tensor._version

    def unpack() -> torch.Tensor:
        if source._version != version:
            raise RuntimeError(
                f"a tensor of shape {[*source.shape]} that the backward pass needs has been modified by an inplace operation"
            )
        return source if place is None else source.detach().to(device).as_strided(*place)

    return unpack
