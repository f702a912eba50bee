"""``session.enable_dump``: the data of operators in files."""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msctx import notices
from msctx.errors import nearest
from msctx.memory import watched
from msctx.native import models
from msctx.observers import files, scope_names
from msctx.observers.collector import BITS, Reader, Row
from msctx.observers.dump_layouts import MindSpore, MsProbe
from msctx.options.grammars import expression_in
from msctx.options.observation import Dump

if TYPE_CHECKING:
    from torch import nn

OPTION = "session.enable_dump"
SET_DUMP = "msctx.set_dump(module)"
_marked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def set_dump(target: nn.Module, enabled: bool = True) -> None:
    """Mark a module and those in it, to be dumped forward and backward where ``dump_config`` has ``dump_mode`` 2; or take that back.

    The models are those that ``ctx.watch(model)`` names. What is marked in the middle of a step counts from the next one on.

    Raises:
        ValueError: *target* is no module (PyTorch has no primitives), or *enabled* no bool.
    """
    from torch import nn

    if not isinstance(target, nn.Module):
        raise ValueError(f"set_dump: target must be a torch.nn.Module, not {type(target).__name__}")
    if not isinstance(enabled, bool):
        raise ValueError(f"set_dump: enabled must be a bool, not {enabled!r}")
    (_marked.update if enabled else _marked.difference_update)(target.modules())


class DumpReader(Reader):
    """The steps of a dump are counted from its first entry on; contexts with the same settings go on with them."""

    goes_on = True

    def __init__(self, settings: Dump) -> None:
        self.settings = settings
        self._folder = Path(settings.path).absolute()
        self._layout: MindSpore | MsProbe = (MindSpore if settings.layout == "mindspore" else MsProbe)(self._folder, settings)
        self._steps = [tuple(map(int, part.split("-"))) for part in settings.steps.replace(" ", "").split("|") if part]
        self._step = settings.first_step
        self._modules: defaultdict[str, bool] = defaultdict(bool)
        self._moment = -1
        self._met: set[str] = set()
        self._missed: set[str] = set()
        self._scratch = files.Scratch(OPTION, self._folder)
        self._needs_files = settings.data != "stats" or settings.has_digests
        self.is_choosy = bool(settings.layers) or settings.marked or settings.layout == "msprobe"

    @property
    def _is_wanted(self) -> bool:
        return (
            self._scratch.works
            and self._is_of_rank
            and (not self._steps or any(part[0] <= self._step <= part[-1] for part in self._steps))
        )

    @property
    def _is_of_rank(self) -> bool:
        return not self.settings.ranks or files.rank() in self.settings.ranks

    @property
    def asked(self) -> Mapping[str, int]:
        if not self._is_wanted:
            return {}
        return {
            "inputs": int(self.settings.mode != "output"),
            "outputs": int(self.settings.mode != "input"),
            "statistics": int(self.settings.data != "tensor" or self.settings.layout == "msprobe"),
            "tensors": BITS if self.settings.has_digests else int(self._needs_files),
            "attributes": int(self.settings.arguments),
        }

    @property
    def folder(self) -> Path | None:
        return self._scratch.path if self._needs_files else None

    def wants(self, operator: str, module: str, number: int) -> int:
        is_meant = (
            self._is_marked(module) if self.settings.marked else not self.settings.layers or self._is_meant(operator, module)
        )
        return self._layout.meet(number) if is_meant else 0

    def _is_meant(self, operator: str, module: str) -> bool:
        kind = operator.rpartition("::")[2]
        around = [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)] if module else []
        around += [name.replace(".", "/") for name in around]
        names = {f"{module}/{kind}" if module else kind, *around, kind, operator}
        found = [
            layer
            for layer in self.settings.layers
            if (layer in around if self._is_module(layer) else _is_meant(layer, names, kind))
        ]
        self._met.update(found)
        self._missed.update(names - {""})
        return bool(found)

    def _is_module(self, layer: str) -> bool:
        """Of a watched model: such a name means the module alone."""
        return layer.replace("/", ".") in self._paths()

    def _is_marked(self, module: str) -> bool:
        is_marked = self._paths().get(module, False)
        self._met.update([SET_DUMP] * is_marked)
        return is_marked

    def _paths(self) -> Mapping[str, bool]:
        """Those of the modules of watched models → whether :func:`set_dump` has marked one there."""
        if (moment := watched.now()) != self._moment:
            self._moment = moment
            self._modules = defaultdict(bool)
            for model in watched.models():
                for path, module in models.paths_of(model):
                    self._modules[path or scope_names.of_root(type(model).__name__)] |= module in _marked
        return self._modules

    def begin(self) -> None:
        self._moment = -1
        self._scratch.make()

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            row["step"] = self._step
            if row["problem"]:
                files.guarded(OPTION, self._folder, partial(_fail, row["problem"]))
        files.guarded(OPTION, self._folder, lambda: self._layout.write(rows, self._scratch.path))

    def end_step(self) -> None:
        files.guarded(OPTION, self._folder, self._layout.flush)
        self._layout.end_step()
        self._step += 1
        self._moment = -1

    def pause(self) -> None:
        files.guarded(OPTION, self._folder, self._layout.flush)
        self._scratch.remove()
        if self.settings.marked and SET_DUMP not in self._met:
            notices.tell(
                OPTION, SET_DUMP, f"dump_mode 2 dumps what {SET_DUMP} marks in models that ctx.watch(model) names: nothing was"
            )
        for layer in self.settings.layers:
            if self._missed and layer not in self._met:
                near = nearest(layer, sorted(self._missed))
                hint = f"; did you mean {near}?" if near else ""
                notices.tell("dump_layer", layer, f"dump_layer: no operator or module is called {layer!r}{hint}")


def _fail(text: str) -> None:
    raise OSError(text)


def _is_meant(layer: str, names: set[str], kind: str) -> bool:
    if (expression := expression_in(layer)) is not None:
        return any(re.search(expression, name) for name in names)
    return layer.lower() in kind.lower() or any(fnmatchcase(name, layer) for name in names)
