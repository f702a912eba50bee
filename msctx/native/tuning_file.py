"""The tuning file: what was measured, or is to be measured, for later processes. JSON with one entry a line, and no paths."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from msctx.errors import Diagnostic, FileError, NativeError
from msctx.native import cachedir, core
from msctx.native.cuda import compiled_kernels

FORMAT = "msctx tuning 4.0"
IN_CACHE = "tuning/measured_4.json"
IN_WORK_PATH = "msctx_tuning.json"
"""Problems that were recorded to be measured later, and what tuning has measured: the file in work_path."""
OTHER = "name another file with tuning_file"
PATIENCE = 10.0
"""Seconds to wait for another process that writes the same file."""

# --- stamps -----------------------------------------------------------------------------------------------------------

CUDNN = "cuDNN "
"""How the isa of CUDA's stamp begins, and no other."""


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Of a result and of this process: texts for people. A result holds where all of them are the same.

    For CUDA *cpu* is the GPU, *flags* what it can and the driver, *isa* cuDNN, and *kernels* are those for CUDA. The compiler does
    not matter: the kernels give the same bits whatever compiled them.
    """

    cpu: str
    flags: str
    isa: str
    torch: str
    kernels: str

    @property
    def place(self) -> str:
        """The kind of device that it is of."""
        return "cuda" if self.isa.startswith(CUDNN) else "cpu"


@cache
def stamp(library: core.Core, place: str = "cpu") -> Stamp:
    """That of this process, of what it measures on a kind of device."""
    import torch

    if place == "cuda":
        return _of_cuda()
    kernels = library.made.kernels.stem.rpartition("-")[2]
    version = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return Stamp(*core.cpu(), library.c.msctx_isa_in_use(), version, kernels)


def _of_cuda() -> Stamp:
    import torch

    kernels = ""  # where there are none, none of ours has been measured
    with suppress(NativeError):
        compiled_kernels.find_nvrtc()
        kernels = compiled_kernels.origin()[:16]
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    gpus = {gpu.name: f"sm_{gpu.major}{gpu.minor}" for gpu in found}
    flags = ", ".join([*dict.fromkeys(gpus.values()), f"driver {driver_version()}"])
    version = f"{torch.__version__} CUDA {torch.version.cuda}"
    return Stamp(", ".join(gpus), flags, f"{CUDNN}{torch.backends.cudnn.version()}", version, kernels)


def driver_version() -> str:
    """The version of NVIDIA's driver, as its kernel module reports it."""
    try:
        return str(re.findall(r"\d+\.[\d.]+", Path("/proc/driver/nvidia/version").read_text())[0])
    except (OSError, IndexError):
        return "unknown"


# --- results ----------------------------------------------------------------------------------------------------------


GRAPH = "graph"
"""In place of a direction: of a whole graph."""


class Key(NamedTuple):
    """What there can be one result for under a stamp."""

    direction: str
    problem: str
    threads: int
    permissions: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What was chosen for a problem: *ran* and *math* as in choices(), each contender's time in units of the winner's, and when.

    *again*: how far apart two runs of PyTorch in one round were. *ran* is empty if the problem was only recorded, or if other load
    kept it from being measured, which *math* says.
    """

    direction: str
    problem: str
    threads: int
    permissions: str
    ran: str
    math: str
    again: float
    measured: dict[str, float | None] = field(hash=False)
    when: str

    def __post_init__(self) -> None:
        texts = self.direction, self.problem, self.permissions, self.ran, self.math, self.when, *self.measured
        if not all(isinstance(text, str) and text.isprintable() for text in texts) or type(self.threads) is not int:
            raise TypeError("an entry has a field of another type")
        if not all(ratio is None or 0 < ratio < 1e9 for ratio in (self.again, *self.measured.values())):
            raise TypeError("measured has a number that is no ratio of times")

    @property
    def key(self) -> Key:
        return Key(self.direction, self.problem, self.threads, self.permissions)


Groups = dict[Stamp, dict[Key, Entry]]


def location(given: str | None = None) -> Path:
    """The file of the option ``tuning_file``, else the one in the cache."""
    if given is not None:
        return Path(os.path.abspath(os.path.expanduser(given)))
    return cachedir.location() / IN_CACHE


def read(path: Path) -> Groups:
    """What a file holds; nothing if it does not exist.

    Raises:
        FileError: it cannot be read, or is no tuning file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as wrong:
        raise _error(f"{path}:{wrong.lineno}:{wrong.colno}", f"this is not JSON: {wrong.msg}") from None
    except (OSError, ValueError, RecursionError) as wrong:
        raise _error(str(path), f"cannot be read: {wrong}") from None
    name = data.get("format") if isinstance(data, dict) else None
    if name != FORMAT:
        raise _error(str(path), f"this is no tuning file of this msctx, whose first line has {FORMAT!r}")
    try:
        groups: Groups = {}
        for group in data["groups"]:
            entries = [Entry(**entry) for entry in group["entries"]]
            groups.setdefault(Stamp(**group["stamp"]), {}).update({entry.key: entry for entry in entries})
    except (AttributeError, KeyError, TypeError) as wrong:
        raise _error(str(path), f"an entry is not as msctx writes it: {wrong}") from None
    return groups


def merge(path: Path, new: Mapping[Stamp, Mapping[Key, Entry]]) -> None:
    """Add entries to a file, whoever else writes it meanwhile: the first result stays, and replaces what was only recorded.

    Raises:
        FileError: it cannot be read or written, or is no tuning file: then it is left as it is.
    """
    with _locked(path):
        groups = read(path)
        for stamp, entries in new.items():
            group = groups.setdefault(stamp, {})
            for key, entry in entries.items():
                old = group.get(key)
                if old is None or (entry.measured and not old.ran):
                    group[key] = entry
        cachedir.write(path.resolve(), text_of(groups).encode(), mode=0o666)  # as the umask has it: it may be shared


def clear(path: Path) -> int:
    """Remove a file; returns how many entries it held."""
    with _locked(path):
        count = sum(map(len, read(path).values()))
        path.resolve().unlink(missing_ok=True)  # a link stays; what it leads to goes
    return count


def text_of(groups: Mapping[Stamp, Mapping[Key, Entry]]) -> str:
    """The file: the same entries give the same bytes."""
    parts = []
    for stamp, entries in sorted(groups.items()):
        lines = ",\n".join(f"        {json.dumps(asdict(entries[key]), ensure_ascii=False)}" for key in sorted(entries))
        stamped = json.dumps(asdict(stamp), indent=2, ensure_ascii=False).replace("\n", "\n      ")
        parts.append(f'    {{\n      "stamp": {stamped},\n      "entries": [\n{lines}\n      ]\n    }}')
    body = ",\n".join(parts)
    return f'{{\n  "format": "{FORMAT}",\n  "groups": [\n{body}\n  ]\n}}\n'


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only process that writes the file. The lock lies beside it: it holds for all machines that share the folder."""
    from filelock import FileLock, Timeout  # here: it takes milliseconds to import

    try:
        if path == location():
            cachedir.folder(path.parent.name)
        lock = FileLock("{0.parent}/.{0.name}.lock".format(path.resolve()), mode=0o600)
        os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT, 0o600))  # filelock waits where it cannot be made
        with lock.acquire(timeout=PATIENCE):
            yield
    except Timeout:
        raise _error(str(path), f"is locked by another process: {lock.lock_file}") from None
    except (OSError, NotImplementedError, NativeError) as wrong:
        raise _error(str(path), f"cannot be written: {wrong}") from None


def _error(place: str, text: str) -> FileError:
    return FileError([Diagnostic("", f"{text}. The file is left as it is, and not used", place, suggestion=OTHER)])
