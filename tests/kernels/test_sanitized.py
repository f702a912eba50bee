"""The kernels under the address sanitizer and that of undefined behaviour: every row on small problems, on every instruction set."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from msctx.native import build, compiler

SCRIPT = Path(__file__).with_name("sanitized.py")
LIBRARIES = ("libasan.so", "libubsan.so")


@pytest.fixture(scope="module")
def libraries() -> list[str]:
    """What has to be in the process before Python is: its own paths, since Python itself is not compiled for them."""
    if why := build.obstacle():
        pytest.skip(why)
    tool = compiler.find()
    if tool.is_clang:
        pytest.skip("clang++ links its sanitizers into programs, and Python is none of its own")
    found = []
    for name in LIBRARIES:
        said = subprocess.run([*tool.command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not os.path.isabs(path := said.stdout.strip()):
            pytest.skip(f"{tool.command[0]} has no {name}")
        found.append(path)
    return found


def run_sanitized(libraries: list[str], *command: str) -> "subprocess.CompletedProcess[str]":
    variables = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_init_order=1:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
        "PYTHONMALLOC": "malloc",  # or tensors would lie side by side in Python's own pools
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
    }
    command = (sys.executable, *command)
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, check=False)


def test_sanitizers_see_what_ctypes_does(libraries: list[str]) -> None:
    """An overrun by one byte ends a process that is started like this."""
    code = "from ctypes import *; c = CDLL(None); c.malloc.restype = c_void_p; c.memset(c_void_p(c.malloc(64)), 0, 65)"
    done = run_sanitized(libraries, "-c", code)
    assert done.returncode == 99, done.stderr
    assert "heap-buffer-overflow" in done.stderr


def test_no_row_does_what_it_must_not(libraries: list[str]) -> None:
    done = run_sanitized(libraries, str(SCRIPT), str(build.kernels_library("address,undefined")))
    reports = re.findall(r"^.*(?:runtime error|ERROR: \w+Sanitizer).*$", done.stderr, re.MULTILINE)
    assert not reports, done.stderr[-6000:]
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert int(done.stdout.split()[0]) > 500
