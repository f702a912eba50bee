"""``session.enable_dump``: the data of operators in files, as MindSpore's Dump or msProbe lays them out for its tools."""

from __future__ import annotations

import hashlib
import linecache
import math
import re
import sys
import weakref
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from msctx import notices
from msctx.errors import did_you_mean
from msctx.native import ranks_and_process_group, watched_models
from msctx.native.module_tracker import Call
from msctx.observers import module_paths, operator_events, steps
from msctx.observers import slots_and_files as files
from msctx.observers.operator_events import ASK_AGAIN, Reader, Row, dtype_of, kind_of
from msctx.observers.slots_and_files import Slot
from msctx.options.grammars import expression_in
from msctx.options.precision_policy import resolve
from msctx.options.switch_values import Dump

MOST = 2**16
"""Operators of one step that msProbe's layout keeps in memory, also those that raise; lines of a step that MindSpore's does."""


def _tensors(row: Row) -> list[tuple[str, int, dict[str, Any]]]:
    """Each with its side and its place there."""
    return [(side, slot, t) for side in ("input", "output") for slot, t in enumerate(row[f"{side}s"])]


def _texts(arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that are no tensors, as MindSpore writes them: as texts."""
    for name, value in arguments.items():
        if not any(isinstance(one, dict) and "tensor" in one for one in (value if isinstance(value, list) else [value])):
            yield name, str(next(iter(value.values())) if isinstance(value, dict) else value)


class MindSpore:
    """``rank_0/Net/0/STEP/TYPE.NAME.0.0.TIME.SIDE.SLOT.DefaultFormat.npy``, ``statistic.csv`` and ``TYPE.NAME.json``, of arguments.

    Source: MindSpore's guide to Dump (tutorials/debug/dump.md), for CPU and GPU.
    """

    HEAD = ("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type", "Shape")
    COLUMNS: ClassVar[dict[str, tuple[str, str]]] = {
        "max": ("Max Value", "max"),
        "min": ("Min Value", "min"),
        "avg": ("Avg Value", "mean"),
        "l2norm": ("L2Norm Value", "l2"),
        "count": ("Count", "count"),
        "negative zero count": ("Negative Zero Count", "negative"),
        "positive zero count": ("Positive Zero Count", "positive"),
        "nan count": ("Nan Count", "nan"),
        "negative inf count": ("Negative Inf Count", "negative_inf"),
        "positive inf count": ("Positive Inf Count", "positive_inf"),
        "zero count": ("Zero Count", "zero"),
        "md5": ("MD5", "md5"),
    }
    """statistic_category → the column, and its key in a row. "Negative zero" counts what is below zero."""

    def __init__(self, folder: Path, settings: Dump) -> None:
        self._folder, self._settings = folder, settings
        self._tables: defaultdict[Path, list[list[object]]] = defaultdict(list)
        """Lines that wait for the step to end."""

    def meet(self, number: int) -> int:
        return 1

    def write(self, rows: list[Row], scratch: Path) -> None:
        for row in rows:
            place = self._folder / f"rank_{ranks_and_process_group.rank_or_0()}" / self._settings.net / "0" / str(row["step"])
            place.mkdir(parents=True, exist_ok=True)
            kind = kind_of(row["operator"])
            name = f"{kind}-op{row['id']}"
            if self._settings.arguments:
                files.write_json(files.reserve(place / f"{kind}.{name}.json"), dict(_texts(row["attributes"])))
            for side, slot, tensor in _tensors(row):
                given = scratch / (tensor["file"] or "-")
                if tensor["file"] and self._settings.has_digests:
                    tensor["md5"] = hashlib.md5(np.load(given).tobytes(), usedforsecurity=False).hexdigest()
                if tensor["file"] and self._settings.data == "stats":
                    given.unlink()
                elif tensor["file"]:
                    parts = (kind, name, 0, 0, row["began"], side, slot, "DefaultFormat.npy")
                    given.replace(place / ".".join(map(str, parts)))
                if "min" in tensor and self._settings.data != "tensor":
                    scope = "_".join((*module_paths.parts(row["module"]), name))
                    self._tables[place].append([kind, scope, 0, 0, row["began"], side, slot, *self._described(tensor)])
        if sum(map(len, self._tables.values())) > MOST:
            self.flush()

    @property
    def _columns(self) -> list[tuple[str, str]]:
        return [self.COLUMNS[name] for name in self._settings.columns or (name for name in self.COLUMNS if name != "md5")]

    def _described(self, t: dict[str, Any]) -> list[object]:
        dtype = dtype_of(t)
        size = math.prod(_shape(t)) * int((re.findall(r"\d+", dtype) or ["8"])[0]) // 8
        found = t | {"positive": t["count"] - t["negative"] - t["zero"] - t["nan"]}
        values = ["" if (value := found.get(key)) is None else value for _, key in self._columns]
        return [size, dtype, f"({t['shape'].replace('x', ',')})", *values, ""]

    def flush(self) -> None:
        """The lines of a step go into the file together: a process that is killed leaves all of them or none."""
        head = (*self.HEAD, *(column for column, _ in self._columns), "")
        while self._tables:
            place, table = self._tables.popitem()
            files.append_csv(place / "statistic.csv", head, table)

    def end_step(self) -> None:
        """Each row names its step."""


def _shape(t: dict[str, Any]) -> list[int]:
    return [*map(int, filter(None, t["shape"].split("x")))]


def _lines(frames: tuple[tuple[CodeType, int], ...]) -> list[str]:
    """As msProbe writes a stack: without the frames that have no source."""
    lines = [(code, line, linecache.getline(code.co_filename, line).strip()) for code, line in frames]
    return [f"File {code.co_filename}, line {line}, in {code.co_name}, \n {text}" for code, line, text in lines if text]


def _frames() -> Iterator[tuple[CodeType, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "msctx":
            yield frame.f_code, frame.f_lineno
        frame = frame.f_back


class MsProbe:
    """``stepN/rankR/dump.json``, ``construct.json``, ``stack.json`` and ``dump_tensor_data/*.pt``.

    Source: msProbe's guide to dumps of PyTorch (pytorch_data_dump_instruct.md).
    """

    def __init__(self, folder: Path, settings: Dump) -> None:
        self._folder, self._settings = folder, settings
        self.end_step()

    def end_step(self) -> None:
        self._data: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: defaultdict[Any, list[str]] = defaultdict(list)
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._count = 0
        self._place: Path | None = None
        self._met: dict[int, tuple[tuple[tuple[CodeType, int], ...], list[tuple[str, int]]]] = {}
        """Operator → Python's frames, the innermost first, and the modules around it, with how often each had been called."""
        self._modules: dict[Call, tuple[str, int]] = {}
        self._counts: defaultdict[str, Iterator[int]] = defaultdict(count)

    def meet(self, number: int) -> int:
        self._count += 1
        if self._count > MOST:
            if self._count == MOST + 1:
                text = f"one step has more than {MOST:,} operators, and the others are left out of the dump; "
                text += "a step ends with optimizer.step() or msctx.step()"
                notices.warn(f"session.enable_dump: {text}")
            return 0
        around = module_paths.around()
        for call, name in around:
            if call not in self._modules:
                self._modules[call] = name, next(self._counts[name])
        self._met[number] = tuple(_frames()), [self._modules[call] for call, _ in around]
        return 1 | ASK_AGAIN

    def write(self, rows: list[Row], scratch: Path) -> None:
        for row in rows:
            if self._place is None:
                folder = self._folder / f"step{row['step']}" / f"rank{ranks_and_process_group.rank_or_0()}"
                self._place = files.reserve(folder, partial(Path.mkdir, parents=True))
            kind, is_backward = kind_of(row["operator"]), row["direction"] == "backward"
            direction = "backward" if is_backward else "forward"
            name = f"Aten.{kind}.{self._calls[kind, is_backward]}.{direction}"
            self._calls[kind, is_backward] += 1
            sides: dict[str, Any] = {"input": []} if is_backward else {"input_args": [], "input_kwargs": {}}
            sides["output"] = []
            for side, slot, tensor in _tensors(row):
                found = self._described(tensor)
                given = scratch / (tensor["file"] or "-")
                if tensor["file"] and self._settings.has_digests:
                    found["md5"] = f"{zlib.crc32(np.load(given).tobytes()):08x}"
                if tensor["file"] and self._settings.data != "stats":
                    found["data_name"] = f"{name}.{side}.{slot}.pt"
                    of_file = torch.from_numpy(np.load(given))
                    of_file = of_file.bfloat16() if dtype_of(tensor) == "bfloat16" else of_file
                    files.write(self._place / "dump_tensor_data" / found["data_name"], partial(torch.save, of_file))
                given.unlink(missing_ok=True)
                sides["input_args" if side == "input" and not is_backward else side].append(found)
            self._data[name] = sides
            # in a backward pass: of the operator of the forward pass that made the node
            frames, calls = self._met.get(row["maker" if is_backward else "id"], ((), []))
            self._stacks[frames].append(name)
            around = [f"Module.{path}.{direction}.{number}" for path, number in calls]
            if row["direction"] == "optimizer":
                around = ["optimizer"]
            self._parents |= zip((*around, name), (None, *around), strict=True)

    @staticmethod
    def _described(t: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "torch.Tensor", "dtype": f"torch.{dtype_of(t)}", "shape": _shape(t)}
        found["requires_grad"] = t["requires_grad"]
        if "min" in t:
            up, down = (math.inf if t[f"{sign}_inf"] else 0.0 for sign in ("positive", "negative"))
            least, largest = t["min"], t["max"]
            if least is None:  # nothing is finite
                least, largest = up or None, -down or None
            values = {"Max": up or largest, "Min": -down or least}
            values |= {"Mean": (up - down) or t["mean"], "Norm": (up + down) or t["l2"]}
            found |= dict.fromkeys(values, math.nan) if t["nan"] else values
        return found

    def flush(self) -> None:
        """The step is written whole; a scope that goes on with it writes it again."""
        if self._place is None:
            return
        level = {"task": "statistics" if self._settings.data == "stats" else "tensor", "level": "L1", "framework": "pytorch"}
        folder = str(self._place / "dump_tensor_data") if self._settings.data != "stats" else None
        files.write_json(self._place / "dump.json", {**level, "dump_data_dir": folder, "data": self._data})
        files.write_json(self._place / "construct.json", self._parents)
        stacks = [[names, _lines(frames)] for frames, names in self._stacks.items() if frames]
        files.write_json(self._place / "stack.json", dict(enumerate(stacks)))


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
    """The steps of a dump are counted from the outermost scope that observes; a context that is entered again goes on with them."""

    def __init__(self, settings: Dump) -> None:
        self.settings = settings
        self.option, self.output = settings.option, Path(settings.path).absolute()
        self._layout: MindSpore | MsProbe = (MindSpore if settings.layout == "mindspore" else MsProbe)(self.output, settings)
        self._steps = [tuple(map(int, part.split("-"))) for part in settings.steps.replace(" ", "").split("|") if part]
        self._met: set[str] = set()
        """Of the layers, those that something was called."""
        self._missed: set[str] = set()
        self._needs_files = settings.data != "stats" or settings.has_digests
        self.is_choosy = bool(settings.layers) or settings.marked or settings.layout == "msprobe"

    @property
    def _is_of_rank(self) -> bool:
        return not self.settings.ranks or ranks_and_process_group.rank_or_0() in self.settings.ranks

    @property
    def requested(self) -> Mapping[str, int]:
        step = self.settings.first_step + steps.current()
        is_step = not self._steps or any(part[0] <= step <= part[-1] for part in self._steps)
        if not (is_step and self._is_of_rank):
            return {}
        return {
            "inputs": int(self.settings.mode != "output"),
            "outputs": int(self.settings.mode != "input"),
            "statistics": int(self.settings.data != "tensor" or self.settings.layout == "msprobe"),
            "tensors": int(self._needs_files),
            "attributes": int(self.settings.arguments),
        }

    @property
    def folder(self) -> Path | None:
        return self.scratch if self._needs_files else None

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        inside = module_paths.module_at(place)
        if self.settings.marked:
            is_meant = inside in _marked
            self._met.update([SET_DUMP] * is_meant)
        else:
            is_meant = not self.settings.layers or self._is_meant(operator, module, inside)
        return self._layout.meet(number) if is_meant else 0

    def _is_meant(self, operator: str, module: str, inside: nn.Module | None) -> bool:
        """Whether a layer is called as the operator, as a module around it, or as the class of their model, if no module is.

        The name of a module of a watched model means this module alone.
        """
        kind, place = kind_of(operator), None if inside is None else watched_models.place_of(inside)
        models = {model: type(one).__name__ for model in [*watched_models.OPEN] if (one := model.module()) is not None}
        paths = {path for model in models for path in model.paths}
        named = {model: {name, module_paths.of_root(name)} for model, name in models.items()}
        roots = {name for model in models if place and model in place.paths for name in named[model]} - paths
        around = {one for name in operator_events.around(module) for one in (name, name.replace(".", "/"))}
        own = roots if module in roots else {module} if module else set()
        names = {*around, *(f"{name}/{kind}" for name in own), kind, operator}
        modules = paths.union(*named.values())

        def is_meant(layer: str) -> bool:
            is_module = not modules.isdisjoint((layer, layer.replace("/", ".")))
            return layer in around | roots if is_module else _is_meant(layer, names, kind)

        found = [*filter(is_meant, self.settings.layers)]
        self._met.update(found)
        self._missed.update(names, roots)
        return bool(found)

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            row["step"] += self.settings.first_step
            if row["problem"]:
                self.guarded(partial(_fail, row["problem"]))
            for one in (*row["inputs"], *row["outputs"]):
                if one.get("unread"):
                    self._tell_unread(row["operator"], one)
        self._layout.write(rows, self.scratch)

    def _tell_unread(self, operator: str, one: Row) -> None:
        what = (
            f"{one['argument'] or 'a result'} of {operator}, {dtype_of(one)}[{one['shape']}], is not written ({one['unread']})"
        )
        if (kind := dtype_of(one) + one["unread"]) not in self.failures:
            self.failures.add(kind)
            notices.warn(f"{self.option}: {what}; the dump continues")

    def end_step(self) -> None:
        self.guarded(self._layout.flush)
        self._layout.end_step()

    def pause(self) -> None:
        self.guarded(self._layout.flush)
        super().pause()

    def unmet(self) -> Iterator[str]:
        """What is to be dumped, and did not run."""
        name = "dump_config" if self.option == "dump_config" else "dump_layer"
        if self.settings.marked and SET_DUMP not in self._met:
            yield f"{name}: no module that {SET_DUMP} marks ran in a model passed to ctx.watch(model)"
        for layer in self.settings.layers if self._missed and self._is_of_rank else ():
            if layer not in self._met:
                near = did_you_mean(layer, sorted(self._missed))
                yield f"{name}: no operator or module that ran is called {layer!r}{near}"


def reader_of(settings: Dump) -> DumpReader:
    """That of the dump which is on; else a context that is entered again goes on where it was, if its folder is the same."""
    return SLOT.on if SLOT.read() == settings else _reader(settings, Path(settings.path).absolute())


@lru_cache(64)
def _reader(settings: Dump, folder: Path) -> DumpReader:
    return DumpReader(settings)


SLOT = Slot(reader_of)


def _fail(text: str) -> None:
    raise OSError(text)


def _is_meant(layer: str, names: set[str], kind: str) -> bool:
    if (expression := expression_in(layer)) is not None:
        return any(re.search(expression, name) for name in names)
    is_named = layer.lower() in kind.lower() or kind in (resolve(layer) or ())  # by PyTorch, or as a type of CANN's
    return is_named or any(fnmatchcase(name, layer) for name in names)
