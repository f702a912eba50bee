"""The two libraries of the native core: those that the wheel brings, else those in the cache, else built there by ninja.

In the cache, ``build/<key>`` has the sources, ninja's files and the objects, for one compiler and one torch. What has changed is
compiled again, also after a build that was killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ninja

from msctx.errors import NativeError
from msctx.native import artifacts, cachedir, compiler
from msctx.native.artifacts import EVERY, say
from msctx.native.build_spec import BuildSpec, check_platform, glue_spec, kernels_spec
from msctx.native.compiler import Compiler
from msctx.shipped import LIBRARIES

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""How ninja begins a line: what is done, of how many."""


@dataclass(frozen=True, slots=True)
class Build:
    """The core: the library of the *kernels*, which is loaded first, and the *glue*; *seconds*: what building took, if it did."""

    kernels: Path
    glue: Path
    seconds: float = 0.0

    @property
    def origin(self) -> str:
        """Whether the wheel has brought it."""
        shipped = [path.parent == LIBRARIES for path in (self.kernels, self.glue)]
        return "from the wheel" if all(shipped) else "kernels from the wheel, glue built here" if any(shipped) else "built here"


def build(verbose: bool = False, *, sources: Path | None = None, emulated: bool = False) -> Build:
    """The core, built if need be; *verbose* prints each command and the compiler's messages. Import torch before loading it.

    *emulated*, for the tests: with a matrix unit in software beside (``MSCTX_ISA=amx_fp16_emulated`` and its like).

    Raises:
        NativeError: it cannot be built, or the cache is not safe to load from.
    """
    spec = kernels_spec(sources, emulated=emulated)
    kernels, seconds = _obtain(spec, "kernels", verbose)
    glue = glue_spec(spec, kernels)
    path, more = _obtain(glue, f"glue for torch {glue.torch[0]}", verbose)
    return Build(kernels, path, seconds + more)


def kernels_library(sanitize: str = "", sources: Path | None = None) -> Path:
    """For the tests: the library of the kernels with matrix units in software; *sanitize*: ``"address,undefined"``."""
    return _obtain(kernels_spec(sources, sanitize, emulated=True), "kernels")[0]


def found(sources: Path | None = None) -> Build | None:
    """The core, if it need not be built."""
    spec = kernels_spec(sources)
    kernels = _found(spec)
    glue = _found(glue_spec(spec, kernels)) if kernels else None
    return Build(kernels, glue) if kernels and glue else None


_served: set[tuple[Any, ...]] = set()
"""The sources and the environments for which no obstacle was found; loading reports what fails later."""


def obstacle(sources: Path | None = None) -> str:
    """Why there can be no native core here, or ``""``: it is there, or there is what it takes to build it. Cheap when repeated."""
    environment = sources, *map(os.environ.get, ("CXX", "PATH", "HOME", "XDG_CACHE_HOME", cachedir.VARIABLE))
    if environment in _served:
        return ""
    try:
        check_platform()
        if not _is_there(environment):
            compiler.find()
            cachedir.usable()
    except NativeError as error:
        return str(error)
    _served.add(environment)
    return ""


@lru_cache(maxsize=8)
def _is_there(environment: tuple[Any, ...]) -> bool:
    return found(environment[0]) is not None


def _found(spec: BuildSpec) -> Path | None:
    shipped = LIBRARIES / spec.file
    return shipped if shipped.exists() else artifacts.cached("native", spec.file)


def _obtain(spec: BuildSpec, what: str, verbose: bool = False) -> tuple[Path, float]:
    if (there := _found(spec)) is not None:
        return there, 0.0
    check_platform()
    began, tool = time.perf_counter(), compiler.find()
    cachedir.usable()
    path, is_new = artifacts.obtain("native", spec.file, lambda: _make(spec, tool, f"building the {what} (once)", verbose))
    seconds = time.perf_counter() - began
    if is_new:
        say(f"built the {what} in {seconds:.1f} s")
        _is_there.cache_clear()
    return path, seconds


def _make(spec: BuildSpec, tool: Compiler, what: str, verbose: bool) -> bytes:
    """The library's bytes. ninja has copies of the sources, exactly what the name was made of, whoever edits the files meanwhile."""
    folder = cachedir.folder("build", spec.folder(tool))
    with artifacts.locked(folder):
        for name, data in {**spec.files, "build.ninja": spec.ninja(tool).encode()}.items():
            if not (path := folder / name).is_file() or path.read_bytes() != data:
                cachedir.write(cachedir.folder("build", folder.name, *Path(name).parts[:-1]) / path.name, data)
        status, output = _run_ninja(folder, what, verbose)
        log = folder / "log"
        cachedir.write(log, output.encode())
        if status:
            raise _failure(spec, output, log)
        return (folder / "result.so").read_bytes()


def _run_ninja(folder: Path, what: str, verbose: bool) -> tuple[int, str]:
    """ninja's exit code and all that it and the compilers printed. It ends with this call, and what it has begun goes."""
    jobs = str(len(os.sched_getaffinity(0)))
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-v", "-j", jobs]
    env = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "start_new_session": True, "umask": 0o077, "env": env}
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **how) as process:
        lines: list[str] = []
        try:
            with _progress(what, verbose) as show:
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
def _progress(what: str, verbose: bool) -> Iterator[Callable[[str], None]]:
    """What is told of the lines that ninja prints: a count on a terminal, else a line every half a minute."""
    began, told = time.perf_counter(), -float(EVERY)
    is_terminal = not verbose and sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()

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
