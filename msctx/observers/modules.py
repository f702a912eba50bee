"""Names the module whose forward pass runs, for the collector: hooks on the modules of watched models, while it collects."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msctx import locks
from msctx.memory import watched
from msctx.native import core

if TYPE_CHECKING:
    from torch import nn

_lock = locks.reentrant()
_on = False
_handles: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()


class _Stack(threading.local):
    def __init__(self) -> None:
        self.before: list[int | None] = []


_entered = _Stack()


class _Hooks:
    """Of one module. Compiled code has no module: what it calls counts for the module that called it."""

    def __init__(self, library: Any, path: str) -> None:
        self._library, self._module = library, library.msctx_module(path)

    def enter(self, module: nn.Module, args: Any) -> None:
        from torch.compiler import is_compiling

        if not is_compiling():
            _entered.before.append(self._library.msctx_enter_module(self._module))

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        from torch.compiler import is_compiling

        if not is_compiling() and _entered.before:
            self._library.msctx_enter_module(_entered.before.pop())


def turn(*, on: bool) -> None:
    """Whether the collector collects."""
    global _on
    with _lock:
        if on == _on:
            return
        _on = on
        for model in watched.models():
            (_hook if on else _unhook)(model)
        if not on:
            _entered.before.clear()
            core.load().c.msctx_enter_module(None)


def name_unwatched(met: Callable[[nn.Module], object]) -> None:
    """Name the modules of models that nobody watches, too, from now on: a module without a name that is called is such a model.

    *met* is called with each before its first forward pass.
    """
    from torch.compiler import is_compiling
    from torch.nn.modules.module import register_module_forward_pre_hook

    models: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def look(module: nn.Module, args: Any) -> None:
        if not is_compiling() and module not in _handles and module not in models:
            models.add(module)
            _hook(module)
            met(module)

    register_module_forward_pre_hook(look)


def _hook(model: nn.Module) -> None:
    with _lock:
        for path, module in model.named_modules() if _on else ():
            if path and module not in _handles and not hasattr(module, "graph"):  # scripted modules take no hooks of Python's
                hooks = _Hooks(core.load().c, path.replace("_orig_mod.", ""))
                _handles[module] = [
                    module.register_forward_pre_hook(hooks.enter),
                    module.register_forward_hook(hooks.leave, always_call=True),
                ]


def _unhook(model: nn.Module) -> None:
    with _lock:
        for module in model.modules():
            for handle in _handles.pop(module, ()):
                handle.remove()


watched.listen(_hook, _unhook)
