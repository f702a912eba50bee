"""Ranges in profiles for the calls of modules: ``Default/net-Net/fc-Linear``, named from the outermost module that is called."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from torch import _C
from torch.profiler import record_function

from msctx.native import module_calls
from msctx.observers import scope_names

if TYPE_CHECKING:
    from torch import nn


class _Here(threading.local):
    def __init__(self) -> None:
        self.open: list[record_function | None] = []
        self.names: dict[nn.Module, str] = {}


class ModuleRanges:
    """What compiled code calls has no range: the module that it belongs to has."""

    def __init__(self, *, classes: bool) -> None:
        self._classes = classes
        self._here = _Here()

    def begin(self) -> None:
        module_calls.put(self._enter, 2, all_modules=True)

    def end(self) -> None:
        module_calls.take(self._enter)

    def _enter(self, module: nn.Module, call: module_calls.Call) -> None:
        here, found = self._here, None
        if _C._autograd._profiler_enabled():
            if not here.open:
                here.names = scope_names.in_model(module, classes=self._classes)
            name = here.names.get(module, type(module).__name__)
            if all(name != one.name for one in here.open[-1:] if one):  # else it is torch.compile's wrapper of the same
                found = record_function(name)
        call.leaves.append(partial(self._leave, len(here.open)))
        here.open.append(found)
        if found is not None:
            found.__enter__()

    def _leave(self, depth: int) -> None:
        while len(self._here.open) > depth:
            if (found := self._here.open.pop()) is not None:
                found.__exit__(None, None, None)
        if not self._here.open:
            self._here.names = {}
