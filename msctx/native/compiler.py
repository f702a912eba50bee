"""The C++ compiler: which one, whether it can do what the kernels need, and many of its runs side by side."""

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
class Step:
    """One run of the compiler, and the file that it must leave."""

    command: tuple[str, ...]
    result: Path


class StepFailed(Exception):
    """A step ended badly; *output* is its output."""

    def __init__(self, step: Step, why: str, output: str) -> None:
        super().__init__(why)
        self.step, self.why, self.output = step, why, output


def find() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that works. Cheap when called again."""
    said = os.environ.get("CXX", "").strip()
    if said:
        found = _examined(said)
        if isinstance(found, str):
            raise NativeError(f"CXX={said}: {found}; correct CXX, or unset it so that c++, g++ or clang++ is looked for")
        return found
    why = ""
    for name in NAMES:
        if isinstance(found := _examined(name), Compiler):
            return found
        if shutil.which(name):
            why = why or f"{name}: {found}; "
    raise NativeError(f"{why}{'no other' if why else 'no'} C++ compiler (set CXX, or install g++ or clang++)")


def run(steps: Sequence[Step], scratch: Path, cwd: Path, done: Callable[[Step, str], None]) -> None:
    """Run *steps* in *cwd*, as many at once as there are processors; *done* is called for each with its output.

    Raises:
        StepFailed: the first that failed. Whatever the reason for leaving, no step is running any more.
    """
    with (
        Children.compilers(scratch) as children,
        ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(steps)) or 1) as pool,
    ):
        try:
            pending = {pool.submit(children.run, step.command, cwd): step for step in steps}
            for future in as_completed(pending):
                ended, step = future.result(), pending[future]
                if ended.returncode or not step.result.exists():
                    raise StepFailed(step, _why(ended.returncode), ended.stdout)
                done(step, ended.stdout)
        finally:
            children.end()


def _why(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}" if code else "left no result"
    return f"was killed by {signal.Signals(-code).name}" + " (is there too little memory?)" * (code == -signal.SIGKILL)


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


def _ask(command: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [*command, *arguments]
    try:
        return subprocess.run(
            words,
            input=PROBE,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=60,
            check=False,
        )
    except OSError as error:
        return subprocess.CompletedProcess(words, 126, "", error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 126, "", "no answer within a minute")


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or [f"exit code {done.returncode}"])[0].strip()
