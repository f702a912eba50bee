"""The two libraries of the native core: those that the wheel brings, else those in the cache, else built there by ninja.

In the cache, ``build/<key>`` has the sources, ninja's files and the objects, for one compiler and one torch. What has changed is
compiled again, also after a build that was killed.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired, run

import ninja

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build_spec import BuildSpec, glue_spec, kernels_spec
from msctx.native.cachedir import digest, say
from msctx.shipped import LIBRARIES

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""How ninja begins a line: what is done, of how many."""
EVERY = 10
"""Seconds between two lines of progress."""
NAMES = ("c++", "g++", "clang++")
PROBE, USED = ("-v", "-std=c++20", "-x", "c++", "-fsyntax-only", "-"), "#include <bit>\nstatic_assert(std::popcount(7u) == 3);"


@dataclass(frozen=True, slots=True)
class Build:
    """The core: the library of the *kernels*, which is loaded first, and the *glue*."""

    kernels: Path
    glue: Path

    @property
    def origin(self) -> str:
        """Whether the wheel has brought it."""
        shipped = [path.parent == LIBRARIES for path in (self.kernels, self.glue)]
        return "from the wheel" if all(shipped) else "kernels from the wheel, glue built here" if any(shipped) else "built here"


def build(verbose: bool = False, *, sources: Path | None = None) -> Build:
    """The core, built if need be; *verbose* prints each command and the compiler's messages. Import torch before loading it.

    Raises:
        NativeError: it cannot be built, or the cache is not safe to load from.
    """
    spec = kernels_spec(sources)
    kernels = library(spec, verbose)
    return Build(kernels, library(glue_spec(spec, kernels), verbose))


def found(sources: Path | None = None) -> Build | None:
    """The core, if it need not be built."""
    spec = kernels_spec(sources)
    kernels = _found(spec)
    glue = _found(glue_spec(spec, kernels)) if kernels else None
    return Build(kernels, glue) if kernels and glue else None


def obstacle(sources: Path | None = None) -> str:
    """Why there can be no native core here, or ``""``: it is there, or there is what it takes to build it. Cheap when repeated."""
    try:
        if not _is_there(sources, *map(os.environ.get, ("HOME", "XDG_CACHE_HOME", cachedir.VARIABLE))):
            find_compiler()
            cachedir.usable()
    except NativeError as error:
        return str(error)
    return ""


@lru_cache(maxsize=8)
def _is_there(sources: Path | None, *_environment: str | None) -> bool:
    return found(sources) is not None


def _found(spec: BuildSpec) -> Path | None:
    shipped = LIBRARIES / spec.file
    return shipped if shipped.exists() else cachedir.cached("native", spec.file)


def library(spec: BuildSpec, verbose: bool = False) -> Path:
    """One of the two, built if need be."""
    return _found(spec) or cachedir.obtain("native", spec.file, lambda: _make(spec, find_compiler(), verbose))


def _make(spec: BuildSpec, tool: Compiler, verbose: bool) -> bytes:
    """The library's bytes. ninja has copies of the sources, exactly what the name was made of, whoever edits the files meanwhile."""
    key = digest(platform.machine(), platform.libc_ver(), tool.command, tool.version, spec.torch)[:16]
    folder, began = cachedir.folder("build", key), time.perf_counter()
    for name, data in {**spec.files, "build.ninja": _ninja(spec, tool).encode()}.items():
        if not (path := folder / name).is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-v", "-j", str(len(os.sched_getaffinity(0)))]
    env = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    with Popen(
        command, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT, encoding="utf-8", errors="replace", start_new_session=True
    ) as process:
        try:
            output = _told(process.stdout or (), f"building the {spec.what} (once)", verbose)
        except BaseException:
            process.send_signal(signal.SIGINT)  # ninja ends what it has begun
            process.wait()
            raise
    log = folder / "log"
    log.write_text(output, encoding="utf-8")
    if process.returncode:
        failed = first_lines(output.partition("FAILED: ")[2], 13).replace("\n", "\n  ")
        raise NativeError(
            f"the native core cannot be built: the compiler failed\n  {failed}\n"
            f"The sources are in {spec.root}, the whole output is in {log}. "
            f"Try another compiler (CXX=…); if that does not help, report it with this file."
        )
    say(f"built the {spec.what} in {time.perf_counter() - began:.1f} s")
    return (folder / "result.so").read_bytes()


def _ninja(spec: BuildSpec, tool: Compiler) -> str:
    """The text of build.ninja, which makes ``result.so``."""

    def joined(words: Iterable[str]) -> str:
        return shlex.join(words).replace("$", "$$")

    cxx, objects = joined(tool.command), []
    lines = [
        f"rule compile\n command = {cxx} $flags -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc",
        f"rule link\n command = {cxx} -shared $in {joined(spec.link)} -o $out",
    ]
    for source, flags in spec.units:
        # clang's OpenMP needs a runtime of its own, beside which torch's would run once more
        used = joined(flag for flag in flags if not ("clang" in tool.version and flag == "-fopenmp"))
        objects.append(f"objects/{digest(flags)[:8]}/{Path(source).with_suffix('.o')}")
        lines.append(f"build {objects[-1]}: compile {source}\n flags = {used}")
    return "\n".join([*lines, f"build result.so: link {' '.join(objects)}\n"])


def _told(output: Iterable[str], what: str, verbose: bool) -> str:
    """All that ninja and the compilers print, with a line of progress meanwhile; *verbose*: with every line."""
    began, told, lines = time.perf_counter(), -float(EVERY), list[str]()
    say(what)
    for line in output:
        lines.append(line)
        seconds, step = time.perf_counter() - began, STEP.match(line)
        if verbose:
            say(line.rstrip("\n"))
        elif step and seconds >= told + EVERY:
            told = seconds
            say(f"{what}: {step[1]} of {step[2]} files, {seconds:.0f} s")
    return "".join(lines)


# --- the compiler -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works; *version* is the line of its own description that has it."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that works. Cheap when called again."""
    if sys.platform != "linux":
        raise NativeError("the native core is built on Linux alone")
    given, why = os.environ.get("CXX", "").strip(), ""
    for name in (given,) if given else NAMES:
        if isinstance(found := _examined(name, os.environ.get("PATH", "")), Compiler):
            return found
        if given:
            raise NativeError(f"CXX={given}: {found}; correct CXX, or unset it so that c++, g++ or clang++ is looked for")
        if shutil.which(name):
            why = why or f"{name}: {found}; "
    raise NativeError(f"{why}{'no other' if why else 'no'} C++ compiler (set CXX, or install g++ or clang++)")


def first_lines(log: str, most: int = 12) -> str:
    """The beginning of a compiler's messages, without blank lines and ptxas's account."""
    lines = [line for line in log.splitlines() if line.strip() and "ptxas info" not in line]
    return "\n".join([*lines[:most], *(["…"] if len(lines) > most else [])])


@lru_cache(maxsize=16)
def _examined(words: str, _path: str) -> Compiler | str:
    """The compiler that a name or CXX stands for, or why it will not do."""
    try:
        program, *arguments = shlex.split(words)
        if (path := shutil.which(program)) is None:
            return "there is no such program"
        command, env = (os.path.abspath(path), *arguments), {**os.environ, "LC_ALL": "C"}
        done = run([*command, *PROBE], input=USED, stdout=PIPE, stderr=STDOUT, text=True, timeout=60, env=env, check=False)
    except (ValueError, OSError, TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in done.stdout.splitlines()]
    if done.returncode:
        return f"cannot be used for C++20: {next((line for line in lines if 'error:' in line), f'exit code {done.returncode}')}"
    return Compiler(command, next((line for line in lines if " version " in line), ""))
