"""Where the parameters of watched models are: on their device, on the host or in files; and copies for the device."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from msctx.deferred_interrupts import uninterrupted
from msctx.errors import SwitchError
from msctx.memory import offload
from msctx.memory.changes import Changes, plainly
from msctx.native import cachedir, watched_models
from msctx.options.kinds import Size


class _Places(Changes):
    """``"host"``, ``"file"``, or ``None``: where the program put them."""

    folder: Path | None = None

    def change(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, torch.device]]:
        for parameter in model.parameters():
            if parameter not in self.before and not self.is_there(parameter) and can_move(parameter):
                device = parameter.device
                _assign(parameter, _in_file(parameter) if self.wanted == "file" else _on_host(parameter))
                yield parameter, device

    def is_there(self, parameter: nn.Parameter) -> bool:
        return bool(self.wanted == "host") and parameter.device.type == "cpu"

    def put_back(self, part: nn.Parameter, before: torch.device) -> None:
        """One for which there is no room stays in the host's memory."""
        _assign(part, memory_of(part, before).copy_(part.data))

    def _end_all(self) -> None:
        try:
            super()._end_all()
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None


PLACES = _Places()
_sessions = itertools.count()


def placed() -> dict[str, Any]:
    """Where the parameters of watched models are: how many were moved there, their bytes, and how many had to be left."""
    with uninterrupted(), watched_models.lock, plainly():
        place = PLACES.wanted
        known = {id(parameter): parameter for model in watched_models.models() for parameter in model.parameters()}
        moved = [*PLACES.before]
        left = [p for p in known.values() if place and p not in PLACES.before and not PLACES.is_there(p)]
        return {"place": place, "moved": len(moved), "bytes": Size(sum(p.nbytes for p in moved)), "left": len(left)}


def can_move(parameter: torch.Tensor) -> bool:
    """Only what is all of a block of memory that nobody else holds: other memory would free none, and untie what is tied.

    So stay shared memory, several parameters over one storage (the flat weights of an RNN), and what an alias was taken of.
    """
    kind = type(parameter.data) is torch.Tensor and parameter.layout is torch.strided and not is_lazy(parameter)
    if not kind or parameter.is_meta or parameter.is_inference() or parameter.is_conj() or parameter.is_neg():
        return False
    storage = parameter.untyped_storage()
    whole = (
        storage.nbytes() == parameter.nbytes > 0 and torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    )
    return whole and _holders(parameter) == _ALONE and not (parameter.is_cpu and storage.is_shared())


def _holders(tensor: torch.Tensor) -> int:
    """How many hold the storage of a tensor, what asks included."""
    storage = tensor.untyped_storage()  # held while its holders are counted
    return torch._C._storage_Use_Count(storage._cdata)


_ALONE = _holders(torch.empty(1, device="meta"))  # no memory, which a cap would count


def memory_of(like: torch.Tensor, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """Memory for a parameter. What was a program's own before a cap must not fail under it: then it is memory that no cap counts."""
    try:
        return torch.empty_like(like, device=device, pin_memory=pinned)
    except RuntimeError:
        if device.type != "cpu":
            raise
        return _uncounted(like)


def _uncounted(parameter: torch.Tensor) -> torch.Tensor:
    """Host memory for a parameter that is not torch's, and so counts under no cap."""
    flat = torch.from_numpy(numpy.empty(parameter.nbytes, numpy.uint8))
    return flat.view(parameter.dtype).as_strided(parameter.shape, parameter.stride())


def _assign(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """New memory for a parameter and, where that is another device, for its gradient."""
    gradient = parameter.grad
    there = None if gradient is None else gradient.to(data.device)
    parameter.grad = None
    parameter.data = data
    parameter.grad = there


def _on_host(parameter: nn.Parameter) -> torch.Tensor:
    accelerator = torch.accelerator.current_accelerator()
    pinned = accelerator is not None and accelerator.type == parameter.device.type
    return torch.empty_like(parameter.data, device="cpu", pin_memory=pinned).copy_(parameter.data)


# --- files ------------------------------------------------------------------------------------------------------------


def _in_file(parameter: nn.Parameter) -> torch.Tensor:
    """The same values, mapped from a file that is named by them: equal weights share its pages until one is written to.

    It lies in ``tmp_weight_<pid>_<session>``, in ``ASCEND_WORK_PATH`` or else in the working directory.
    """
    data = parameter.data if parameter.is_cpu else _uncounted(parameter).copy_(parameter.data)
    content = torch.empty(0, dtype=torch.uint8).set_(data.untyped_storage(), 0, (data.nbytes,), (1,)).numpy().data
    if PLACES.folder is None:  # as CANN has it
        root = Path(os.environ.get("ASCEND_WORK_PATH") or ".").resolve()
        PLACES.folder = root / f"tmp_weight_{os.getpid()}_{next(_sessions)}"
    path = PLACES.folder / f"weight_{hashlib.sha256(content).hexdigest()}"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # again, if somebody has removed it
            cachedir.write(path, content)
        mapped = torch.from_file(str(path), shared=False, size=data.numel(), dtype=data.dtype)
    except OSError as error:
        raise SwitchError(f"external_weight: {path}: {error.strerror or error}") from error
    except RuntimeError as error:  # torch's own error where it cannot map
        raise SwitchError(f"external_weight: {path}: {error}") from error
    return mapped.as_strided(data.shape, data.stride())


# --- copies for the device --------------------------------------------------------------------------------------------

_GRAD: Any = torch.Tensor.grad.__get__  # type: ignore[union-attr]
TAKE_ANY_DEVICE = {"__set__", "__delete__", "copy_", "backward", "grad", "register_hook"}
IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}
"""Like all whose names end in an underscore."""

_derived = WeakTensorKeyDictionary()
"""What was computed on the host from moved parameters alone, and views of these."""


class _Copies(TorchFunctionMode):
    """Whatever computes with a moved parameter beside a tensor of a device gets a copy on that device.

    What is computed from parameters alone is computed on the host, and copied when it meets such a tensor. What an operator
    writes to (in place, or ``out=``) is never replaced by a copy, in which the result would be lost: torch raises where its device
    is not the others'.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if not PLACES.before or name in TAKE_ANY_DEVICE or function == _GRAD:
            return function(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        if not any(map(_is_elsewhere, tensors)):
            return function(*args, **kwargs)
        written = args[:1] if _is_in_place(name) else ()
        devices = [tensor.device for tensor in (_tensors(written) if written else tensors)]
        device = next((device for device in devices if device.type not in ("cpu", "meta")), None)
        if device is not None:
            copied = partial(pytree.tree_map_only, torch.Tensor, partial(_copied, device))
            copies = {key: value if key == "out" else copied(value) for key, value in kwargs.items()}
            return function(*written, *copied(args[len(written) :]), **copies)
        result = function(*args, **kwargs)
        for made in () if written else _tensors(result):
            if made.device.type == "cpu" and not isinstance(made, torch.nn.Parameter):
                _derived[made] = True
        return result


def _is_in_place(name: str) -> bool:
    """Whether a function writes to its first argument."""
    return name in IN_PLACE or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return tensor in PLACES.before or tensor in _derived


def _copied(device: torch.device, value: torch.Tensor) -> torch.Tensor:
    if not _is_elsewhere(value):
        return value
    copy = value.to(device)  # made before the host goes on, which may write to the parameter at once
    offload.remember_copy(copy, value)
    return copy


_thread = threading.local()


def copies() -> bool:
    """Whether this thread's operators get copies of moved parameters."""
    return getattr(_thread, "mode", None) is not None


def copy_for_operators(on: bool) -> None:
    if on == copies():
        return
    offload.turn("parameters", on)
    if on:
        _thread.mode = _Copies()
        _push_mode(_thread.mode)
        return
    above = []
    while _get_current_function_mode_stack() and (mode := _pop_mode()) is not _thread.mode:
        above.append(mode)
    for mode in reversed(above):
        _push_mode(mode)
    _thread.mode = None
