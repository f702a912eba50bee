"""``enable_exception_dump``: what went into an operator that raised, with a script that calls it again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msctx import notices
from msctx.observers import collector, files
from msctx.observers.collector import ERRORS, Reader, Row, dtype_of, kind_of
from msctx.options.observation import ErrorDump

OPTION = "enable_exception_dump"
MOST = 20
"""Operators of one scope; code that catches errors may raise them without end."""

REPLAY = '''"""Calls {operator} again with what went into it when it raised. Requires torch and numpy."""

import functools
import json
import pathlib
import sys

import numpy
import torch

here = pathlib.Path(__file__).resolve().parent
found = json.loads((here / "{name}.json").read_text())
space, name = found["operator"].split("::")


@functools.cache
def device(name):
    try:
        return torch.empty(0, device=name).device
    except Exception as error:
        print("there is no device " + name + " here (" + str(error).splitlines()[0] + "): the CPU stands for it", file=sys.stderr)
        return torch.device("cpu")


def tensor(index):
    t = found["inputs"][index]
    if not t["file"]:
        raise SystemExit("input " + str(index) + " could not be written: " + str(t))
    loaded = torch.from_numpy(numpy.load(here / t["file"])).to(device(t["device"]), getattr(torch, t["dtype"]))
    if t.get("is_number") and torch._C._should_allow_numbers_as_tensors(name):
        return loaded.item()
    strides = [int(n) for n in t["strides"].split("x") if n]
    made = torch.empty_strided(loaded.shape, strides, dtype=loaded.dtype, device=loaded.device)
    if 0 not in strides:
        made.copy_(loaded)
    elif loaded.numel():  # expanded: each value once
        made = loaded[tuple(slice(None) if n else slice(1) for n in strides)].expand(loaded.shape)
    return made.requires_grad_() if t["requires_grad"] else made


def value(v):
    if isinstance(v, list):
        return [value(one) for one in v]
    if isinstance(v, dict) and "tensor" in v:
        return tensor(v["tensor"])
    if isinstance(v, dict) and "float" in v:
        return float(v["float"])
    if isinstance(v, dict) and "complex" in v:
        return complex(v["complex"])
    if isinstance(v, dict) and v["torch"].startswith("device:"):
        return device(v["torch"].partition(":")[2])
    if isinstance(v, dict):
        raise SystemExit("an argument of type " + v["torch"] + " cannot be made again")
    return v


operator = getattr(getattr(getattr(torch.ops, space), name), found["overload"] or "default")
schema = {{a.name: a.kwarg_only for a in operator._schema.arguments}}
given = {{key: value(v) for key, v in found["attributes"].items()}}
print(operator(*(given[k] for k in schema if not schema[k]), **{{k: given[k] for k in schema if schema[k]}}))
'''


def place(level: int) -> Path:
    """CANN's order: NPU_COLLECT_PATH (which makes every level 1), ASCEND_WORK_PATH, the working directory."""
    if collected := os.environ.get("NPU_COLLECT_PATH"):
        return Path(collected).absolute() / "extra-info"
    folder = (files.work_path() or Path.cwd()) / "extra-info"
    return folder if level == 1 else folder / "data-dump" / str(files.rank())


class ErrorReader(Reader):
    queue = ERRORS

    def __init__(self, settings: ErrorDump) -> None:
        self.settings = settings
        self._level = 1 if os.environ.get("NPU_COLLECT_PATH") else settings.level
        self._folder = Path(settings.path).absolute() if settings.path else place(self._level)
        self._count = 0

    @property
    def asked(self) -> Mapping[str, int]:
        return {"errors": int(self._count < MOST)}

    @property
    def folder(self) -> Path | None:
        return self._folder

    def begin(self) -> None:
        """The folder comes with the first error: most programs have none."""

    def pause(self) -> None:
        """What is written stays."""

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._count += 1
            files.guarded(OPTION, self._folder, partial(self._write, row))
        collector.refresh()

    def _write(self, row: Row) -> None:
        if row["problem"]:
            raise OSError(row["problem"])
        name = f"{kind_of(row)}.{files.name_of(row['module']) or 'Net'}.{row['id']}.{row['began']}"
        for slot, tensor in enumerate(row["inputs"]):
            tensor["dtype"] = dtype_of(tensor)
            if tensor["file"]:
                new = f"{name}.input.{slot}.npy"
                shutil.move(self._folder / tensor["file"], self._folder / new)
                tensor["file"] = new
        if self._level == 1:
            row["outputs"] = [tensor for tensor in row["inputs"] if tensor.get("is_written")]
        files.write_json(self._folder / f"{name}.json", row)
        files.write(self._folder / f"{name}.replay.py", REPLAY.format(operator=row["operator"], name=name))
        notices.tell(
            OPTION,
            name,
            f"{row['operator']} raised; its inputs are in {self._folder}; to call it again: python {self._folder / name}.replay.py",
        )
