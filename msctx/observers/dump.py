"""``session.enable_dump``: the data of operators in files. The layouts are those of MindSpore's Dump and of msProbe."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msctx import notices
from msctx.errors import nearest
from msctx.observers import files
from msctx.observers.collector import Reader, Row
from msctx.options.observation import Dump

OPTION = "session.enable_dump"
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
          "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64",
          "ComplexDouble": "complex128"}  # fmt: skip
"""The names of C++ → those of NumPy."""


def kind_of(row: Row) -> str:
    """``aten::convolution`` → ``convolution``."""
    return str(row["operator"]).rpartition("::")[2]


class DumpReader(Reader):
    """The steps of a dump are counted from its first entry on; contexts with the same settings go on with them."""

    def __init__(self, settings: Dump) -> None:
        self.settings = settings
        self._folder = Path(settings.path).absolute()
        self._layout = (MindSpore if settings.layout == "mindspore" else MsProbe)(self._folder, settings)
        self._steps = [tuple(map(int, part.split("-"))) for part in settings.steps.replace(" ", "").split("|") if part]
        self._step = 0
        self._met: set[str] = set()
        self._missed: set[str] = set()
        self._works = True
        self.is_choosy = bool(settings.layers)

    @property
    def _is_wanted(self) -> bool:
        return self._works and (not self._steps or any(part[0] <= self._step <= part[-1] for part in self._steps))

    @property
    def asked(self) -> Mapping[str, int]:
        if not self._is_wanted:
            return {}
        return {
            "inputs": int(self.settings.mode != "output"),
            "outputs": int(self.settings.mode != "input"),
            "statistics": int(self.settings.data == "stats" or self.settings.layout == "msprobe"),
            "tensors": int(self.settings.data == "tensor"),
        }

    @property
    def folder(self) -> Path | None:
        return self._scratch if self.settings.data == "tensor" else None

    @property
    def _scratch(self) -> Path:
        return self._folder / ".msctx"

    def wants(self, operator: str, module: str) -> bool:
        kind = operator.rpartition("::")[2]
        names = {f"{module}/{kind}" if module else kind, module, module.replace(".", "/"), kind, operator}
        found = [layer for layer in self.settings.layers if _is_meant(layer, names, kind)]
        self._met.update(found)
        self._missed.update(names - {""})
        return bool(found)

    def begin(self) -> None:
        self._works = files.guarded(OPTION, self._folder, self._make)

    def _make(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.settings.data == "tensor":
            self._scratch.mkdir(exist_ok=True)

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            row["step"] = self._step
            if row["problem"]:
                files.guarded(OPTION, self._folder, lambda text=row["problem"]: _fail(text))  # type: ignore[misc]
        files.guarded(OPTION, self._folder, lambda: self._layout.write(rows, self._scratch))

    def end_step(self) -> None:
        files.guarded(OPTION, self._folder, self._layout.end_step)
        self._step += 1

    def pause(self) -> None:
        files.guarded(OPTION, self._folder, self._layout.end_step)
        if self.settings.data == "tensor":
            shutil.rmtree(self._scratch, ignore_errors=True)
        for layer in self.settings.layers:
            if self._missed and layer not in self._met:
                near = nearest(layer, sorted(self._missed))
                hint = f"; did you mean {near}?" if near else ""
                notices.tell("dump_layer", layer, f"dump_layer: no operator or module is called {layer!r}{hint}")


def _fail(text: str) -> None:
    raise OSError(text)


def _is_meant(layer: str, names: set[str], kind: str) -> bool:
    if found := re.fullmatch(r"name-regex\((.*)\)", layer):
        return any(re.search(found[1], name) for name in names)
    return layer.lower() in kind.lower() or any(fnmatchcase(name, layer) for name in names)


def _tensors(row: Row) -> list[tuple[str, int, dict[str, Any]]]:
    """Each with its side and its place there."""
    return [(side, slot, t) for side in ("input", "output") for slot, t in enumerate(row[f"{side}s"])]


class MindSpore:
    """``rank_0/Net/0/STEP/TYPE.NAME.0.0.TIME.SIDE.SLOT.DefaultFormat.npy`` and ``statistic.csv``.

    Source: MindSpore's guide to Dump (tutorials/debug/dump.md), for CPU and GPU.
    """

    HEAD = (
        *("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type", "Shape"),
        *("Max Value", "Min Value", "Avg Value", "L2Norm Value", "Count", "Negative Zero Count", "Positive Zero Count"),
        *("Nan Count", "Negative Inf Count", "Positive Inf Count", "Zero Count", ""),
    )

    def __init__(self, folder: Path, settings: Dump) -> None:
        self._folder, self._settings = folder, settings

    def write(self, rows: list[Row], scratch: Path) -> None:
        lines: dict[Path, list[list[object]]] = {}
        for row in rows:
            place = self._folder / f"rank_{files.rank()}" / "Net" / "0" / str(row["step"])
            place.mkdir(parents=True, exist_ok=True)
            kind, name = kind_of(row), f"{kind_of(row)}-op{row['id']}"
            for side, slot, tensor in _tensors(row):
                if tensor["file"]:
                    parts = (kind, name, 0, 0, row["began"], side, slot, "DefaultFormat.npy")
                    (scratch / tensor["file"]).replace(place / ".".join(map(str, parts)))
                if "min" in tensor and self._settings.data == "stats":
                    scope = "_".join(("Default", *filter(None, row["module"].split(".")), name))
                    lines.setdefault(place, []).append([kind, scope, 0, 0, row["began"], side, slot, *self._values(tensor)])
        for place, found in lines.items():
            files.append_csv(place / "statistic.csv", self.HEAD, found)

    @staticmethod
    def _values(t: dict[str, Any]) -> list[object]:
        dtype = DTYPES.get(t["dtype"], t["dtype"])
        size = t["count"] * int((re.findall(r"\d+", dtype) or ["8"])[-1]) // 8
        numbers = [t["max"], t["min"], t["mean"], t["l2"]]
        counts = [t["count"], t["negative"], t["count"] - t["negative"] - t["zero"] - t["nan"], t["nan"]]
        shape = f"({t['shape'].replace('x', ',')})"
        return [
            size,
            dtype,
            shape,
            *("" if v is None else v for v in numbers),
            *counts,
            t["negative_inf"],
            t["positive_inf"],
            t["zero"],
            "",
        ]

    def end_step(self) -> None:
        """Nothing waits."""


class MsProbe:
    """``stepN/rankR/dump.json``, ``construct.json``, ``stack.json`` and ``dump_tensor_data/*.pt``.

    Source: msProbe's guide to dumps of PyTorch (pytorch_data_dump_instruct.md).
    """

    def __init__(self, folder: Path, settings: Dump) -> None:
        self._folder, self._settings = folder, settings
        self._data: dict[str, Any] = {}
        self._parents: dict[str, Any] = {}
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._place = folder

    def write(self, rows: list[Row], scratch: Path) -> None:
        for row in rows:
            self._place = self._folder / f"step{row['step']}" / f"rank{files.rank()}"
            kind, is_backward = kind_of(row), row["direction"] == "backward"
            name = f"Aten.{kind}.{self._calls[kind, is_backward]}.{'backward' if is_backward else 'forward'}"
            self._calls[kind, is_backward] += 1
            sides: dict[str, Any] = (
                {"input": [], "output": []} if is_backward else {"input_args": [], "input_kwargs": {}, "output": []}
            )
            for side, slot, tensor in _tensors(row):
                found = self._described(tensor)
                if tensor["file"]:
                    found["data_name"] = f"{name}.{side}.{slot}.pt"
                    self._keep(scratch / tensor["file"], found["data_name"])
                sides["input_args" if side == "input" and not is_backward else side].append(found)
            self._data[name] = sides
            self._parents[name] = f"Module.{row['module']}" if row["module"] else None

    def _keep(self, given: Path, name: str) -> None:
        import numpy as np
        import torch

        place = self._place / "dump_tensor_data"
        place.mkdir(parents=True, exist_ok=True)
        part = place / f".{name}.part"
        torch.save(torch.from_numpy(np.load(given)), part)
        part.replace(place / name)
        given.unlink()

    @staticmethod
    def _described(t: dict[str, Any]) -> dict[str, Any]:
        dtype = DTYPES.get(t["dtype"], t["dtype"])
        found: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": f"torch.{dtype}",
            "shape": [*map(int, filter(None, t["shape"].split("x")))],
        }
        if "min" in t:
            bad = math.nan if t["nan"] else None
            largest = math.inf if t["positive_inf"] else t["max"]
            least = -math.inf if t["negative_inf"] else t["min"]
            both = (
                (t["positive_inf"] and t["negative_inf"] and math.nan)
                or (t["positive_inf"] and math.inf)
                or (t["negative_inf"] and -math.inf)
            )
            found |= {"Max": bad or largest, "Min": bad or least, "Mean": bad or both or t["mean"]}
            found["Norm"] = bad or (math.inf if t["positive_inf"] or t["negative_inf"] else t["l2"])
        return found

    def end_step(self) -> None:
        if not self._data:
            return
        level = {"task": "tensor" if self._settings.data == "tensor" else "statistics", "level": "L1", "framework": "pytorch"}
        folder = str(self._place / "dump_tensor_data") if self._settings.data == "tensor" else None
        files.write_json(self._place / "dump.json", {**level, "dump_data_dir": folder, "data": self._data})
        files.write_json(self._place / "construct.json", self._parents)
        files.write_json(self._place / "stack.json", {name: [] for name in self._data})
        self._data, self._parents, self._calls = {}, {}, Counter()
