"""Builds the kernels once on the machine they run on, and vouches for the library each time after."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from msctx._version import __version__
from msctx.errors import NativeError
from msctx.native import artifacts, cachedir, compiler
from msctx.native.artifacts import Artifact
from msctx.native.build_spec import BuildSpec, Unit, check_platform, isas, machine, spec_of
from msctx.native.children import Children
from msctx.native.compiler import Compiled, Compiler
from msctx.tables import in_words

EVERY = 30
"""Seconds between two lines of a build that has no terminal."""
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
    compiled: int = 0
    reused: int = 0

    @property
    def log(self) -> Path:
        """What the compiler printed."""
        return self.path.with_suffix(".log")


def library(sources: Path | None = None) -> Path:
    """The library for torch: all kernels, the dispatch and the glue; built if it is not cached. Import torch before loading it.

    Raises:
        NativeError: it cannot be built, or the cache is not safe to load from.
    """
    return build(sources=sources).path


def kernels_library(sanitize: str = "", sources: Path | None = None) -> Path:
    """The same without torch and its glue; *sanitize* (``"address,undefined"``) for the tests."""
    return _obtain(spec_of("kernels", sanitize, sources)).path


def emulated_library() -> Path:
    """The library for torch with a matrix unit in software beside, for the tests: ``MSCTX_ISA=amx_fp16_emulated`` and its like."""
    return _obtain(spec_of("emulated", "", None)).path


def build(verbose: bool = False, *, sources: Path | None = None) -> Build:
    """The library for torch and how it came about; *verbose* prints each command and the compiler's messages."""
    return _obtain(spec_of("library", "", sources), verbose)


def cached(sources: Path | None = None) -> Build | None:
    """The library for torch, if it need not be built."""
    spec = spec_of("library", "", sources)
    found = artifacts.cached("native", _file(spec), _fits(spec))
    return _build_of(found) if found else None


def obstacle(sources: Path | None = None) -> str:
    """Why there can be no native core here, or ``""``: it is cached, or there is what it takes to build it. Cheap when repeated."""
    try:
        check_platform()
        compiler.find()
        cachedir.usable()
    except NativeError as error:
        with suppress(NativeError):
            if not os.environ.get("CXX") and _is_cached(cachedir.location(), os.environ.get("PATH", ""), sources):
                return ""
        return str(error)
    return ""


def origin(library: Path) -> tuple[str, str]:
    """What a library was made of (a hash of the sources, the flags and torch), and by which compiler."""
    note = json.loads(library.with_suffix(".json").read_bytes())
    return str(note["inputs"]), str(note["compiler"])


@lru_cache(maxsize=8)
def _is_cached(_place: Path, _path: str, sources: Path | None) -> bool:
    return cached(sources) is not None


def _file(spec: BuildSpec) -> str:
    return f"{spec.inputs[:16]}.so"


def _fits(spec: BuildSpec) -> Callable[[dict[str, Any]], bool]:
    """Which libraries serve: any compiler's, or that of the one which CXX names."""
    inputs, tool = spec.inputs, str(compiler.find()) if os.environ.get("CXX") else ""
    return lambda note: note["inputs"] == inputs and tool in ("", note["compiler"])


def _build_of(found: Artifact, began: float | None = None, **more: int) -> Build:
    seconds = time.perf_counter() - began if began is not None else 0.0
    return Build(found.path, seconds, found.cached, tuple(found.note["isas"]), str(found.note["compiler"]), **more)


def _obtain(spec: BuildSpec, verbose: bool = False) -> Build:
    began = time.perf_counter()
    counts: dict[str, int] = {}
    waiting = ExitStack()

    def make(scratch: Path) -> tuple[bytes, dict[str, Any]]:
        waiting.close()  # another one has given up
        data, reused = _make(spec, tool, scratch, verbose)
        counts.update(compiled=len(spec.units) - reused, reused=reused)
        note = {
            "product": spec.product,
            "inputs": spec.inputs,
            "built": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "msctx": __version__,
            "machine": machine(),
            "isas": isas(),
            "compiler": str(tool),
            "torch": spec.torch,
        }
        return data, note

    file, fits = _file(spec), _fits(spec)
    if (found := artifacts.cached("native", file, fits)) is None:
        tool = compiler.find()
        cachedir.usable()
        wait = partial(_repeating, lambda: "another process is building the native core; waiting for it")
        with waiting:
            made = artifacts.obtain("native", file, make, fits, lambda: waiting.enter_context(wait()))
        assert isinstance(made, Artifact)  # a failure raises
        found = made
        _is_cached.cache_clear()
    built = _build_of(found, began, **counts)
    if counts:
        _print(f"msctx: built the native core in {built.seconds:.1f} s")
    return built


def _make(spec: BuildSpec, tool: Compiler, scratch: Path, verbose: bool) -> tuple[bytes, int]:
    """The library's bytes, and how many objects were there already."""
    sources, result = scratch / "sources", scratch / "library.so"
    for name, data in spec.files.items():  # exactly what the key was made of, whoever edits the files meanwhile
        folder = cachedir.folder("tmp", scratch.name, "sources", *Path(name).parts[:-1])
        cachedir.write(folder / Path(name).name, data)
    log: list[str] = []

    def run(command: tuple[str, ...], result: Path, cwd: Path) -> Compiled:
        made = compiler.run(children, command, result, cwd=cwd, scratch=scratch)
        log.append(f"$ {shlex.join(command)}\n{made.log}{made.why}\n")
        if verbose:
            _print(log[-1].rstrip("\n"))
        if made.data is None:
            raise _failure(spec, command, made, scratch)
        return made

    def compiled(unit: Unit, path: Path) -> bool:
        """Put the object at *path*; returns whether it was there already."""
        name = f"{spec.object_key(unit, tool)}.o"
        if (found := artifacts.cached("objects", name)) is not None:
            cachedir.write(path, found.data)
        else:
            made = run(spec.command(unit, tool, path), path, sources)
            artifacts.store("objects", name, made.data or b"", {"log": made.log})
        advance()
        return found is not None

    objects = [scratch / f"{i:03}-{Path(unit.source).stem}.o" for i, unit in enumerate(spec.units)]
    work = sorted(zip(spec.units, objects, strict=True), key=lambda each: not each[0].source.startswith("glue/"))
    try:  # those of the glue come first: torch's headers take longest
        with Children() as children, _progress(len(work), verbose) as advance:
            reused = sum(compiler.side_by_side([partial(compiled, *each) for each in work], children))
            library = run(spec.link_command(objects, tool, result), result, scratch)
    finally:
        with suppress(OSError):
            cachedir.write((cachedir.folder("native") / _file(spec)).with_suffix(".log"), "".join(log).encode())
    return library.data or b"", reused


def _failure(spec: BuildSpec, command: tuple[str, ...], made: Compiled, scratch: Path) -> NativeError:
    full, free = "", shutil.disk_usage(scratch).free
    if free < FULL:
        full = f"{scratch.parent} has {in_words(free)} left: make room there, or {cachedir.ELSEWHERE}. "
    shown = "".join(f"\n  {line}" for line in compiler.first_lines(made.log).splitlines())
    log = (cachedir.folder("native") / _file(spec)).with_suffix(".log")
    return NativeError(
        f"the native core cannot be built: the compiler {made.why}\n  {shlex.join(command)}{shown}\n"
        f"The sources are in {spec.root}, the whole output is in {log}. "
        f"{full}Try another compiler (CXX=…); if that does not help, report it with this file."
    )


@contextmanager
def _progress(total: int, verbose: bool) -> Iterator[Callable[[], None]]:
    """A line that counts on a terminal (stderr), a single one elsewhere."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        is_terminal = False
    if verbose or not is_terminal:
        done: list[None] = []
        with _repeating(lambda: f"building the native core (once): {f'{len(done)} of ' * bool(done)}{total} files"):
            yield lambda: done.append(None)
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("msctx: building the native core (once):", total=total)
        yield lambda: bar.advance(task)


@contextmanager
def _repeating(text: Callable[[], str]) -> Iterator[None]:
    """Say at once and every half a minute what takes so long."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(EVERY):
            _print(f"msctx: {text()}, {time.perf_counter() - began:.0f} s")

    began, thread = time.perf_counter(), threading.Thread(target=say, daemon=True)
    _print(f"msctx: {text()}")
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _print(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # nobody reads it: the build goes on
            print(line, file=sys.stderr, flush=True)
