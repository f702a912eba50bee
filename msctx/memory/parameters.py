"""Parameters of watched models on the host, or mapped from files, and copied to the device by whatever uses them there."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from msctx.errors import SwitchError
from msctx.memory import saved, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

# --- where they are ---------------------------------------------------------------------------------------------------


class _Elsewhere:
    """A parameter that was moved: where it was."""

    def __init__(self, parameter: nn.Parameter) -> None:
        number = id(parameter)
        self.parameter = weakref.ref(parameter, lambda _: _moved.pop(number, None))
        self.device = parameter.device


_place: str | None = None
_moved: dict[int, _Elsewhere] = {}
"""id of a parameter → where it was; none is forgotten before it is put back or gone."""
_folder: Path | None = None
_sessions = itertools.count()


def read() -> str | None:
    """``"host"``, ``"file"``, or ``None``: where the program put them."""
    return _place


def write(place: str | None) -> None:
    """Move the parameters of all watched models, those watched later too; ``None`` puts them back where they were."""
    global _place
    with watched.lock:
        if place == _place:
            return
        _put_back()
        _place = place
        for model in watched.models():
            _move(model)


def _move(model: nn.Module) -> None:
    if _place is None:
        return
    for parameter in model.parameters():
        if id(parameter) not in _moved and _can_move(parameter):
            before = _Elsewhere(parameter)
            _assign(parameter, _in_file(parameter) if _place == "file" else _on_host(parameter))
            _moved[id(parameter)] = before


def _can_move(parameter: nn.Parameter) -> bool:
    """Not what is on no device yet, nor what is no plain block of memory; and to the host only what is not there."""
    plain = parameter.layout is torch.strided and type(parameter.data) is torch.Tensor and parameter.device.type != "meta"
    return plain and (_place == "file" or parameter.device.type != "cpu")


def _put_back() -> None:
    global _folder
    for number, before in list(_moved.items()):
        parameter = before.parameter()
        if parameter is not None:
            _assign(parameter, torch.empty_like(parameter.data, device=before.device).copy_(parameter.data))
        _moved.pop(number, None)
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


def _assign(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """New memory for a parameter and, where that is another device, for its gradient."""
    gradient = parameter.grad
    parameter.grad = None
    parameter.data = data
    if gradient is not None:
        parameter.grad = gradient.to(data.device)


def _on_host(parameter: nn.Parameter) -> torch.Tensor:
    pinned = saved.is_pinnable(parameter.device)
    return torch.empty_like(parameter.data, device="cpu", pin_memory=pinned).copy_(parameter.data)


# --- files ------------------------------------------------------------------------------------------------------------


def _in_file(parameter: nn.Parameter) -> torch.Tensor:
    """The same values, mapped from a file that is named by them: equal weights share its pages until one is written to."""
    dense = torch.empty_like(parameter.data, device="cpu").copy_(parameter.data)
    count = dense.numel()
    if not count:
        return dense
    flat = dense.as_strided((count,), (1,)) if dense.untyped_storage().nbytes() else dense
    content = flat.view(torch.uint8).numpy()
    path = _weights_folder() / f"weight_{hashlib.sha256(content).hexdigest()}"
    if not path.exists():
        content.tofile(path)
    mapped = torch.from_file(str(path), shared=False, size=count, dtype=dense.dtype)
    return mapped.as_strided(dense.shape, dense.stride())


def _weights_folder() -> Path:
    """As CANN has it: ``tmp_weight_<pid>_<session>`` in ``ASCEND_WORK_PATH``, else in the working directory."""
    global _folder
    if _folder is None:
        root = Path(os.environ.get("ASCEND_WORK_PATH") or ".").resolve()
        folder = root / f"tmp_weight_{os.getpid()}_{next(_sessions)}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise SwitchError(f"external_weight: {folder} cannot be made: {error.strerror}") from error
        _folder = folder
    return _folder


watched.listen(_move)

# --- copies for the device --------------------------------------------------------------------------------------------

TAKE_ANY_DEVICE = {"__get__", "__set__", "__delete__", "__setitem__", "backward", "grad", "register_hook"}
IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}
"""Like all whose names end in an underscore."""


class _Copies(TorchFunctionMode):
    """Whatever computes with a moved parameter beside a tensor of a device gets a copy on that device.

    What is computed from parameters alone is computed on the host, and copied when it meets such a tensor.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _moved or _takes_any_device(getattr(function, "__name__", "")):
            return function(*args, **kwargs)
        tensors = [*_tensors((*args, *kwargs.values()))]
        if not any(map(_is_elsewhere, tensors)):
            return function(*args, **kwargs)
        device = next((t.device for t in tensors if t.device.type not in ("cpu", "meta")), None)
        if device is not None:
            return function(*_on(device, args), **dict(zip(kwargs, _on(device, kwargs.values()), strict=True)))
        result = function(*args, **kwargs)
        for made in _tensors((result,)):
            if made.device.type == "cpu" and not isinstance(made, torch.nn.Parameter):
                made._msctx_of_parameters = True  # type: ignore[attr-defined]
        return result


def _takes_any_device(name: str) -> bool:
    """Whether a function is to see its tensors where they are."""
    return name in TAKE_ANY_DEVICE or name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return id(tensor) in _moved or hasattr(tensor, "_msctx_of_parameters")


def _on(device: torch.device, values: Any) -> list[Any]:
    return [_copied(device, value) for value in values]


def _copied(device: torch.device, value: Any) -> Any:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_on(device, value))
    if not isinstance(value, torch.Tensor) or not _is_elsewhere(value):
        return value
    copy = value.to(device, non_blocking=True)
    if id(value) in _moved:
        saved.remember_copy(copy, value)
    return copy


class _Thread(threading.local):
    def __init__(self) -> None:
        self.mode: _Copies | None = None


_thread = _Thread()


def copies() -> bool:
    """Whether this thread's operators get copies of moved parameters."""
    return _thread.mode is not None


def copy_for_operators(on: bool) -> None:
    if on == copies():
        return
    saved.turn("parameters", on)
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
