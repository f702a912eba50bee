"""``deterministic_except``: operators and modules that deterministic mode leaves out, in forward and backward passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import py_object
from fnmatch import fnmatchcase
from functools import cache

from msctx import notices
from msctx.errors import did_you_mean
from msctx.native import core, watched
from msctx.observers import collector
from msctx.observers.collector import Reader, known_operators
from msctx.options.policies import DeterministicExcept

OPTION = "deterministic_except"


class ExceptReader(Reader):
    """It reads nothing: the collector names the modules for it."""

    def __init__(self, settings: DeterministicExcept) -> None:
        self.settings = settings
        self._unmet = {*settings.names}

    @property
    def requested(self) -> Mapping[str, int]:
        return {}

    def begin(self) -> None:
        core.load().c.msctx_deterministic_except(py_object(_decide))

    def pause(self) -> None:
        core.load().c.msctx_deterministic_except(py_object())
        self.end_step()

    def is_excepted(self, operator: str, module: str) -> bool:
        """An operator by its name, of all its variants; a module with all that is in it."""
        inside = [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)] if module else []
        names = (*_names_of(operator), *inside)
        found = [pattern for pattern in self.settings.names if _means_any(pattern, names)]
        self._unmet.difference_update(found)
        return bool(found)

    def end_step(self) -> None:
        """Warn of names that have not been met and that nothing has: another operator may be one that runs later."""
        paths = {path for model in watched.models() for path, _ in watched.paths_of(model)} if self._unmet else set()
        unknown = sorted(name for name in self._unmet if not (_means_any(name, paths) or _means_operator(name)))
        self._unmet.clear()
        if unknown:
            near = [f"{name!r}{did_you_mean(name, (*_operators(), *paths))}" for name in unknown]
            text = "\n".join(f"{OPTION}: no operator, and no module of a watched model, is called {one}" for one in near)
            notices.warn(text)


def _operators() -> set[str]:
    return {name for operator in known_operators() for name in _names_of(operator)}


@cache
def _means_operator(pattern: str) -> bool:
    return _means_any(pattern, _operators())


def _means_any(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _names_of(operator: str) -> tuple[str, ...]:
    """``aten::index_add_``: that, ``index_add_``, ``index_add``."""
    name = operator.rpartition("::")[2]
    kind = name.removesuffix("_")
    return operator, name, kind, kind.removesuffix("_backward")


def _decide(operator: str, module: str) -> int:
    """Called by the library, in any thread: it lives as long as the process."""
    found = collector.reader("observers.deterministic_except")
    return int(isinstance(found, ExceptReader) and found.is_excepted(operator, module))
