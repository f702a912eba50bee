"""Which module's forward pass has allocated what is in use, while the pool of host memory is in force: by hooks on all modules.

Paths begin with the class of the module that is called from outside. What a backward pass or an optimizer allocates is for no module.
A path keeps its number in the library for as long as the process lives: what one run has left in use keeps its name in the next.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from msctx import locks
from msctx.native import memory

if TYPE_CHECKING:
    from torch import nn

MOST = 4096
"""Purposes that the pool distinguishes."""
OTHER = "outside of forward passes"

_numbers: dict[str, int] = {OTHER: 0}
_lock = locks.plain()


class _Entered(threading.local):
    def __init__(self) -> None:
        self.before: list[int] = []


class ByModule:
    """Counts while it is entered."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._entered = _Entered()

    @contextmanager
    def counting(self) -> Iterator[ByModule]:
        from torch.nn.modules import module

        handles = (
            module.register_module_forward_pre_hook(self._begin),
            module.register_module_forward_hook(self._end, always_call=True),
        )
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def largest(self, count: int = 10, *, at_refusal: bool = False) -> list[tuple[str, int]]:
        """Path and bytes in use, the largest first: now, or as it was when memory was refused last."""
        with _lock:
            paths = [*_numbers]
        found = memory.by_purpose(len(paths), at_refusal=at_refusal)
        rows = sorted(zip(paths, found, strict=True), key=lambda row: -row[1])
        return [row for row in rows[:count] if row[1] > 0]

    def _begin(self, entered: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():  # what compiled code allocates is its caller's
            return
        with _lock:
            if not self._entered.before and entered not in self._of:  # called from outside
                self._of.update((found, path) for path, found in entered.named_modules(prefix=type(entered).__name__))
            path = self._of.get(entered, type(entered).__name__)
            if len(_numbers) < MOST:
                _numbers.setdefault(path, len(_numbers))
            number = _numbers.get(path, 0)
        self._entered.before.append(memory.purpose(number))

    def _end(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and self._entered.before:
            memory.purpose(self._entered.before.pop())
