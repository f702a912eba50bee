"""The kernels under the address sanitizer and that of undefined behaviour: every row on small problems, on every instruction set."""

import re
from pathlib import Path

import pytest
from sanitizers import run_sanitized, runtime_libraries

from msctx.native import build

SCRIPT = Path(__file__).with_name("sanitized.py")


@pytest.fixture(scope="module")
def libraries() -> list[str]:
    return runtime_libraries()


def test_sanitizers_see_what_ctypes_does(libraries: list[str]) -> None:
    """An overrun by one byte ends a process that is started like this."""
    code = "from ctypes import *; c = CDLL(None); c.malloc.restype = c_void_p; c.memset(c_void_p(c.malloc(64)), 0, 65)"
    done = run_sanitized(libraries, "-c", code)
    assert done.returncode == 99, done.stderr
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.full
def test_no_row_does_what_it_must_not(libraries: list[str]) -> None:
    done = run_sanitized(libraries, str(SCRIPT), str(build.kernels_library("address,undefined")))
    reports = re.findall(r"^.*(?:runtime error|ERROR: \w+Sanitizer).*$", done.stderr, re.MULTILINE)
    assert not reports, done.stderr[-6000:]
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert int(done.stdout.split()[0]) > 500
