"""Compilers: the C++ compiler that is used, one run of any compiler, and many runs side by side."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from msctx.errors import NativeError
from msctx.native.children import Children

NAMES = ("c++", "g++", "clang++")
PROBE = """
#include <bit>
#include <concepts>
#include <cstdint>
template <std::unsigned_integral T> constexpr int bits(T x) { return std::popcount(x); }
static_assert(bits(std::uint32_t{7}) == 3);
"""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works; *version* is its own description."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version.splitlines()[0]})"

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version.lower()


@dataclass(frozen=True, slots=True)
class Compiled:
    """*data* is ``None`` where the compiler failed, and *why* says how it ended; *log* is its whole output."""

    data: bytes | None
    log: str
    why: str = ""


def find() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that works. Cheap when called again."""
    given = os.environ.get("CXX", "").strip()
    if given:
        found = _examined(given)
        if isinstance(found, str):
            raise NativeError(f"CXX={given}: {found}; correct CXX, or unset it so that c++, g++ or clang++ is looked for")
        return found
    why = ""
    for name in NAMES:
        if isinstance(found := _examined(name), Compiler):
            return found
        if shutil.which(name):
            why = why or f"{name}: {found}; "
    raise NativeError(f"{why}{'no other' if why else 'no'} C++ compiler (set CXX, or install g++ or clang++)")


def run(children: Children, command: Sequence[str], result: Path, *, cwd: Path, scratch: Path) -> Compiled:
    """Run a compiler that is to leave *result*. Its messages are in English; temporary files are in *scratch*, for the user alone."""
    env = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch)}
    done = children.run(command, cwd, env=env, umask=0o077, stderr=subprocess.STDOUT)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        why = f"was killed by {name}" + " (is there too little memory?)" * (name == "SIGKILL")
        return Compiled(None, done.stdout, why)
    if done.returncode or not result.exists():
        return Compiled(None, done.stdout, f"ended with exit code {done.returncode}" if done.returncode else "left no result")
    return Compiled(result.read_bytes(), done.stdout)


def side_by_side(jobs: Sequence[Callable[[], T]], children: Children | None = None) -> list[T]:
    """The results of *jobs*, which run as many at once as there are processors. When one raises, *children* are ended."""
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(jobs)) or 1) as pool:
        pending = [pool.submit(job) for job in jobs]
        try:
            for future in as_completed(pending):
                future.result()
        except BaseException:
            if children:
                children.end()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in pending]


def first_lines(log: str, most: int = 12) -> str:
    """The beginning of a compiler's messages, without blank lines and ptxas's account."""
    lines = [line for line in log.splitlines() if line.strip() and "ptxas info" not in line]
    return "\n".join([*lines[:most], *(["…"] if len(lines) > most else [])])


def _examined(words: str) -> Compiler | str:
    try:
        program, *arguments = shlex.split(words)
    except ValueError as error:
        return f"cannot be read as a command: {error}"
    path = shutil.which(program)
    if path is None:
        return "there is no such program"
    status = os.stat(path)
    return _examine((os.path.abspath(path), *arguments), (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=16)
def _examine(command: tuple[str, ...], _stamp: tuple[int, ...]) -> Compiler | str:
    """The compiler behind *command*, or why it will not do."""
    version = _ask(command, "--version")
    if version.returncode or not version.stdout.strip():
        return f"does not print a --version: {_first_line(version)}"
    probe = _ask(command, "-std=c++20", "-x", "c++", "-fsyntax-only", "-")
    if probe.returncode:
        return f"cannot compile C++20 ({version.stdout.strip().splitlines()[0]}): {_first_line(probe)}"
    return Compiler(command, version.stdout.strip())


def _ask(command: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A short run, of a minute at most; one that cannot be started ends with exit code 126."""
    words, env = [*command, *arguments], {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            words, input=PROBE, capture_output=True, encoding="utf-8", errors="replace", env=env, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 126, "", str(error))


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit code {done.returncode}"])[0].strip()
