"""The folder in which torch keeps what it compiles: ``rank_<number>`` of compile_cache_path, or ``kernel_cache``.

In it there is a folder for each stamp, so that machines and versions that share a disk do not share code. torch loads what it finds
there, which is code that runs as the user: so nobody else may be able to write there.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msctx.errors import NativeError
from msctx.graph import cache_limit, cache_stamp
from msctx.graph.cache_stamp import Stamp, stamp
from msctx.native import cache_tag, cachedir
from msctx.notices import warn
from msctx.observers import files
from msctx.options.compile_cache import CompileCache

OPTION = "enable_compile_cache"
MARKER, LOCK = "msctx_cache.json", ".msctx_cache.lock"
OURS = frozenset({MARKER, LOCK, cache_limit.INI})
MAJOR = 1
FORMAT = f"msctx compile cache {MAJOR}"
DO = "name another folder with compile_cache_path (op_compiler_cache_dir)"
NOT_USED = "torch's caches stay where they are"
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PATIENCE = 10.0
"""Seconds to wait for another process that throws things away."""


def root_of(wanted: CompileCache) -> Path:
    """The folder that the options mean, from the working directory as it is now."""
    if wanted.kernels:
        return _absolute(wanted.path or os.environ.get("ASCEND_CACHE_PATH") or "~/atc_data") / "kernel_cache"
    return _absolute(wanted.path or ".") / f"rank_{files.rank()}"


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path))))


# --- a folder of one stamp --------------------------------------------------------------------------------------------


def marked(folder: Path) -> dict[str, Any] | None:
    """What the marker in a folder holds; ``None``: there is none, or it cannot be read."""
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def stamp_of(folder: Path) -> Stamp | None:
    return cache_stamp.read((marked(folder) or {}).get("stamp"))


def policies_of(folder: Path) -> list[str] | None:
    """Under which policies code in a folder was compiled; ``None``: its marker is damaged."""
    found = (marked(folder) or {}).get("policies", [])
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def refusals(folder: Path) -> list[str]:
    """Why what lies in a folder must not be used; none: it may be."""
    if all(path.name.startswith(".") for path in folder.iterdir()):  # another process is just marking it
        return []
    found = marked(folder)
    if found is None:
        return [f"there are files in it, and no {MARKER} of ours: somebody else has put them there"]
    if found.get("format") != FORMAT:
        return [f"its format is {found.get('format')}, and this msctx knows {FORMAT}"]
    theirs = cache_stamp.read(found.get("stamp"))
    if theirs is None or policies_of(folder) is None:
        return [f"its {MARKER} is damaged"]
    return theirs.differs(stamp())


def ready(root: Path) -> Path:
    """The folder in *root* for code of here, made and marked where it is missing.

    Raises:
        NativeError: it cannot be used.
        OSError: the same.
    """
    is_new = not root.exists()
    root = cachedir.checked(root, DO)
    if is_new:
        cachedir.write(root / MARKER, json.dumps({"format": FORMAT}).encode())
    folder = cachedir.checked(root / stamp().name, DO)
    if why := refusals(folder):
        raise NativeError(f"{folder}: {'; '.join(why)}; remove that folder, or {DO}")
    mark(folder, set())
    return folder


def mark(folder: Path, policies: set[str]) -> None:
    """Say whose folder it is, and under which policies code in it was compiled."""
    known = policies_of(folder) or []
    listed = sorted({*known, *policies} - {""})
    if listed != known or not (folder / MARKER).exists():
        data = {"format": FORMAT, "stamp": asdict(stamp()), "policies": listed}
        cachedir.write(folder / MARKER, json.dumps(data, indent=1).encode())


def is_ours(root: Path) -> bool:
    """Whether msctx has made it, so that all there is in it belongs to the cache."""
    return (marked(root) or {}).get("format") == FORMAT


def folders(root: Path) -> list[Path]:
    """The folders of stamps in *root* that are ours."""
    with suppress(OSError):
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and stamp_of(path))
    return []


def throw_away(root: Path, which: list[Path]) -> int:
    """Empty folders of ours; returns how many bytes went. Their markers stay: a process may go on writing there.

    Where another process does not give the lock away, both throw away, each what the other leaves.
    """
    with locked(root):
        before = sum(size_of(folder) for folder in which)
        for folder in which:
            for path in folder.iterdir():
                if path.name in OURS or (folder == root and stamp_of(path)):
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        return before - sum(size_of(folder) for folder in which)


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


@contextmanager
def locked(root: Path) -> Iterator[bool]:
    """Be the only process that throws something away; *False*: another one is at it, or there are no locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(root / LOCK, mode=0o600)
    try:
        lock.acquire(timeout=PATIENCE)
    except (Timeout, NotImplementedError, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


# --- as a scope has it ------------------------------------------------------------------------------------------------


class Cache:
    """Where torch keeps its code while a scope is open."""

    def __init__(self, wanted: CompileCache) -> None:
        self.wanted = wanted
        self.root = Path(scratch()) if wanted.off else root_of(wanted)
        self.folder = self.root if wanted.off else self.root / stamp().name
        self._before = {*cache_tag.used}

    @property
    def variables(self) -> dict[str, str | None]:
        return dict(zip(VARIABLES, (str(self.folder), str(self.folder / "triton")), strict=True))

    def open(self) -> None:
        """Make the folder ready.

        Raises:
            NativeError: it cannot be used.
            OSError: the same.
        """
        if self.wanted.off:
            return
        self.folder = ready(self.root)
        if self.wanted.kernels:
            cache_limit.write_ini(self.root)
        self._keep_within()

    def renew(self) -> None:
        """Once in a process: what it has stored itself is not thrown away again."""
        if self.wanted.renew and self.root not in _renewed:
            _renewed.add(self.root)
            throw_away(self.root, [*folders(self.root), *([self.root] if is_ours(self.root) else ())])

    def leave(self) -> None:
        """Note what was used, and keep within the limits."""
        if self.wanted.off:
            return
        try:
            for path in _used(self.folder):
                with suppress(OSError):
                    os.utime(path)
            mark(self.folder, cache_tag.used - self._before)
            self._keep_within()
        except OSError as error:
            warn(OPTION, str(self.folder), f"{self.folder}: {error.strerror or error}; what was compiled may be missing there")

    def _keep_within(self) -> None:
        wanted = self.wanted
        if wanted.megabytes is not None:
            limit = cache_limit.Limit(wanted.megabytes, wanted.percent)
        elif wanted.kernels:
            limit = cache_limit.found(self.root)
        else:
            return
        with locked(self.root) as mine:
            if mine:
                cache_limit.keep_within(folders(self.root), limit, OURS)


_renewed: set[Path] = set()


def _used(folder: Path) -> Iterator[Path]:
    """The files that this process has loaded or stored: of modules, of libraries, and of graphs."""
    for module in [*sys.modules.values()]:
        with suppress(AttributeError):  # not by getattr, which runs modules that the program loads later
            name = object.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(name, str) and name.startswith(f"{folder}{os.sep}"):
                yield Path(name)
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if (name := line.partition("/")[2]) and f"/{name}".startswith(f"{folder}{os.sep}"):
                yield Path(f"/{name}")
    manager = getattr(sys.modules.get("torch.compiler._cache"), "CacheArtifactManager", None)
    for artifact in [*getattr(manager, "_seen_artifacts", ())]:
        key = str(artifact.key)
        for inner in (folder / "fxgraph" / key[1:3] / key, folder / "aotautograd" / key):
            if inner.is_dir():
                yield from inner.iterdir()


def obstacle(wanted: CompileCache | None) -> str:
    """Why a cache cannot be where it is wanted, or ``""``: then it is ready."""
    if wanted is None:
        return ""
    try:
        Cache(wanted).open()
        return ""
    except NativeError as error:
        return f"{error}. {NOT_USED}"
    except OSError as error:
        return f"{error.filename or root_of(wanted)}: {error.strerror or error}; {DO}. {NOT_USED}"


# --- nothing is kept --------------------------------------------------------------------------------------------------

_scratch: dict[int, str] = {}


def scratch() -> str:
    """A folder that goes with this process: torch loads all code from files, also where it keeps none."""
    here = os.getpid()
    if not os.path.isdir(_scratch.get(here, "")):
        _scratch[here] = tempfile.mkdtemp(prefix="msctx_uncached_")
    return _scratch[here]


# --- in force ---------------------------------------------------------------------------------------------------------

current: Cache | None = None
State = tuple["Cache | None", dict[str, str | None]]


def serves(wanted: CompileCache | None) -> bool:
    """Whether what is in force is what is wanted, also seen from the working directory as it is now."""
    if current is None or wanted is None:
        return current is None and wanted is None
    return current.wanted == wanted and (wanted.off or current.root == root_of(wanted))


def read() -> dict[str, Any] | None:
    return None if current is None else asdict(current.wanted)


def save() -> State:
    return current, {name: os.environ.get(name) for name in VARIABLES}


def write(wanted: CompileCache | None) -> None:
    if wanted is None:
        load((None, dict.fromkeys(VARIABLES)))
        return
    found = Cache(wanted)
    found.open()
    found.renew()
    load((found, found.variables))


def load(state: State) -> None:
    global current
    leaving, (current, variables) = current, state
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _forget_places()
    if leaving is not None and leaving is not current:
        leaving.leave()


def _forget_places() -> None:
    """inductor remembers what it has loaded, and would not write it into another folder."""
    codecache = sys.modules.get("torch._inductor.codecache")
    for name, kind in [*vars(codecache).items()] if codecache is not None else ():
        if name.endswith("CodeCache") and hasattr(kind, "cache_clear"):
            kind.cache_clear()
    base = getattr(codecache, "CacheBase", None)
    if base is not None:
        base.get_local_cache_path.cache_clear()


def _at_exit() -> None:
    if current is not None:
        current.leave()
    if own := _scratch.pop(os.getpid(), None):  # a forked process has its parent's in the table, too
        shutil.rmtree(own, ignore_errors=True)


atexit.register(_at_exit)
