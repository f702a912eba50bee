"""``deterministic_except``: operators and modules that deterministic mode leaves out, in forward and backward passes."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import py_object
from fnmatch import fnmatchcase

from msctx.native import core
from msctx.observers import collector
from msctx.observers.collector import RECENT, Reader
from msctx.options.observation import DeterministicExcept


class ExceptReader(Reader):
    """It reads nothing: the collector names the modules for it."""

    queue = RECENT

    def __init__(self, settings: DeterministicExcept) -> None:
        self.settings = settings

    @property
    def asked(self) -> Mapping[str, int]:
        return {}

    def begin(self) -> None:
        core.load().c.msctx_deterministic_except(py_object(_decide))

    def pause(self) -> None:
        core.load().c.msctx_deterministic_except(py_object())

    def is_excepted(self, operator: str, module: str) -> bool:
        """An operator by its name, of all its variants; a module with all that is in it."""
        kind = operator.rpartition("::")[2].removesuffix("_")
        names = (operator, kind, kind.removesuffix("_backward"))
        inside = [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)] if module else []
        return any(fnmatchcase(name, pattern) for pattern in self.settings.names for name in (*names, *inside))


def _decide(operator: str, module: str) -> int:
    """Called by the library, in any thread: it lives as long as the process."""
    found = collector.reader("observers.deterministic_except")
    return int(isinstance(found, ExceptReader) and found.is_excepted(operator, module))
