"""Compiles the kernels once on the machine they run on, keeps the library in the cache, and vouches for it each time after.

The cache: ``native/<key>/`` (a library, build.json), ``objects/`` (compiled files, by what they were made from), ``logs/``, ``cuda/``
(see cuda/build.py) and ``tmp/`` (builds in progress). Nothing is in ``native/<key>/`` before it is whole, and build.json comes last.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from msctx._version import __version__
from msctx.errors import NativeError
from msctx.native import cachedir, compiler
from msctx.native.build_spec import Recipe, check_platform, identity, isas, machine, recipe_of, sha256
from msctx.native.compiler import Compiler, Step, StepFailed

KEEP_DAYS = 30
FULL = 2**26
"""With fewer bytes left, a build that fails may have failed for that: what a compiler had written it has removed by then."""


@dataclass(frozen=True, slots=True)
class Build:
    """A library that may be loaded. *seconds* is what this call took; *compiled* and *reused* count object files."""

    path: Path
    seconds: float
    cached: bool
    isas: tuple[str, ...]
    compiler: str
    log: Path
    compiled: int = 0
    reused: int = 0


def library(sources: Path | None = None) -> Path:
    """The library for torch: all kernels, the dispatch and the glue; built if it is not cached. Import torch before loading it.

    Raises:
        NativeError: it cannot be built, or the cache is not safe to load from.
    """
    return build(sources=sources).path


def kernels_library(sanitize: str = "", sources: Path | None = None) -> Path:
    """The same without torch and its glue; *sanitize* (``"address,undefined"``) for the tests."""
    return _make(recipe_of("kernels", sanitize, sources), verbose=False).path


def build(verbose: bool = False, *, sources: Path | None = None) -> Build:
    """The library for torch and how it came about; *verbose* prints each command and the compiler's messages."""
    return _make(recipe_of("library", "", sources), verbose)


def cached() -> Build | None:
    """The library for torch, if it need not be built."""
    recipe = recipe_of("library", "", None)
    try:
        return _cached(recipe.key(compiler.find()), recipe)
    except NativeError:
        return _prebuilt(recipe)


def obstacle(sources: Path | None = None) -> str:
    """Why there can be no native core here, in a sentence, or ``""``: it is cached, or there is what it takes to build it."""
    try:
        check_platform()
        compiler.find()
        cachedir.usable()
    except NativeError as error:
        with suppress(NativeError):
            place = str(cachedir.location())
            if not os.environ.get("CXX") and _is_prebuilt(place, os.environ.get("PATH", ""), sources):
                return ""
        return str(error)
    return ""


def origin(library: Path) -> tuple[str, str]:
    """What a library that was built here was made of (a hash of the sources, the flags and torch), and by which compiler."""
    record = json.loads(library.with_name("build.json").read_bytes())
    return str(record["inputs"]), str(record["compiler"])


def remove() -> int:
    """Remove everything that was built, after builds in progress; returns how many bytes that were."""
    cache = cachedir.existing()
    if cache is None:
        return 0
    before = _size(cache)
    with cachedir.telling(cache):
        for key in _keys(cache):
            with _locked(key):
                _drop(cache, key)
                (cache / "native" / f"{key}.lock").unlink()
        for path in [*cache.glob("objects/*"), *cache.glob("logs/*"), *cache.glob("cuda/*")]:
            path.unlink(missing_ok=True)
    _is_prebuilt.cache_clear()
    return before - _size(cache)


def _make(recipe: Recipe, verbose: bool) -> Build:
    began = time.perf_counter()
    try:
        tool = compiler.find()
    except NativeError:
        if not os.environ.get("CXX") and (found := _prebuilt(recipe)) is not None:
            return found
        raise
    key = recipe.key(tool)
    if (found := _cached(key, recipe)) is not None:
        return replace(found, seconds=time.perf_counter() - began)
    cachedir.usable()
    cache = cachedir.folder()
    with cachedir.telling(cache), _locked(key):
        if (found := _cached(key, recipe)) is not None:  # another process was faster
            return replace(found, seconds=time.perf_counter() - began)
        for stale in cachedir.folder("tmp").glob(f"{key}.*"):  # of a build that was killed: the lock was free
            shutil.rmtree(stale, ignore_errors=True)
        scratch = cachedir.folder("tmp", f"{key}.{secrets.token_hex(4)}")
        try:
            built = _Work(recipe, tool, key, scratch, verbose, began).build()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    _is_prebuilt.cache_clear()
    _prune(cache, key)
    return built


class _Work:
    """A build in progress. It has the lock of its key, and a scratch folder that nobody else uses."""

    def __init__(self, recipe: Recipe, tool: Compiler, key: str, scratch: Path, verbose: bool, began: float) -> None:
        self.recipe, self.tool, self.key, self.scratch, self.verbose = recipe, tool, key, scratch, verbose
        self.began = began
        self.log: list[str] = []
        self.log_path = cachedir.folder("logs") / f"{key}.log"
        self.stored = cachedir.folder("objects")
        self.sources = cachedir.folder("tmp", scratch.name, "sources")
        self.objects = [scratch / f"{i:03}-{Path(unit.source).stem}.o" for i, unit in enumerate(recipe.units)]

    def build(self) -> Build:
        for name, data in self.recipe.files.items():  # exactly what the key was made of, whoever edits the files meanwhile
            path = self.sources / name
            cachedir.write(cachedir.folder("tmp", self.scratch.name, "sources", str(Path(name).parent)) / path.name, data)
        result = self.scratch / self.recipe.file
        try:
            with _progress(len(self.objects), self.verbose) as advance:
                reused = self._take_objects(advance)
                self._compile([i for i in range(len(self.objects)) if i not in reused], advance)
                self._run([Step(self.recipe.link_command(self.objects, self.tool, result), result)], self.scratch)
        except StepFailed as failed:
            raise self._failure(failed) from None
        finally:
            with suppress(OSError):
                cachedir.write(self.log_path, "".join(self.log).encode())
        built = Build(
            path=cachedir.folder("native", self.key) / self.recipe.file,
            seconds=time.perf_counter() - self.began,
            cached=False,
            isas=isas(),
            compiler=str(self.tool),
            log=self.log_path,
            compiled=len(self.objects) - len(reused),
            reused=len(reused),
        )
        data = result.read_bytes()
        cachedir.write(built.path, data)
        cachedir.write(built.path.with_name("build.json"), (json.dumps(self._record(built, data), indent=2) + "\n").encode())
        _say(f"msctx: built the native core in {built.seconds:.1f} s")
        return built

    def _take_objects(self, advance: Callable[[], None]) -> list[int]:
        taken = []
        for i, unit in enumerate(self.recipe.units):
            path = self.stored / f"{self.recipe.object_key(unit, self.tool)}.o"
            data = _unsealed(path)
            if data is None:
                continue
            cachedir.write(self.objects[i], data)
            with suppress(OSError):
                os.utime(path)
            taken.append(i)
            advance()
        return taken

    def _compile(self, numbers: list[int], advance: Callable[[], None]) -> None:
        units = self.recipe.units
        numbers = sorted(numbers, key=lambda i: not units[i].source.startswith("glue/"))  # torch's headers take longest
        steps = [Step(self.recipe.command(units[i], self.tool, self.objects[i]), self.objects[i]) for i in numbers]
        names = {self.objects[i]: f"{self.recipe.object_key(units[i], self.tool)}.o" for i in numbers}

        def keep(step: Step) -> None:
            cachedir.write(self.stored / names[step.result], _sealed(step.result.read_bytes()))
            advance()

        self._run(steps, self.sources, keep)

    def _run(self, steps: list[Step], cwd: Path, done: Callable[[Step], None] = lambda step: None) -> None:
        def note(step: Step, output: str) -> None:
            self._note(step, output)
            done(step)

        try:
            compiler.run(steps, self.scratch, cwd, note)
        except StepFailed as failed:
            self._note(failed.step, f"{failed.output}\n{failed.why}\n")
            raise

    def _note(self, step: Step, output: str) -> None:
        self.log.append(f"$ {shlex.join(step.command)}\n{output}")
        if self.verbose:
            _say(self.log[-1].rstrip("\n"))

    def _failure(self, failed: StepFailed) -> NativeError:
        full, free = "", shutil.disk_usage(self.scratch).free
        if free < FULL:
            full = f"{self.scratch.parent} has {free >> 20} MiB left: make room there, or {cachedir.ELSEWHERE}. "
        lines = [line for line in failed.output.splitlines() if line.strip()]
        shown = "".join(f"\n  {line}" for line in [*lines[:12], *(["…"] if len(lines) > 12 else [])])
        return NativeError(
            f"the native core cannot be built: the compiler {failed.why}\n  {shlex.join(failed.step.command)}{shown}\n"
            f"The sources are in {self.recipe.root}, the whole output is in {self.log_path}. "
            f"{full}Try another compiler (CXX=…); if that does not help, report it with this file."
        )

    def _record(self, built: Build, data: bytes) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "product": recipe.product,
            "sha256": sha256(data),
            "inputs": recipe.inputs,
            "built": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": round(built.seconds, 3),
            "compiled": built.compiled,
            "reused": built.reused,
            "msctx": __version__,
            "machine": machine(),
            "isas": built.isas,
            "compiler": built.compiler,
            "torch": identity(recipe.torch),
            "commands": [shlex.join([*u.flags, u.source]) for u in recipe.units] + [shlex.join(recipe.link)],
        }


def _sealed(data: bytes) -> bytes:
    """An object as it is stored: to a linker half of one may look like a whole one, an empty one does."""
    return data + hashlib.sha256(data).digest()


def _unsealed(path: Path) -> bytes | None:
    """A stored object, or ``None`` where there is none or it is damaged."""
    if not cachedir.is_own_file(path):
        return None
    with suppress(FileNotFoundError):  # another process tidies up
        stored = path.read_bytes()
        if _sealed(stored[:-32]) == stored:
            return stored[:-32]
    return None


def _cached(key: str, recipe: Recipe) -> Build | None:
    """The build in the cache if it is whole, what was asked for, and nobody else's. Takes no lock and needs no right to write."""
    folder = cachedir.existing("native", key)
    if folder is None:
        return None
    path, note = folder / recipe.file, folder / "build.json"
    with cachedir.telling(folder):
        if not (cachedir.is_own_file(path) and cachedir.is_own_file(note)):
            return None
        try:
            record = json.loads(note.read_bytes())
            is_it = record["inputs"] == recipe.inputs and record["sha256"] == sha256(path.read_bytes())
            sets, tool = tuple(record["isas"]), str(record["compiler"])
        except FileNotFoundError:  # another process tidies up
            return None
        except (ValueError, TypeError, KeyError):  # the note is something else
            return None
    if not is_it:
        return None
    with suppress(OSError):  # what is used stays
        os.utime(note)
    return Build(path, 0.0, True, sets, tool, folder.parents[1] / "logs" / f"{key}.log")


def _prebuilt(recipe: Recipe) -> Build | None:
    """A build of the same by whatever compiler, for a machine that has none."""
    native = cachedir.existing("native")
    if native is None:
        return None
    with cachedir.telling(native):
        keys = sorted(path.name for path in native.iterdir() if path.is_dir())
    return next((found for key in keys if (found := _cached(key, recipe)) is not None), None)


@lru_cache(maxsize=8)
def _is_prebuilt(_place: str, _path: str, sources: Path | None) -> bool:
    return _prebuilt(recipe_of("library", "", sources)) is not None


@contextmanager
def _locked(key: str, wait: bool = True) -> Iterator[None]:
    """Be the only process that touches the build of *key*. The lock goes with the process, however that ends."""
    lock = FileLock(cachedir.folder("native") / f"{key}.lock", mode=0o600)
    try:
        try:
            lock.acquire(timeout=1 if wait else 0)
        except Timeout:
            if not wait:
                raise
            _say("msctx: another process is building the native core; waiting for it")
            lock.acquire(timeout=-1)
    except NotImplementedError:
        raise NativeError(f"{lock.lock_file}: files cannot be locked there; {cachedir.ELSEWHERE}") from None
    try:
        yield
    finally:
        lock.release()


def _keys(cache: Path) -> set[str]:
    """Everything that has a folder, a lock or a build in progress."""
    return {path.name.split(".")[0] for name in ("native", "tmp") for path in (cache / name).glob("[!.]*")}


def _drop(cache: Path, key: str) -> None:
    for path in [cache / "native" / key, *(cache / "tmp").glob(f"{key}.*")]:
        shutil.rmtree(path, ignore_errors=True)


def _size(cache: Path) -> int:
    files = [Path(folder) / name for folder, _, names in os.walk(cache) for name in names]
    return sum(path.lstat().st_size for path in files if path.exists())


def _prune(cache: Path, own: str) -> None:
    """Remove what nobody has used for a month, and what killed builds left."""
    limit = time.time() - KEEP_DAYS * 86400

    def is_old(path: Path) -> bool:
        return path.lstat().st_mtime < limit

    with suppress(OSError):
        for path in [*cache.glob("objects/*"), *cache.glob("logs/*"), *cache.glob("cuda/*")]:
            if is_old(path):
                path.unlink()
    for key in _keys(cache) - {own}:
        with suppress(OSError, Timeout, NativeError), _locked(key, wait=False):  # what cannot be tidied, or is in use, stays
            note = cache / "native" / key / "build.json"
            for stale in (cache / "tmp").glob(f"{key}.*"):
                shutil.rmtree(stale, ignore_errors=True)
            if is_old(note if note.exists() else note.parent):
                _drop(cache, key)


@contextmanager
def _progress(total: int, verbose: bool) -> Iterator[Callable[[], None]]:
    """A line that counts on a terminal (stderr), a single one elsewhere."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        is_terminal = False
    if verbose or not is_terminal:
        _say(f"msctx: building the native core (once): {total} files")
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("msctx: building the native core (once):", total=total)
        yield lambda: bar.advance(task)


def _say(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # nobody reads it: the build goes on
            print(line, file=sys.stderr, flush=True)
