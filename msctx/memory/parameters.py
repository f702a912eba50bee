"""Parameters of watched models on the host, or mapped from files, and copied to the device by whatever uses them there."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from msctx.errors import SwitchError
from msctx.memory import offload
from msctx.native import cachedir, watched
from msctx.options.kinds import Size
from msctx.signals import uninterrupted
from msctx.tables import in_words

if TYPE_CHECKING:
    from torch import nn

# --- where they are ---------------------------------------------------------------------------------------------------


class _Elsewhere:
    """A parameter that was moved: where it was."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.number = number = id(parameter)
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
    """Move the parameters of all watched models, those watched later too; ``None`` puts them back where they were.

    Whatever fails, the place is ``None`` then, and an error names what could not be put back.
    """
    global _place
    with watched.lock:
        if place == _place and (place is not None or not _moved):
            return
        _place = None
        _put_all_back()
        _place = place
        try:
            for model in watched.models():
                _move(model)
        except BaseException:
            _place = None
            _put_all_back()
            raise


def placed() -> dict[str, Any]:
    """Where the parameters of watched models are: how many were moved there, their bytes, and how many had to be left."""
    with uninterrupted(), watched.lock, plainly():
        known = {id(parameter): parameter for model in watched.models() for parameter in model.parameters()}
        moved = [parameter for before in list(_moved.values()) if (parameter := before.parameter()) is not None]
        left = [p for number, p in known.items() if _place and number not in _moved and not _is_there(p)]
        return {"place": _place, "moved": len(moved), "bytes": Size(sum(p.nbytes for p in moved)), "left": len(left)}


@contextmanager
def plainly() -> Iterator[None]:
    """Moving is no part of what the program does: it makes ordinary tensors, records nothing, and is not itself given copies."""
    # not to be interrupted: the guard of inference_mode, kept alive by a traceback, would put back later what was set by then
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


def _move(model: nn.Module) -> None:
    """All parameters of a model or, after an error, none."""
    if _place is None:
        return
    moved: list[_Elsewhere] = []
    with watched.lock, plainly():
        try:
            for parameter in model.parameters():
                if id(parameter) not in _moved and not _is_there(parameter) and can_move(parameter):
                    before = _Elsewhere(parameter)
                    _assign(parameter, _in_file(parameter) if _place == "file" else _on_host(parameter))
                    _moved[before.number] = before
                    moved.append(before)
        except BaseException:
            _put_back(moved)
            raise


def _is_there(parameter: nn.Parameter) -> bool:
    return _place == "host" and parameter.device.type == "cpu"


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


def _put_all_back() -> None:
    global _folder
    try:
        _put_back(list(_moved.values()))
    finally:
        if _folder is not None:
            shutil.rmtree(_folder, ignore_errors=True)
            _folder = None


def _put_back(moved: Iterable[_Elsewhere]) -> None:
    """Parameters where they were; one for which there is no room stays in the host's memory, and is reported at the end."""
    left, errors = [], []
    for before in moved:
        if (parameter := before.parameter()) is not None:
            try:
                with plainly():
                    _assign(parameter, memory_of(parameter, before.device).copy_(parameter.data))
            except (RuntimeError, MemoryError) as error:
                left.append(parameter)
                errors.append(error)
        _moved.pop(before.number, None)
    if left:
        size = sum(parameter.nbytes for parameter in left)
        raise SwitchError(f"{len(left)} parameters ({in_words(size)}) stay in host memory: {errors[0]}") from errors[0]


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
    pinned = offload.is_pinnable(parameter.device)
    return torch.empty_like(parameter.data, device="cpu", pin_memory=pinned).copy_(parameter.data)


# --- files ------------------------------------------------------------------------------------------------------------


def _in_file(parameter: nn.Parameter) -> torch.Tensor:
    """The same values, mapped from a file that is named by them: equal weights share its pages until one is written to."""
    data = parameter.data if parameter.is_cpu else _uncounted(parameter).copy_(parameter.data)
    content = torch.empty(0, dtype=torch.uint8).set_(data.untyped_storage(), 0, (data.nbytes,), (1,)).numpy().data
    path = _weights_folder() / f"weight_{hashlib.sha256(content).hexdigest()}"
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


def _weights_folder() -> Path:
    """As CANN has it: ``tmp_weight_<pid>_<session>`` in ``ASCEND_WORK_PATH``, else in the working directory."""
    global _folder
    if _folder is None:
        root = Path(os.environ.get("ASCEND_WORK_PATH") or ".").resolve()
        _folder = root / f"tmp_weight_{os.getpid()}_{next(_sessions)}"
    return _folder


def _move_back(model: nn.Module) -> None:
    """Nobody watches it now: its parameters are put back, unless another watched model has them."""
    if _moved:
        with watched.lock:
            others = {id(parameter) for other in watched.models() for parameter in other.parameters()}
            own = {id(parameter) for parameter in model.parameters()} - others
            _put_back([_moved[number] for number in own if number in _moved])


watched.listen(_move, _move_back)

# --- copies for the device --------------------------------------------------------------------------------------------

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
        if not _moved or name in TAKE_ANY_DEVICE or (name == "__get__" and _getter(function) == "grad"):
            return function(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        if not any(map(_is_elsewhere, tensors)):
            return function(*args, **kwargs)
        written = args[:1] if _is_in_place(name) else ()
        device = _device_of(_tensors(written) if written else tensors)
        if device is not None:
            copied = partial(pytree.tree_map_only, torch.Tensor, partial(_copied, device))
            copies = {key: value if key == "out" else copied(value) for key, value in kwargs.items()}
            return function(*written, *copied(args[len(written) :]), **copies)
        result = function(*args, **kwargs)
        for made in () if written else _tensors(result):
            if made.device.type == "cpu" and not isinstance(made, torch.nn.Parameter):
                _derived[made] = True
        return result


def _getter(function: Any) -> str:
    """The name of the property that a ``__get__`` is of."""
    return getattr(getattr(function, "__self__", None), "__name__", "")


def _is_in_place(name: str) -> bool:
    """Whether a function writes to its first argument."""
    return name in IN_PLACE or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _device_of(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    return next((tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")), None)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return id(tensor) in _moved or tensor in _derived


def _copied(device: torch.device, value: torch.Tensor) -> torch.Tensor:
    if not _is_elsewhere(value):
        return value
    copy = value.to(device)  # made before the host goes on, which may write to the parameter at once
    offload.remember_copy(copy, value)
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
