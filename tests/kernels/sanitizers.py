"""Starts programs and Python with sanitizers, for what was compiled for them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from msctx.native import build

LIBRARIES = ("libasan.so", "libubsan.so")


def runtime_libraries() -> list[str]:
    """What has to be in the process before Python is: its own paths, since Python is not compiled for them. Or skips the test."""
    if why := build.obstacle():
        pytest.skip(why)
    tool = build.find_compiler()
    if "clang" in tool.version:
        pytest.skip("clang++ links its sanitizers into programs, and Python is none of its own")
    found = []
    for name in LIBRARIES:
        printed = subprocess.run([*tool.command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not os.path.isabs(path := printed.stdout.strip()):
            pytest.skip(f"{tool.command[0]} has no {name}")
        found.append(path)
    return found


def run_sanitized(libraries: list[str], *command: str, after_return: bool = True) -> "subprocess.CompletedProcess[str]":
    """*after_return*: watch for uses of a stack frame that is gone, which code that changes stacks itself cannot have."""
    variables = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return={after_return:d}:strict_init_order=1:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
        "PYTHONMALLOC": "malloc",  # or tensors would lie side by side in Python's own pools
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(str(path) for path in Path(__file__).resolve().parents[1:3]),
    }
    command = (sys.executable, *command)
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, check=False)


def check(done: "subprocess.CompletedProcess[str]") -> str:
    """The output of a run in which no sanitizer found anything."""
    reports = re.findall(r"^.*(?:runtime error|\w+Sanitizer).*$", done.stderr, re.MULTILINE)
    assert not reports, done.stderr[-6000:]
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def program(
    folder: Path,
    sanitizers: str,
    sources: list[Path],
    flags: "tuple[str, ...]",
    *arguments: str,
    linked: "tuple[str, ...]" = (),
) -> str:
    """Compile a program with sanitizers and run it; its output. Skips the test where the compiler has none."""
    if why := build.obstacle():
        pytest.skip(why)
    tool, path = build.find_compiler(), folder / "program"
    command = [*tool.command, "-std=c++20", f"-fsanitize={sanitizers}", *flags, *map(str, sources), *linked, "-o", str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in made.stderr or "unsupported option" in made.stderr:
        pytest.skip(f"{tool.command[0]} has no -fsanitize={sanitizers}")
    assert made.returncode == 0, made.stderr
    return check(subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=300, check=False))
