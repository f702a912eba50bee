"""What is in effect: the numerics state of the process and the environment around it; what may be written down; how two differ."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from msctx import devices
from msctx.errors import Diagnostic, FileError
from msctx.native import core
from msctx.options import layer_sources
from msctx.options.algorithm_policy import plain
from msctx.options.layer_sources import PREFIX, RESERVED, is_option
from msctx.tables import in_words

LIBRARIES = ("msctx", "torch", "numpy", "pyyaml", "pydantic", "torch-npu", "triton", "scikit-learn")


def state() -> dict[str, Any]:
    """Every global of torch and around it that decides what is computed and how → its value now, as plain data.

    Reading changes nothing and initialises no device.
    """
    from msctx.switches import read_all

    found = {name: plain(value) for name, value in read_all().items()}
    found["native.memory_caps"] = ", ".join(f"{in_words(size)} of {origin}" for size, origin in found["native.memory_caps"])
    found.update({f"env.{name}": value for name, value in variables(os.environ).items()})
    return found


def environment() -> dict[str, Any]:
    """The machine and the versions a run depends on."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": core.cpu()[0],
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "ascend": devices.ascend(),
        "devices": {name: getattr(torch, {"ascend": "npu"}.get(name, name)).device_count() for name in devices.here()},
        "libraries": {name: version for name in LIBRARIES if (version := library_version(name))},
    }


def library_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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


FAMILIES = (
    *("ACL", "ASCEND", "ATEN", "CUBLAS", "CUBLASLT", "CUDA", "CUDNN", "DISABLE", "DNNL", "GOMP", "HCCL", "KMP", "MKL", "NCCL"),
    *("NVIDIA", "OMP", "ONEDNN", "PYTORCH", "TE", "TORCH", "TORCHDYNAMO", "TORCHINDUCTOR"),
)
"""Prefixes of the environment variables that change what torch computes or how."""
UNRECORDED = "(set; its value is not recorded)"
"""Of a variable whose value may be a secret: that it is there may matter."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH_|CERT|LICEN[CS]E|://", re.IGNORECASE)
"""What a name, or a value, has that may be one."""

_ARGUMENT = re.compile(r"^((?:--sweep=)?(?:experiment|(?:experiment\.)?args(?:\.[^=]*)?)=).*", re.DOTALL)
"""An argument of an entry as a word of the command line, or all of them (``args={…}``)."""
_FAMILY = re.compile(rf"({'|'.join([*FAMILIES, PREFIX[:-1]])})_")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what bears on the numerics; values only where neither they nor their names look like a secret."""
    names = [name for name in sorted(environment) if name == "PYTHONHASHSEED" or _FAMILY.match(name)]
    found = {name: environment.get(name) for name in names}  # another thread may have taken one away since
    return {name: text if _is_known(name, text) else UNRECORDED for name, text in found.items() if text is not None}


def _is_known(name: str, text: str) -> bool:
    if name.startswith(PREFIX):
        return is_option(name) or (name in RESERVED and name != layer_sources.PLAN)  # long; a run has a plan.json
    return not _SECRET.search(name) and not _SECRET.search(text)


def command_line(words: Sequence[str]) -> list[str]:
    """A command line of msctx without what may be secret: arguments of an entry (``args.x=``, ``-- …``)."""
    own = [*takewhile("--".__ne__, words)]
    return [*(_ARGUMENT.sub(r"\1…", word) for word in own), *["--", "…"] * (len(own) < len(words))]
