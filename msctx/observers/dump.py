"""``session.enable_dump``: the data of operators in files."""

from __future__ import annotations

import atexit
import functools
import os
import re
import weakref
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from torch import nn

from msctx import notices
from msctx.errors import did_you_mean
from msctx.native import distributed, watched
from msctx.observers import collector, files, modules, steps
from msctx.observers.collector import BITS, Reader, Row, dtype_of
from msctx.observers.dump_layouts import MindSpore, MsProbe
from msctx.options import operators
from msctx.options.grammars import expression_in
from msctx.options.policies import Dump

SET_DUMP = "msctx.set_dump(module)"
_marked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def set_dump(target: nn.Module, enabled: bool = True) -> None:
    """Mark a module and its submodules, or unmark them: with ``dump_mode`` 2, ``dump_config`` dumps them forward and backward.

    The mark belongs to these objects: a copy, or another model with the same paths, has none. Their model must be passed to
    ``ctx.watch(model)``. A mark set in the middle of a step takes effect in the next one.

    Raises:
        ValueError: *target* is no module (PyTorch has no primitives), or *enabled* no bool.
    """
    if not isinstance(target, nn.Module):
        raise ValueError(f"set_dump: target must be a torch.nn.Module, not {type(target).__name__}")
    if not isinstance(enabled, bool):
        raise ValueError(f"set_dump: enabled must be a bool, not {enabled!r}")
    (_marked.update if enabled else _marked.difference_update)(target.modules())


class DumpReader(Reader):
    """The steps of a dump are counted from the outermost scope that observes; contexts with the same settings go on with them."""

    goes_on = True

    def __init__(self, settings: Dump) -> None:
        self.settings = settings
        self._folder = Path(settings.path).absolute()
        self._layout: MindSpore | MsProbe = (MindSpore if settings.layout == "mindspore" else MsProbe)(self._folder, settings)
        self._steps = [tuple(map(int, part.split("-"))) for part in settings.steps.replace(" ", "").split("|") if part]
        self._step = settings.first_step
        self._left: tuple[object, int] | None = None
        """The span of steps in which it was paused, and when."""
        self._names: set[str] = set()
        """Of the modules of watched models, and of these themselves."""
        self._roots: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
        """Module → the names of the models that it is in."""
        self._moment = -1
        self._met: set[str] = set()
        self._reported: set[str] = set()
        """Of the layers, those that something was called, or of which there was a warning."""
        self._missed: set[str] = set()
        self._scratch = files.Scratch(self._folder)
        self._needs_files = settings.data != "stats" or settings.has_digests
        self.is_choosy = bool(settings.layers) or settings.marked or settings.layout == "msprobe"

    @property
    def _is_wanted(self) -> bool:
        return self._is_of_rank and (not self._steps or any(part[0] <= self._step <= part[-1] for part in self._steps))

    @property
    def _is_of_rank(self) -> bool:
        return not self.settings.ranks or distributed.rank_or_0() in self.settings.ranks

    @property
    def requested(self) -> Mapping[str, int]:
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

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        inside = modules.module_at(place)
        if self.settings.marked:
            is_meant = inside in _marked
            self._met.update([SET_DUMP] * is_meant)
        else:
            is_meant = not self.settings.layers or self._is_meant(operator, module, inside)
        return self._layout.meet(number) if is_meant else 0

    def _is_meant(self, operator: str, module: str, inside: nn.Module | None) -> bool:
        self._look_at_models()
        kind = _kind(operator)
        roots = self._roots.get(inside, set()) if inside is not None else set()
        around = [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)] if module else []
        around += [name.replace(".", "/") for name in around]
        names = {f"{name}/{kind}" for name in (roots if module in roots else (module,))} if module else {kind}
        names |= {*around, kind, operator}
        found = [
            layer
            for layer in self.settings.layers
            if (layer in (*around, *roots) if self._is_module(layer) else _is_meant(layer, names, kind))
        ]
        self._met.update(found)
        self._missed.update(names, roots)
        return bool(found)

    def _is_module(self, layer: str) -> bool:
        """Of a watched model: such a name means the module alone."""
        return not self._names.isdisjoint((layer, layer.replace("/", ".")))

    def _look_at_models(self) -> None:
        """At the modules of watched models, and what the model around each is called: by its class, unless a module has that path."""
        if (moment := watched.times) == self._moment:
            return
        found = [(model, path, module) for model in watched.models() for path, module in watched.paths_of(model)]
        paths = {path for _, path, _ in found}
        roots: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
        for model, _, module in found:
            name = type(model).__name__
            roots[module] = roots.get(module, set()) | ({name, modules.of_root(name)} - paths)
        self._roots, self._names, self._moment = roots, paths.union(*roots.values()), moment

    def begin(self) -> None:
        span, index = self._left or (steps.span(), 0)
        if span is steps.span():
            self._step += steps.current() - index
        self._moment = -1
        atexit.register(self._end)  # of set_context, which nobody leaves

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            row["step"] = self._step
            if row["problem"]:
                self._guarded(functools.partial(_fail, row["problem"]))
            for one in (*row["inputs"], *row["outputs"]):
                if one.get("unread"):
                    self._tell_unread(row["operator"], one)
        self._guarded(lambda: self._layout.write(rows, self._scratch.path))

    def _guarded(self, work: Callable[[], object]) -> None:
        files.guarded(self.settings.option, self._folder, work, self._reported)

    def _tell_unread(self, operator: str, one: Row) -> None:
        what = (
            f"{one['argument'] or 'a result'} of {operator}, {dtype_of(one)}[{one['shape']}], is not written ({one['unread']})"
        )
        if (kind := dtype_of(one) + one["unread"]) not in self._reported:
            self._reported.add(kind)
            notices.warn(f"{self.settings.option}: {what}; the dump goes on")

    def end_step(self) -> None:
        self._guarded(self._layout.flush)
        self._layout.end_step()
        self._step += 1
        self._moment = -1

    def _end(self) -> None:
        if self.process == os.getpid():
            collector.flush()
            self.pause()

    def pause(self) -> None:
        self._left = steps.span(), steps.current()
        atexit.unregister(self._end)
        self._guarded(self._layout.flush)
        self._scratch.remove()
        if self.settings.marked and SET_DUMP not in self._met:
            notices.warn(f"dump_mode 2 dumps modules marked by {SET_DUMP} in models passed to ctx.watch(model): none ran")
        if self._is_of_rank:
            self._tell_unmet()

    def _tell_unmet(self) -> None:
        """Once for each layer that nothing that ran was called so far."""
        left = [layer for layer in self.settings.layers if self._missed and layer not in self._met]
        self._met.update(left)
        name = "kernels of dump_config" if self.settings.option == "dump_config" else "dump_layer"
        near = {layer: did_you_mean(layer, sorted(self._missed)) for layer in left}
        if left:
            notices.warn(
                "\n".join(f"{name}: no operator or module that ran is called {layer!r}{near[layer]}" for layer in left)
            )


def _fail(text: str) -> None:
    raise OSError(text)


def _kind(operator: str) -> str:
    return operator.rpartition("::")[2]


def _is_meant(layer: str, names: set[str], kind: str) -> bool:
    if (expression := expression_in(layer)) is not None:
        return any(re.search(expression, name) for name in names)
    is_named = layer.lower() in kind.lower() or kind in (operators.resolve(layer) or ())  # by PyTorch, or as a type of CANN's
    return is_named or any(fnmatchcase(name, layer) for name in names)
