"""What imports of msctx cost; and what is to be done as soon as another module has been imported."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def collected_later() -> Iterator[None]:
    """Import in this block: what is imported stays, and a collection walks over all objects of torch, longer than an import takes.

    The import of torch has made one due, which the program's next objects begin.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


class _Watch(MetaPathFinder):
    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name, self.call = name, call
        self._is_looking = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:  # else it was given up; a program may look for a module, and not import it
                    self.stop()
                    self.call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def when_imported(name: str, call: Callable[[], object]) -> Callable[[], None]:
    """Call it once *name* is imported, at once if it is; returns what gives that up."""
    if name in sys.modules:
        call()
        return lambda: None
    watch = _Watch(name, call)
    sys.meta_path.insert(0, watch)
    return watch.stop
