"""Switches that CUDA and Ascend share: in form, since torch gives both the same module interface, and the settings of allocators."""

from __future__ import annotations

import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import _C
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from msctx.errors import MsctxWarning, SwitchError
from msctx.switches.base import LateError, Switch
from msctx.tables import in_words

Module = Callable[[], Any]
"""Returns ``torch.cuda`` or ``torch.npu``; called late, since the second is not there before torch_npu is imported."""


def current_device(name: str, module: Module) -> Switch:
    """The current device of the thread; ``None`` before the device is initialised (asking would initialise it)."""

    def read() -> int | None:
        return module().current_device() if module().is_initialized() else None

    def write(index: int | None) -> None:
        if index is not None:
            module().set_device(index)

    def blocked(index: int) -> str:
        count = module().device_count()
        if index >= count:
            raise SwitchError(f"device_id={index}: there are {count} such devices here (0 to {count - 1})")
        return ""

    def put_back(index: int | None) -> None:
        # nothing was current before the device was initialised: then torch starts with 0
        write(0 if index is None and module().is_initialized() else index)

    return Switch(name, read, write, state=(read, put_back), scope="thread", blocked=blocked)


def memory_cap(name: str, module: Module, overhead: Callable[[int], int | None] | None = None) -> Switch:
    """The most that the process may hold on the current device, in bytes; ``None``: no cap.

    The caching allocator gets what *overhead* leaves of it: the bytes that a device holds beside that allocator, as far as they
    are known. Other devices of the process are left alone: to touch them would create a context, some hundred MB, on each.
    """
    written: dict[int, tuple[int, int]] = {}
    """Device → what the allocator was given, and the cap that it came from."""

    def total(device: int) -> int:
        return int(module().get_device_properties(device).total_memory)

    def read() -> int | None:
        if not module().is_initialized():
            return None
        device = module().current_device()
        if (limit := module().get_per_process_memory_fraction(device)) >= 1.0:
            return None
        found = round(float(limit) * total(device))
        given, cap = written.get(device, (found, found))
        return cap if abs(found - given) <= 1 else found  # torch cuts the fraction to whole bytes

    def write(cap: int) -> None:
        device, beside = module().current_device(), 0
        if overhead:
            module().mem_get_info(device)  # makes the context, which is to be measured
            if (known := overhead(device)) is None:
                warnings.warn(f"{name}: {UNKNOWN}", MsctxWarning, stacklevel=2)
            beside = known or 0
        given = cap - beside
        if given <= 0:
            raise SwitchError(too_small(cap, device, 0, beside))
        written[device] = given, cap
        module().set_per_process_memory_fraction(min(1.0, given / total(device)), device)

    def save() -> tuple[int, float, tuple[int, int] | None]:
        device = module().current_device()
        return device, float(module().get_per_process_memory_fraction(device)), written.get(device)

    def load(state: tuple[int, float, tuple[int, int] | None]) -> None:
        device, limit, before_it = state
        written.pop(device, None)
        if before_it:
            written[device] = before_it
        current = module().current_device()
        module().set_per_process_memory_fraction(limit, device)
        if module().current_device() != current:  # torch_npu makes the device current whose limit it is given
            module().set_device(current)

    def satisfied(cap: int) -> bool:
        in_force = read()
        return in_force == cap or (in_force is None and module().is_initialized() and cap >= total(module().current_device()))

    def blocked(cap: int) -> str:
        if module().is_initialized():
            device = module().current_device()
            held, beside = module().memory_allocated(device), (overhead(device) if overhead else 0) or 0
            if held + beside > cap:
                raise SwitchError(too_small(cap, device, held, beside))
        return ""

    return Switch(name, read, write, state=(save, load), satisfied=satisfied, blocked=blocked)


UNKNOWN = (
    "NVML does not report what the device's context takes; nothing is subtracted for it, so the process may hold that much more"
)


def too_small(cap: int, device: int, held: int, beside: int) -> str:
    there = f"{in_words(held)} are already allocated on device {device}"
    if beside:
        there += f" and {in_words(beside)} more are its context's and other libraries', together {in_words(held + beside)}"
    return f"max_device_memory={in_words(cap)}: {there}; nothing was changed"


def synchronize_each_op(name: str, module: Module) -> Switch:
    """Waits for the device after each operator, by a dispatch mode of the thread: the environment variables that launch
    synchronously (CUDA_LAUNCH_BLOCKING …) are read once, when the device is initialised."""

    class Synchronize(TorchDispatchMode):
        ignore_compile_internals = classmethod(lambda cls: True)  # else PyTorch compiles nothing inside

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            module().synchronize()
            return result

    here = threading.local()

    def write(on: bool) -> None:
        mode = getattr(here, "mode", None)
        if on and mode is None:
            here.mode = Synchronize()
            here.mode.__enter__()
        elif not on and mode is not None:
            if _get_current_dispatch_mode() is not mode:
                raise SwitchError(f"{name}: another dispatch mode was entered inside the scope and is still active")
            here.mode = here.mode.__exit__(None, None, None)

    return Switch(name, lambda: getattr(here, "mode", None) is not None, write, scope="thread")


def wait(name: str, module: Module, kind: str) -> Switch:
    """The most milliseconds that ``synchronize()`` of the module's class *kind* (Event, Stream) waits; ``None``: for ever.

    The class has no deadline of its own: its objects are asked again and again whether they are done.
    """
    limit: int | None = None
    found: Any = None

    def synchronize(waited_for: Any) -> None:
        end, pause = time.monotonic() + (math.inf if limit is None else limit / 1000), 1e-5  # None: just put back
        while not waited_for.query():
            if time.monotonic() >= end:
                option = f"{name.rpartition('.')[2]}={limit}"
                raise RuntimeError(f"{option}: the {kind.lower()} was not reached within {limit} ms")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def write(milliseconds: int | None) -> None:
        nonlocal limit, found
        of = getattr(module(), kind)
        if milliseconds is not None:
            limit = milliseconds
            if found is None:
                found, of.synchronize = of.synchronize, synchronize
        elif found is not None:
            of.synchronize, found, limit = found, None, None

    return Switch(name, lambda: limit, write)


def npu_is_here() -> bool:
    return hasattr(torch, "npu") and torch.npu.is_available()


def npu() -> Any:
    """``torch.npu``, which torch_npu puts there."""
    return vars(torch)["npu"]


# --- the settings that the caching allocators of all accelerators share; they exist in torch's CPU builds too -----------
# torch has one text of them. Each new text resets some keys that it lacks (max_split_size_mb …) and leaves others as they are
# (those of DEFAULTS), and the getter returns the last text as it came. So what is requested is laid over the user's own
# text, which is sent again at the end, with what it lacks once as torch's default.

DEFAULTS = {"large_segment_size_mb": "20", "expandable_segments": "False"}
"""The keys that the switch sets → what torch starts with."""
NOT_EXPANDABLE = ("max_split_size_mb", "garbage_collection_threshold")
"""What torch_npu does not take beside expandable segments; it complains late, and crashes at the next allocation."""
_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\]]*\]|[^,]*)")


def parse(text: str) -> dict[str, str]:
    """Key → its value as it is written, a list with its brackets."""
    return dict(_PAIR.findall("".join(text.split())))


def join(settings: Mapping[str, str]) -> str:
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def obstacle(settings: Mapping[str, str], *, npu: bool) -> str:
    """Why settings cannot be sent though torch would take them at once."""
    if settings.get("backend", "native") != "native":
        return f"the allocator chosen by backend:{settings['backend']} has no such settings"
    if npu and settings.get("expandable_segments") == "True" and (beside := [k for k in NOT_EXPANDABLE if k in settings]):
        return f"torch_npu has no expandable segments together with {' and '.join(beside)}, which is set already"
    return ""


def has_settings() -> bool:
    return hasattr(_C, "_accelerator_setAllocatorSettings") and hasattr(_C, "_accelerator_getAllocatorSettings")


def _text() -> str:
    """The text in effect. torch_npu reads its own variable only when the first text reaches it."""
    if not has_settings():
        return ""
    variable = os.environ.get("PYTORCH_NPU_ALLOC_CONF", "") if hasattr(torch, "npu") else ""
    return _C._accelerator_getAllocatorSettings() or variable


def _ours(text: str) -> dict[str, str]:
    return {key: value for key, value in parse(text).items() if key in DEFAULTS}


def _send(text: str, *ignored: type[Exception]) -> None:
    lacking = DEFAULTS.keys() & _ours(_text()).keys() - _ours(text).keys()
    back = join(parse(text) | {key: DEFAULTS[key] for key in sorted(lacking)})
    for step in (back, text) if lacking else (text,):
        with suppress(*ignored):
            _C._accelerator_setAllocatorSettings(step)
            if _C._accelerator_getAllocatorSettings() != step:  # torch_npu has just read its variable, over what it was sent
                _C._accelerator_setAllocatorSettings(step)


def _over(value: Mapping[str, Any] | None) -> str:
    """The text in effect with *value* laid over it: some keys of DEFAULTS, or ``None``."""
    return join(parse(_text()) | {key: str(new) for key, new in value.items()}) if value else _text()


def _read_settings() -> dict[str, Any] | None:
    words = {"True": True, "False": False}
    return {key: words.get(text, int(text) if text.isdecimal() else text) for key, text in _ours(_text()).items()} or None


def _write_settings(value: Mapping[str, Any] | None) -> None:
    found, text, refusals = _text(), _over(value), (ValueError, IndexError, RuntimeError)
    try:
        _send(text)
    except refusals as error:
        _send(found, *refusals)  # torch may not have liked the user's text either
        raise LateError(f"torch does not take {text}: {str(error).splitlines()[0]}") from None


def _restore_settings(text: str) -> None:
    if text != _text():
        _send(text)


def _settings_blocked(value: Mapping[str, Any] | None) -> str:
    if not has_settings():
        return f"torch {torch.__version__} has no settings of its allocators that can be set late"
    return obstacle(parse(_over(value)), npu=npu_is_here())


SWITCHES = (
    Switch(
        "torch.accelerator.allocator_settings",
        _read_settings,
        _write_settings,
        state=(_text, _restore_settings),
        restore="between",
        satisfied=lambda value: _ours(_text()) == _ours(_over(value)),
        blocked=_settings_blocked,
    ),
)
