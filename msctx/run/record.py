"""The record of a run: a folder of plain files: what ran, under what, and what came of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError, text_of
from msctx.native import cachedir, memory
from msctx.native.memory import accelerator
from msctx.options.kinds import Size


class Record:
    """A run directory: plan.json, state.json, environment.json, config.yaml, metrics.jsonl, result.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def fresh(parent: str, name: str) -> Path:
        """A folder under *parent* that does not exist yet."""
        first = Path(parent).absolute() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
        return next(folder for folder in itertools.chain([first], others) if not folder.exists())

    @classmethod
    def create(cls, out: str | None, parent: str, name: str) -> Record:
        """Make the folder *out*, or a new one under *parent*; one that holds anything already is refused."""
        folder = cls.fresh(parent, name) if out is None else Path(out).absolute()  # the entry may go elsewhere
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
            used = sorted(p.name for p in folder.iterdir())
        except OSError as error:
            raise FileError([Diagnostic("", f"cannot be made: {error.strerror}", where=str(folder))]) from None
        if used:
            text = f"is not empty ({', '.join(used[:4])}{' …' if len(used) > 4 else ''}); a record never overwrites another"
            raise FileError([Diagnostic("", text, str(folder), suggestion="name a folder that is empty or new")])
        return cls(folder)

    def json(self, name: str, data: Mapping[str, Any] | list[dict[str, Any]]) -> None:
        """Write a file whole or not at all."""
        self.text(name, json.dumps(plain(data), indent=2, allow_nan=False) + "\n")

    def text(self, name: str, text: str) -> None:
        try:
            cachedir.write(self.folder / name, text.encode())
        except OSError as error:
            raise unwritten(self.folder / name, error) from None

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Append one line; it is on disk when this returns to the caller. Others may not read it."""
        path = self.folder / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as lines:
                lines.write(json.dumps(plain(row), allow_nan=False) + "\n")
        except OSError as error:
            raise unwritten(path, error) from None


def result_in(folder: Path) -> dict[str, Any] | None:
    """What result.json holds; ``None``: the run was killed, or never began."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    return None


def unwritten(path: Path, error: OSError | ValueError) -> FileError:
    """The error of a file that cannot be written; ValueError: a path that no system takes."""
    return FileError([Diagnostic("", f"cannot be written: {getattr(error, 'strerror', None) or error}", str(path))])


def plain(value: Any) -> Any:
    """Any value as JSON can hold it: numbers out of tensors, text for what has no other form (NaN and infinity too)."""
    if isinstance(value, Mapping):
        return {text_of(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, bool | int | type(None)):
        return int(value) if isinstance(value, Size) else value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        with suppress(Exception):  # a meta tensor has no number, and others have an item() of another kind
            return plain(value.item())
    return text_of(value)


def weights_sha256(model: Any) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of the tensors of ``model.state_dict()``, in its order."""
    import torch

    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name}:{plain.dtype}:{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def reset_peaks() -> None:
    """The peaks are of what comes now."""
    memory.reset_peak()
    if accelerator():
        from torch.accelerator import reset_peak_memory_stats

        reset_peak_memory_stats()


def peaks() -> dict[str, int]:
    """The most bytes in use since then, as far as they are counted; what was allocated before only the caps have seen."""
    found = {}
    if memory.read_pool() is not None:
        counted = memory.statistics()
        found["peak_memory_bytes"] = max(row["peak_bytes"] for row in (counted, *counted["caps"]))
    if accelerator():
        from torch.accelerator import max_memory_allocated

        found["peak_accelerator_bytes"] = max_memory_allocated()
    return found


def resumed(folder: Path, given: Mapping[str, Any]) -> Record:
    """The record of a grid that has begun."""
    before: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        before = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    if differing := [key for key in given if before.get(key) != given[key]]:
        text = f"no sweep with this {', '.join(differing)} has begun here: give the same and its --out, or begin another"
        raise FileError([Diagnostic("--resume", text, str(folder))])
    return Record(folder.absolute())


def written(folder: Path) -> dict[str, Any] | None:
    return result_in(folder) or result_in(folder / "rank_0")


def result_of(folder: Path, code: int, err: str) -> dict[str, Any]:
    """What became of a run that has ended."""
    text = err.strip() or f"exit code {code}"
    failed = {"status": "failed", "exit_code": code, "error": text, "reason": text.rpartition("error: ")[2].partition("\n")[0]}
    return written(folder) or failed


def why(result: Mapping[str, Any]) -> str:
    """One line of why a run did not end well."""
    text = str(result.get("reason") or result.get("error") or result.get("status")).strip()
    return text.partition("\n")[0]
