"""Ranges in profiles for the calls of modules: ``Default/net-Net/fc-Linear``, named from the outermost module that is called."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch import _C
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function

from msctx.native.module_calls import keep_from_dynamo
from msctx.observers import scope_names

if TYPE_CHECKING:
    from torch import nn


class _Here(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[nn.Module, record_function | None]] = []
        self.names: dict[nn.Module, str] = {}


class ModuleRanges:
    """What compiled code calls has no range: the module that it belongs to has."""

    def __init__(self, *, classes: bool) -> None:
        self._classes = classes
        self._here = _Here()
        self._handles: list[Any] = []

    def begin(self) -> None:
        keep_from_dynamo(ModuleRanges._enter, ModuleRanges._leave)
        first, last = register_module_forward_pre_hook, register_module_forward_hook
        self._handles = [first(self._enter), last(self._leave, always_call=True)]

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        found = None
        if _C._autograd._profiler_enabled():
            if not self._here.open:
                self._here.names = scope_names.in_model(module, classes=self._classes)
            name = self._here.names.get(module, type(module).__name__)
            if all(
                name != one.name for _, one in self._here.open[-1:] if one
            ):  # else it is torch.compile's wrapper of the same
                found = record_function(name)
                found.__enter__()
        self._here.open.append((module, found))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if is_compiling() or all(one is not module for one, _ in self._here.open):
            return
        while self._here.open:  # a module inside may have been left without its hooks
            one, found = self._here.open.pop()
            if found is not None:
                found.__exit__(None, None, None)
            if one is module:
                break
        if not self._here.open:
            self._here.names = {}
