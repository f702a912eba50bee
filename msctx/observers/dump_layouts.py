"""The layouts of dumps: those of MindSpore's Dump and of msProbe, for whose tools they are."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from msctx.observers import files
from msctx.observers.collector import Row, dtype_of, kind_of
from msctx.options.observation import Dump


def _tensors(row: Row) -> list[tuple[str, int, dict[str, Any]]]:
    """Each with its side and its place there."""
    return [(side, slot, t) for side in ("input", "output") for slot, t in enumerate(row[f"{side}s"])]


class MindSpore:
    """``rank_0/Net/0/STEP/TYPE.NAME.0.0.TIME.SIDE.SLOT.DefaultFormat.npy`` and ``statistic.csv``.

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
    }
    """statistic_category → the column, and its key in a row. "Negative zero" counts what is below zero."""

    def __init__(self, folder: Path, settings: Dump) -> None:
        self._folder, self._settings = folder, settings

    def write(self, rows: list[Row], scratch: Path) -> None:
        lines: dict[Path, list[list[object]]] = {}
        for row in rows:
            place = self._folder / f"rank_{files.rank()}" / self._settings.net / "0" / str(row["step"])
            place.mkdir(parents=True, exist_ok=True)
            kind, name = kind_of(row), f"{kind_of(row)}-op{row['id']}"
            for side, slot, tensor in _tensors(row):
                if tensor["file"]:
                    parts = (kind, name, 0, 0, row["began"], side, slot, "DefaultFormat.npy")
                    files.move(scratch / tensor["file"], place / ".".join(map(str, parts)))
                if "min" in tensor and self._settings.data != "tensor":
                    scope = "_".join(("Default", *filter(None, row["module"].split(".")), name))
                    lines.setdefault(place, []).append([kind, scope, 0, 0, row["began"], side, slot, *self._values(tensor)])
        for place, found in lines.items():
            head = (*self.HEAD, *(column for column, _ in self._columns), "")
            files.append_csv(place / "statistic.csv", head, found)

    @property
    def _columns(self) -> list[tuple[str, str]]:
        return [self.COLUMNS[name] for name in self._settings.columns or self.COLUMNS]

    def _values(self, t: dict[str, Any]) -> list[object]:
        dtype = dtype_of(t)
        size = t["count"] * int((re.findall(r"\d+", dtype) or ["8"])[-1]) // 8
        found = t | {"positive": t["count"] - t["negative"] - t["zero"] - t["nan"]}
        values = ["" if (value := found[key]) is None else value for _, key in self._columns]
        return [size, dtype, f"({t['shape'].replace('x', ',')})", *values, ""]

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
            direction = "backward" if is_backward else "forward"
            name = f"Aten.{kind}.{self._calls[kind, is_backward]}.{direction}"
            self._calls[kind, is_backward] += 1
            sides: dict[str, Any] = {"input": []} if is_backward else {"input_args": [], "input_kwargs": {}}
            sides["output"] = []
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
        shape = [*map(int, filter(None, t["shape"].split("x")))]
        found: dict[str, Any] = {"type": "torch.Tensor", "dtype": f"torch.{dtype_of(t)}", "shape": shape}
        if "min" in t:
            up, down = (math.inf if t[f"{sign}_inf"] else 0.0 for sign in ("positive", "negative"))
            values = {"Max": up or t["max"], "Min": -down or t["min"]}
            values |= {"Mean": (up - down) or t["mean"], "Norm": (up + down) or t["l2"]}
            found |= dict.fromkeys(values, math.nan) if t["nan"] else values
        return found

    def end_step(self) -> None:
        if not self._data:
            return
        level = {"task": "statistics" if self._settings.data == "stats" else "tensor", "level": "L1", "framework": "pytorch"}
        folder = str(self._place / "dump_tensor_data") if self._settings.data != "stats" else None
        files.write_json(self._place / "dump.json", {**level, "dump_data_dir": folder, "data": self._data})
        files.write_json(self._place / "construct.json", self._parents)
        files.write_json(self._place / "stack.json", {name: [] for name in self._data})
        self._data, self._parents, self._calls = {}, {}, Counter()
