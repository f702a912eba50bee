"""The C++ compiler that is used."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from msctx.errors import NativeError

NAMES = ("c++", "g++", "clang++")
PROBE = "#include <bit>\nstatic_assert(std::popcount(7u) == 3);"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works; *version* is the first line of its own description."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version.lower()


def find() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that works. Cheap when called again."""
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
        command = (os.path.abspath(path), *arguments)
        version = _said(*command, "--version")
        _said(*command, "-std=c++20", "-x", "c++", "-fsyntax-only", "-")
    except (ValueError, NativeError) as error:
        return str(error)
    return Compiler(command, version) if version else "does not print a --version"


def _said(*command: str) -> str:
    """The first line that a short run prints."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, input=PROBE, capture_output=True, text=True, timeout=60, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"cannot be run: {error}") from None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        why = next((line for line in lines if "error" in line.lower()), f"exit code {done.returncode}")
        raise NativeError(f"cannot be used for C++20: {why}")
    return lines[0] if lines else ""
