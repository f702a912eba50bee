"""What is in effect: the whole numerics state of the process, the environment around it, and how two of them differ."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from msctx import devices, recorded
from msctx.errors import Diagnostic, FileError
from msctx.native import environment_key
from msctx.options.conv_policy import plain
from msctx.tables import in_words

LIBRARIES = ("msctx", "torch", "numpy", "pyyaml", "pydantic", "torch-npu", "triton", "scikit-learn")


def state() -> dict[str, Any]:
    """Every global of torch and around it that decides what is computed and how → its value now, as plain data.

    Reading changes nothing and initialises no device.
    """
    from msctx.switches import read_all

    found = {name: plain(value) for name, value in read_all().items()}
    found["native.memory_caps"] = ", ".join(f"{in_words(size)} of {origin}" for size, origin in found["native.memory_caps"])
    found.update({f"env.{name}": value for name, value in recorded.variables(os.environ).items()})
    return found


def environment() -> dict[str, Any]:
    """The machine and the versions a run depends on."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": environment_key.cpu()[0],
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "ascend": devices.ascend(),
        "devices": _devices(),
        "libraries": {name: version for name in LIBRARIES if (version := library_version(name))},
        "argv": recorded.command_line(sys.argv),
    }


def library_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    import torch

    return {device: getattr(torch, {"ascend": "npu"}.get(device, device)).device_count() for device in devices.here()}


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The entries in which two states differ; ``None`` stands for an entry that one of them lacks."""
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def read_record(path: str | Path) -> dict[str, Any]:
    """A state saved to a file, or the state and environment that a run directory holds, flattened to dotted keys."""
    path = Path(path)
    if path.is_dir():
        found = {}
        for part in ("state", "environment"):
            if (path / f"{part}.json").exists():
                found.update(_flatten(_read_json(path / f"{part}.json"), "" if part == "state" else f"{part}."))
        if not found:
            raise FileError([Diagnostic("", "is a folder without state.json: not the record of a run", where=str(path))])
        found.pop("environment.argv", None)
        return found
    return _flatten(_read_json(path), "")


def _read_json(path: Path) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be read: {error.strerror}", where=str(path))]) from None
    except (ValueError, RecursionError) as error:
        raise FileError([Diagnostic("", f"is not JSON: {error}", where=str(path))]) from None
    if not isinstance(data, dict):
        raise FileError([Diagnostic("", "does not hold a state (a JSON object)", where=str(path))])
    return data


def _flatten(data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
