"""Builds the kernels once on the machine they run on, by ninja, and vouches for the library each time after.

In the cache, ``build/<key>`` has the sources, ninja's files and the objects, for one compiler and one torch. What has changed is
compiled again, also after a build that was killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ninja

from msctx._version import __version__
from msctx.errors import NativeError
from msctx.native import artifacts, cachedir, compiler
from msctx.native.artifacts import EVERY, Artifact, say
from msctx.native.build_spec import BuildSpec, check_platform, isas, machine, spec_of
from msctx.native.compiler import Compiler

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""How ninja begins a line: what is done, of how many."""


@dataclass(frozen=True, slots=True)
class Build:
    """A library that may be loaded. *seconds* is what this call took."""

    path: Path
    seconds: float
    cached: bool
    isas: tuple[str, ...]
    compiler: str

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


_served: set[tuple[Any, ...]] = set()
"""The sources and the environments for which no obstacle was found; loading reports what fails later."""


def obstacle(sources: Path | None = None) -> str:
    """Why there can be no native core here, or ``""``: it is cached, or there is what it takes to build it. Cheap when repeated."""
    environment = sources, *map(os.environ.get, ("CXX", "PATH", "HOME", "XDG_CACHE_HOME", cachedir.VARIABLE))
    if environment in _served:
        return ""
    try:
        check_platform()
        compiler.find()
        cachedir.usable()
    except NativeError as error:
        with suppress(NativeError):
            if not os.environ.get("CXX") and _is_cached(cachedir.location(), os.environ.get("PATH", ""), sources):
                return ""
        return str(error)
    _served.add(environment)
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


def _build_of(found: Artifact, began: float | None = None) -> Build:
    seconds = time.perf_counter() - began if began is not None else 0.0
    return Build(found.path, seconds, found.cached, tuple(found.note["isas"]), str(found.note["compiler"]))


def _obtain(spec: BuildSpec, verbose: bool = False) -> Build:
    began, file, fits = time.perf_counter(), _file(spec), _fits(spec)
    if (found := artifacts.cached("native", file, fits)) is not None:
        return _build_of(found, began)
    tool = compiler.find()
    cachedir.usable()

    def make() -> tuple[bytes, dict[str, Any]]:
        note = {"inputs": spec.inputs, "compiler": str(tool), "isas": isas(), "product": spec.product, "torch": spec.torch}
        note |= {"machine": machine(), "msctx": __version__, "built": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        return _make(spec, tool, verbose), note

    built = _build_of(artifacts.obtain("native", file, make, fits), began)
    if not built.cached:
        say(f"built the native core in {built.seconds:.1f} s")
        _is_cached.cache_clear()
    return built


def _make(spec: BuildSpec, tool: Compiler, verbose: bool) -> bytes:
    """The library's bytes. ninja has copies of the sources, exactly what the key was made of, whoever edits the files meanwhile."""
    folder = cachedir.folder("build", spec.folder(tool))
    with artifacts.locked(folder):
        for name, data in {**spec.files, "build.ninja": spec.ninja(tool).encode()}.items():
            if not (path := folder / name).is_file() or path.read_bytes() != data:
                cachedir.write(cachedir.folder("build", folder.name, *Path(name).parts[:-1]) / path.name, data)
        for path in {each for top in spec.tops for each in (folder / top).rglob("*") if each.is_file()}:
            if path.relative_to(folder).as_posix() not in spec.files:
                path.unlink()
        status, output = _run_ninja(folder, verbose)
        log = (cachedir.folder("native") / _file(spec)).with_suffix(".log")
        cachedir.write(log, output.encode())
        if status:
            raise _failure(spec, output, log)
        return (folder / f"{spec.product}.so").read_bytes()


def _run_ninja(folder: Path, verbose: bool) -> tuple[int, str]:
    """ninja's exit code and all that it and the compilers printed. It ends with this call, and what it has begun goes."""
    jobs = str(len(os.sched_getaffinity(0)))
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-v", "-j", jobs]
    env = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "start_new_session": True, "umask": 0o077, "env": env}
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **how) as process:
        lines: list[str] = []
        try:
            with _progress(verbose) as show:
                for line in process.stdout or ():
                    lines.append(line)
                    show(line)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    return process.returncode, "".join(lines)


def _failure(spec: BuildSpec, output: str, log: Path) -> NativeError:
    """With the first command that failed and what it printed."""
    failed = re.split(r"^FAILED: .*\n", output, maxsplit=1, flags=re.MULTILINE)[-1]
    shown = "".join(f"\n  {line}" for line in compiler.first_lines(STEP.split(failed)[0], 13).splitlines())
    return NativeError(
        f"the native core cannot be built: the compiler failed{shown}\n"
        f"The sources are in {spec.root}, the whole output is in {log}. "
        f"Try another compiler (CXX=…); if that does not help, report it with this file."
    )


@contextmanager
def _progress(verbose: bool) -> Iterator[Callable[[str], None]]:
    """What is told of the lines that ninja prints: a count on a terminal, else a line every half a minute."""
    began, told = time.perf_counter(), -float(EVERY)
    is_terminal = not verbose and sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
    what = "building the native core (once)"

    def show(line: str) -> None:
        nonlocal told
        seconds, step = time.perf_counter() - began, STEP.match(line)
        if verbose:
            say(line.rstrip("\n"))
        elif step and (is_terminal or seconds >= told + EVERY):
            told = seconds
            say(f"{what}: {step[1]} of {step[2]} files, {seconds:.0f} s", over=is_terminal)

    say(what, over=is_terminal)
    try:
        yield show
    finally:
        if is_terminal:
            say("", over=True)
