"""The folder of torch's caches of compiled code: compile_cache_path/rank_<number>, or op_compiler_cache_dir/kernel_cache.

It has a folder for each processor, system and version, since machines that share a disk cannot run each other's code. torch loads
code from there, so msctx only uses a folder in which all belongs to the user, and drops what is damaged.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from msctx._version import __version__
from msctx.errors import NativeError
from msctx.native import cachedir, core, ranks_and_process_group
from msctx.notices import warn
from msctx.observers import slots_and_files as files
from msctx.observers.slots_and_files import Slot
from msctx.options.files_named_by_options import OP_CACHE
from msctx.options.switch_values import CompileCache

DO = "name another folder with compile_cache_path (op_compiler_cache_dir)"
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PREFIX = "msctx-"
INI, INI_OPTION = "op_cache.ini", "session.op_compiler_cache_dir.op_cache_ini"
SIZE, RATIO = "ASCEND_MAX_OP_CACHE_SIZE", "ASCEND_REMAIN_CACHE_SIZE_RATIO"
DEFAULT = (500, 50)
"""Megabytes, and the percentage of them that remains when there are more."""
IDLE = 30 * 60
"""Seconds without use after which a file may be removed: another process may be about to load a newer one."""


def root_of(wanted: CompileCache) -> Path:
    """The folder that the options name, relative to the current working directory."""
    path = wanted.path or (os.environ.get("ASCEND_CACHE_PATH") or "~/atc_data" if wanted.kernels else ".")
    inner = "kernel_cache" if wanted.kernels else f"rank_{ranks_and_process_group.rank_or_0()}"
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path)))) / inner


@cache
def stamp() -> str:
    """The name of the folder for code that runs with this processor, system and versions."""
    import torch

    versions = (__version__, torch.__version__, torch.version.git_version, sys.implementation.cache_tag, *platform.libc_ver())
    return PREFIX + hashlib.sha256(repr((versions, platform.machine(), core.cpu())).encode()).hexdigest()[:12]


def limit_of(root: Path) -> tuple[int, int]:
    """The limit for a folder of kernels: from its op_cache.ini, else from the environment, else CANN's default."""
    try:
        text, place = (root / INI).read_text(encoding="utf-8-sig"), str(root / INI)
    except (OSError, UnicodeDecodeError):
        size, ratio = (os.environ.get(name) or default for name, default in zip((SIZE, RATIO), DEFAULT, strict=True))
        text = f"[op_compiler_cache]\nmax_op_cache_size={size}\nremain_cache_size_ratio={ratio}\n"
        place = f"{SIZE}={size} {RATIO}={ratio}"
    parsed = OP_CACHE.parse(text, place)
    if parsed.problems:
        warn("\n".join([f"{INI_OPTION}: both limits are ignored:", *map(str, parsed.problems)]))
        return DEFAULT
    section = parsed.data["op_compiler_cache"]
    return section["max_op_cache_size"], section["remain_cache_size_ratio"]


class Cache:
    """The place of torch's code while a context is open."""

    def __init__(self, wanted: CompileCache) -> None:
        self.settings = wanted
        self.root = Path(scratch()) if wanted.off else root_of(wanted)
        self.folder = self.root if wanted.off else self.root / stamp()

    def open(self) -> None:
        """Make the folder, and keep its size within the limit.

        Raises:
            NativeError: it cannot be used.
        """
        if not self.settings.off:
            self.folder = cachedir.made(cachedir.made(self.root, DO) / stamp(), DO)
            if self.folder not in _sifted:
                with cachedir.naming(self.folder, DO):
                    _sift(self.folder)
                _sifted.add(self.folder)
            self.keep_within()

    def begin(self) -> None:
        """Torch's code is there from now on.

        Raises:
            NativeError: the folder cannot be used.
        """
        if self.settings.renew and self.root not in _renewed:  # once in a process
            _renewed.add(self.root)
            for folder in self.root.glob(f"{PREFIX}*"):
                shutil.rmtree(folder, ignore_errors=True)
        self.open()
        self._found = {name: os.environ.get(name) for name in VARIABLES}
        _lead(dict(zip(VARIABLES, (str(self.folder), str(self.folder / "triton")), strict=True)))

    def end(self) -> None:
        _lead(self._found)
        self.close()

    def close(self) -> None:
        """Note the digests of new libraries, and keep the size within the limit."""
        if "torch._inductor" in sys.modules:
            for path in self.folder.rglob("*.so"):
                if path.is_file() and not _digest_of(path).exists():
                    with suppress(OSError, NativeError):  # such a library is compiled again
                        cachedir.write(_digest_of(path), hashlib.sha256(path.read_bytes()).hexdigest().encode())
        self.keep_within()

    def keep_within(self) -> None:
        """Remove the files that were idle for longest until the given percentage of the limit remains."""
        wanted = self.settings
        if wanted.megabytes is None and not wanted.kernels:
            return
        megabytes, percent = limit_of(self.root) if wanted.megabytes is None else (wanted.megabytes, wanted.percent)
        if (limit := megabytes * 2**20) >= 0:
            newest = time.time() - IDLE
            files.keep_within(self.root.glob(f"{PREFIX}*/**/*"), limit, limit * percent // 100, lambda _, used: used > newest)


_renewed: set[Path] = set()
_sifted: set[Path] = set()
"""Folders that this process has looked through: since then only the user could write there."""


def _sift(folder: Path) -> None:
    """Refuse what another user has put there, also by a link; remove damaged code, which torch would load again in each process."""
    for at, inner, names in os.walk(folder):
        for path in (Path(at, name) for name in [*inner, *names]):
            with suppress(FileNotFoundError, Timeout):  # another process removes it, or compiles it
                if path.is_symlink() or path.lstat().st_uid not in (0, os.geteuid()):
                    raise cachedir.refused(folder, f"holds {path.relative_to(folder)}, a link or another user's", DO)
                if path.suffix in (".py", ".so") and not _is_whole(path):
                    key = path.name.partition(".")[0]
                    (folder / "locks").mkdir(exist_ok=True)
                    with FileLock(folder / "locks" / f"{key}.lock", timeout=0):  # torch's
                        for part in {path, _digest_of(path), *path.parent.glob(f"{key}.main.*")}:
                            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Whether a module of torch's has the hash that it is named after, and a library the one that is noted beside it."""
    if not path.is_file():
        return False
    data = path.read_bytes()
    if path.suffix == ".py":
        return path.stem == f"c{base64.b32encode(hashlib.sha256(data.strip()).digest())[:51].decode().lower()}"
    beside = _digest_of(path)
    return beside.is_file() and beside.read_bytes() == hashlib.sha256(data).hexdigest().encode()


def _digest_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def obstacle(wanted: CompileCache | None) -> str:
    """Why the folder cannot be used, or ``""``; then it is ready."""
    if wanted is not None:
        try:
            Cache(wanted).open()
        except NativeError as error:
            return f"{error}. torch's caches stay where they are"
    return ""


_scratch: dict[int, str] = {}


def scratch() -> str:
    """A folder for this process alone, removed at its end: torch loads code from files even if it keeps none."""
    here = os.getpid()
    if not os.path.isdir(_scratch.get(here, "")):
        _scratch[here] = tempfile.mkdtemp(prefix="msctx_uncached_")
    return _scratch[here]


SLOT = Slot(Cache)


def serves(wanted: CompileCache | None) -> bool:
    """Whether the current cache is the requested one, also from the current working directory."""
    return SLOT.read() == wanted and (wanted is None or wanted.off or SLOT.on.root == root_of(wanted))


def _lead(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if (inductor := sys.modules.get("torch._inductor.utils")) is not None:
        inductor.clear_caches()  # inductor writes code that it has loaded already to no second folder


def _at_exit() -> None:
    if own := _scratch.pop(os.getpid(), None):  # a forked process has its parent's entry, too
        shutil.rmtree(own, ignore_errors=True)


atexit.register(_at_exit)
