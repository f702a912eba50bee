"""What imports of msctx cost; and what is to be done as soon as another module has been imported."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
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
    waiting: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
    """Module → what is called once it has been imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self.waiting.get(name):
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                for call in self.waiting.pop(name, ()):
                    call()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Watch())


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Call it once *name* is imported, at once if it is."""
    if name in sys.modules:
        call()
    else:
        _Watch.waiting[name].append(call)
