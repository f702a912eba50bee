"""``enable_exception_dump``: what went into an operator that raised, in a file that ``torch.load`` reads."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from msctx import notices
from msctx.native import distributed
from msctx.observers import collector, files
from msctx.observers.collector import Reader, Row, dtype_of, kind_of
from msctx.options.policies import ErrorDump

MOST = 20
"""Operators of one scope; code that catches errors may raise them without end."""
KEPT = ("operator", "overload", "module", "direction", "step", "algorithm")
"""Of a row, what the file has as it is."""
OURS = f"{Path(__file__).parent.parent}{os.sep}"


def place(level: int) -> Path:
    """CANN's order: NPU_COLLECT_PATH (which makes every level 1), ASCEND_WORK_PATH, the working directory."""
    if collected := os.environ.get("NPU_COLLECT_PATH"):
        return Path(collected).absolute() / "extra-info"
    folder = (files.work_path() or Path.cwd()) / "extra-info"
    return folder if level == 1 else folder / "data-dump" / str(distributed.rank_or_0())


class ErrorReader(Reader):
    def __init__(self, settings: ErrorDump) -> None:
        self.settings = settings
        self._level = 1 if os.environ.get("NPU_COLLECT_PATH") else settings.level
        self._folder = Path(settings.path).absolute() if settings.path else place(self._level)
        self._scratch = files.Scratch(self._folder)
        self._count = 0

    @property
    def requested(self) -> Mapping[str, int]:
        return {"errors": int(self._count < MOST)}

    @property
    def folder(self) -> Path | None:
        return self._scratch.path

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._count += 1
            files.guarded(self.settings.option, self._folder, partial(self._write, row))
        collector.refresh()

    def _write(self, row: Row) -> None:
        path = self._folder / f"{kind_of(row)}.{files.name_of(row['module']) or 'Net'}.{row['id']}.{row['began']}.pt"
        try:
            if row["problem"]:
                raise OSError(row["problem"])
            files.write(path, partial(_save, self._contents(row)))
        finally:
            self._scratch.drop(row)
            self._scratch.remove_empty()
        text = f"{row['operator']} raised; its inputs and arguments are in {path}: torch.load reads them"
        notices.warn(text)

    def _contents(self, row: Row) -> dict[str, Any]:
        tensors = [self._tensor(one) for one in row["inputs"]]
        found = {name: row[name] for name in KEPT}
        found["arguments"] = {name: _value(value, tensors) for name, value in row["attributes"].items()}
        found["inputs"] = [_described(one) for one in row["inputs"]]
        if self._level == 1:
            found["outputs"] = [one["argument"] for one in row["inputs"] if one.get("is_written")]
        stack = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(OURS)]
        return found | {"traceback": "".join(traceback.format_list(stack))}

    def _tensor(self, one: dict[str, Any]) -> torch.Tensor | None:
        if not one["file"]:
            return None
        return torch.from_numpy(np.load(self._scratch.path / one["file"])).to(getattr(torch, dtype_of(one)))


def _described(one: dict[str, Any]) -> dict[str, Any]:
    names = ("argument", "shape", "strides", "requires_grad", "device")
    return {name: one[name] for name in names} | {"dtype": dtype_of(one), "unread": one.get("unread", "")}


def _value(value: Any, tensors: list[torch.Tensor | None]) -> Any:
    """An argument as it was; a tensor that cannot be read is ``None``, and what torch alone has is its name."""
    if isinstance(value, list):
        return [_value(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return float(value["float"]) if "float" in value else complex(value["complex"]) if "complex" in value else value["torch"]


def _save(found: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # by whose errors it is known that a disk is full
        torch.save(found, file)
