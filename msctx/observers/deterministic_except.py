"""deterministic_except: operators and modules that deterministic mode leaves out, in forward and backward passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch

from msctx import notices
from msctx.errors import did_you_mean
from msctx.native import watched_models
from msctx.observers.operator_events import Reader, around, kind_of
from msctx.observers.slots_and_files import Slot


class ExceptReader(Reader):
    """It reads nothing, and chooses."""

    is_choosy, option, outlives_fork = True, "deterministic_except", True

    def __init__(self, settings: tuple[str, ...]) -> None:
        self.settings = settings
        self._unmet = {*settings}

    @property
    def requested(self) -> Mapping[str, int]:
        return {"excepts": 1}

    def pause(self) -> None:
        self.end_step()

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        """An operator by its name, of all its variants, or that of its kernel; a module with all that is in it."""
        own, modules = _names_of(operator), around(module)
        found = [one for one in self.settings if _means_any(one, (*own, *modules)) or _is_of_kernel(one, own)]
        self._unmet.difference_update(found)
        return int(bool(found))

    def end_step(self) -> None:
        """Warn of names that have not been met and that nothing has: another operator may be one that runs later."""
        if not self._unmet:
            return
        operators = _operators()
        modules = {path for model in watched_models.models() for path, _ in watched_models.paths_of(model)}
        unmet = sorted([*self._unmet])  # other threads go on
        unknown = [one for one in unmet if not (_means_any(one, operators | modules) or _is_of_kernel(one, operators))]
        self._unmet.clear()
        if unknown:
            text = f"{self.option}: no operator, and no module of a watched model, is called"
            notices.warn("\n".join(f"{text} {name!r}{did_you_mean(name, [*operators, *modules])}" for name in unknown))


EXCEPTED = Slot(ExceptReader)


def _operators() -> set[str]:
    """All that PyTorch's dispatcher knows."""
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return {name for operator in known for name in _names_of(operator)}


def _means_any(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _names_of(operator: str) -> tuple[str, ...]:
    """``aten::index_add_``: that, ``index_add_``, ``index_add``."""
    name = kind_of(operator)
    kind = name.removesuffix("_")
    return operator, name, kind, kind.removesuffix("_backward")


_KERNEL = re.compile(r"(?<=max_unpool)ing|(_out)?_(cuda|gpu)(_template|_kernel)?(?=_?$)|(?<=d)_forward_out$")
"""What the names of kernels in PyTorch's errors have beside those of the operators: ``_bincount_cuda``."""


def _is_of_kernel(name: str, operators: Iterable[str]) -> bool:
    operator = _KERNEL.sub("", name)
    return operator != name and operator.strip("_") in {one.strip("_") for one in operators}
