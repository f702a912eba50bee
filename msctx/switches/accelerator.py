"""Switches that CUDA and Ascend share in form: torch gives both the same module interface."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msctx.errors import SwitchError
from msctx.switches.base import Switch

Module = Callable[[], Any]
"""Returns ``torch.cuda`` or ``torch.npu``; called late, since the second is not there before torch_npu is imported."""


def current_device(name: str, module: Module, available: Callable[[], bool]) -> Switch:
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

    return Switch(
        name=name, read=read, write=write, load=put_back, scope="thread", blocked=blocked, available=available, save=read
    )


def memory_cap(name: str, module: Module, available: Callable[[], bool]) -> Switch:
    """The most that the caching allocator may hold on the current device, in bytes; ``None``: no cap.

    Other devices of the process are left alone: to touch them would create a context, some hundred MB, on each.
    """

    def total(device: int) -> int:
        return module().get_device_properties(device).total_memory

    def fraction(device: int) -> float:
        """The allocator's limit; torch_npu makes the device it is asked about current, so the current one is kept."""
        before = module().current_device()
        try:
            return float(module().get_per_process_memory_fraction(device))
        finally:
            if module().current_device() != before:
                module().set_device(before)

    def read() -> int | None:
        if not module().is_initialized():
            return None
        device = module().current_device()
        limit = fraction(device)
        return round(limit * total(device)) if limit < 1.0 else None

    def write(cap: int) -> None:
        device = module().current_device()
        module().set_per_process_memory_fraction(min(1.0, cap / total(device)), device)

    def save() -> tuple[int, float]:
        device = module().current_device()
        return device, fraction(device)

    def load(state: tuple[int, float]) -> None:
        device, limit = state
        before = module().current_device()
        module().set_per_process_memory_fraction(limit, device)
        if module().current_device() != before:
            module().set_device(before)

    def satisfied(cap: int) -> bool:
        in_force = read()
        return in_force == cap or (in_force is None and module().is_initialized() and cap >= total(module().current_device()))

    def blocked(cap: int) -> str:
        if module().is_initialized():
            device = module().current_device()
            if (held := module().memory_allocated(device)) > cap:
                raise SwitchError(
                    f"max_device_memory={cap} bytes: {held} bytes are already allocated on device {device}; nothing was changed"
                )
        return ""

    return Switch(
        name=name,
        read=read,
        write=write,
        save=save,
        load=load,
        satisfied=satisfied,
        blocked=blocked,
        available=available,
    )


def synchronize_each_op(name: str, module: Module, available: Callable[[], bool]) -> Switch:
    """Waits for the device after each operator, by a dispatch mode of the thread.

    The environment variables that launch synchronously (CUDA_LAUNCH_BLOCKING …) are read once when the device is
    initialised and could not be put back.
    """
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    class Synchronize(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            module().synchronize()
            return result

    class Stack(threading.local):
        def __init__(self) -> None:
            self.modes: list[Any] = []

    stack = Stack()

    def write(on: bool) -> None:
        modes = stack.modes
        if on and not modes:
            modes.append(Synchronize())
            modes[-1].__enter__()
        elif not on and modes:
            if _get_current_dispatch_mode() is not modes[-1]:
                raise SwitchError(f"{name}: another dispatch mode was entered inside the scope and is still active")
            modes.pop().__exit__(None, None, None)

    return Switch(name=name, read=lambda: bool(stack.modes), write=write, scope="thread", available=available)
