"""The C++ compiler that is used."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from msctx.errors import NativeError

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
