"""``enable_exception_dump``: what went into an operator that raised, with a script that calls it again."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msctx import notices
from msctx.native import conv_policy, memory
from msctx.observers import collector, files
from msctx.observers.collector import DTYPES, Reader, Row, dtype_of, kind_of
from msctx.options.observation import ErrorDump

MOST = 20
"""Operators of one scope; code that catches errors may raise them without end."""

PLACES = {"cuda": "cuda", "npu": "ascend"}
"""Whose policy holds for tensors of a device; others: the CPU's."""
NO_ROOM = memory.Room(refusals=0, left=0)
REPLAY = Path(__file__).with_name("replay.py")
"""The script."""


def place(level: int) -> Path:
    """CANN's order: NPU_COLLECT_PATH (which makes every level 1), ASCEND_WORK_PATH, the working directory."""
    if collected := os.environ.get("NPU_COLLECT_PATH"):
        return Path(collected).absolute() / "extra-info"
    folder = (files.work_path() or Path.cwd()) / "extra-info"
    return folder if level == 1 else folder / "data-dump" / str(files.rank())


def _source(row: Row) -> dict[str, Any]:
    """What registered an operator that is not PyTorch's own: modules, each with the folder that it is found in, and libraries."""
    if row["operator"].startswith("aten::"):
        return {"by": "PyTorch", "modules": [], "libraries": []}
    import torch
    from torch._library.custom_ops import OPDEFS

    if (custom := OPDEFS.get(row["operator"])) is not None:
        places = [custom._init_fn.__code__.co_filename]
    else:
        name = ".".join(filter(None, (row["operator"], row["overload"])))
        found = re.findall(r"registered at (.*?):\d+", torch._C._dispatch_dump(name))
        places = [place for place in dict.fromkeys(found) if Path(torch.__file__).parent not in Path(place).parents]
    modules = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None) or ""
        if file in places and name not in ("__main__", "__mp_main__"):
            depth = name.count(".") + hasattr(module, "__path__")
            modules[name] = str(Path(file).absolute().parents[depth])
    return {
        "by": ", ".join((*modules, *places)) or "a module whose name is not known",
        "modules": [{"module": name, "folder": folder} for name, folder in modules.items()],
        "libraries": sorted(torch.ops.loaded_libraries),
    }


def _of_workspace(found: dict[str, Any]) -> str:
    if found["bytes"] is None:
        return "No kernel of msctx ran, and those of PyTorch do not show what memory they use beside their tensors."
    had = sum(block["bytes"] for block in found["blocks"])
    return (
        f"{found['algorithm']} of {found['provider']} computed it, with a workspace of {found['bytes']} bytes; "
        f"when it raised, it had {had} bytes, in blocks: {len(found['blocks'])}."
    )


NOT_CALLED_AGAIN = {"conv_algo_rules", "matmul_algo_rules", "tuning_file", "work_path", "torch_keeps_products", "deterministic"}
"""Of the policy for convolutions and products: what is about modules, files, or restored as PyTorch's own setting. Nor is what would
measure, which takes long and chooses anew."""


def _of_policy(row: Row) -> dict[str, Any]:
    """Option → value. A policy that records problems for later computes by PyTorch's own path."""
    place = next((PLACES[kind] for one in row["inputs"] if (kind := one["device"].partition(":")[0]) in PLACES), "cpu")
    policy = conv_policy.PLACES[place].policy
    if policy is None or policy.work_path is not None:
        return {}
    found = {name: value for name, value in policy.as_dict().items() if name not in NOT_CALLED_AGAIN}
    return {name: value for name, value in found.items() if value != "performance"}


class ErrorReader(Reader):
    def __init__(self, settings: ErrorDump) -> None:
        self.settings = settings
        self._level = 1 if os.environ.get("NPU_COLLECT_PATH") else settings.level
        self._folder = Path(settings.path).absolute() if settings.path else place(self._level)
        self._scratch = files.Scratch(self.settings.option, self._folder)
        self._count = 0
        self._rooms = memory.rooms()

    @property
    def asked(self) -> Mapping[str, int]:
        return {"errors": int(self._count < MOST)}

    @property
    def folder(self) -> Path | None:
        return self._scratch.path

    def begin(self) -> None:
        """The folder comes with the first error: most programs have none."""

    def pause(self) -> None:
        """What is written stays."""

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._count += 1
            files.guarded(self.settings.option, self._folder, partial(self._write, row))
        collector.refresh()

    def _memory_left(self, row: Row) -> int | None:
        """The bytes of host memory that the operator could have, where a cap refused it more."""
        before, self._rooms = self._rooms, memory.rooms()
        refused = [room for number, room in self._rooms.items() if room.refusals > before.get(number, NO_ROOM).refusals]
        held = sum(block["bytes"] for block in row["workspace"]["blocks"])
        return min((max(room.left + held, 1) for room in refused), default=None)

    def _write(self, row: Row) -> None:
        """All files of it, or none."""
        left = self._memory_left(row)
        name = f"{kind_of(row)}.{files.name_of(row['module']) or 'Net'}.{row['id']}.{row['began']}"
        moves: list[tuple[Path, Path]] = []
        written: list[Path] = []
        for slot, tensor in enumerate(row["inputs"]):
            tensor["dtype"] = dtype_of(tensor)
            if tensor["file"]:
                moves.append((self._scratch.path / tensor["file"], self._folder / f"{name}.input.{slot}.npy"))
                tensor["file"] = moves[-1][1].name
        row["workspace"]["note"] = _of_workspace(row["workspace"])
        for number, block in enumerate(row["workspace"]["blocks"]):
            if file := block.get("file"):
                moves.append((self._scratch.path / file, self._folder / f"{name}.workspace.{number}.npy"))
                block["file"] = moves[-1][1].name
        settings = row["settings"]
        settings["dtype"] = DTYPES[settings["dtype"]]
        settings["autocast"] = {device: DTYPES[dtype] for device, dtype in settings["autocast"].items()}
        row["source"] = _source(row)
        row["options"] = _of_policy(row)
        if left is not None:
            row["options"] |= {"device_target": "CPU", "max_device_memory": f"{left}B"}
        if self._level == 1:
            row["outputs"] = [tensor for tensor in row["inputs"] if tensor.get("is_written")]
        try:
            if row["problem"]:
                raise OSError(row["problem"])
            for end, text in ((".json", json.dumps(row, indent=1)), (".replay.py", REPLAY.read_text(encoding="utf-8"))):
                files.write(self._folder / f"{name}{end}", text)
                written.append(self._folder / f"{name}{end}")
            for old, new in moves:
                old.replace(new)
                written.append(new)
        except OSError:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        finally:
            for old, _ in moves:
                old.unlink(missing_ok=True)
            with suppress(OSError):  # another thread's may be there
                self._scratch.path.rmdir()
        notices.warn(
            self.settings.option,
            name,
            f"{row['operator']} raised; its inputs are in {self._folder}; to call it again: python {self._folder / name}.replay.py",
        )
