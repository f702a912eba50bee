"""The C++ code under sanitizers: every row on small problems on every instruction set, the allocator."""

import re
from pathlib import Path

import pytest
import torch
from sanitizers import check, program, run_sanitized, runtime_libraries
from variants import kernels_library

from msctx.shipped import KERNEL_SOURCES

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def libraries() -> list[str]:
    return runtime_libraries()


@pytest.mark.full
def test_no_row_does_what_it_must_not(libraries: list[str]) -> None:
    code = "from ctypes import *; c = CDLL(None); c.malloc.restype = c_void_p; c.memset(c_void_p(c.malloc(64)), 0, 65)"
    overrun = run_sanitized(libraries, "-c", code)
    assert overrun.returncode == 99, overrun.stderr
    assert "heap-buffer-overflow" in overrun.stderr, "by one byte ends a process that is started like this"
    # The frames that GCC 12 watches after their return begin at 32 bytes, and vectors of 64 in them fault (its bug 110027)
    script = str(HERE / "sanitized.py"), str(kernels_library("address,undefined"))
    done = run_sanitized(libraries, *script, after_return=False)
    assert int(check(done).split()[0]) > 500


@pytest.mark.full
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_threads_use_the_allocator_at_random(sanitizers: str, tmp_path: Path) -> None:
    """Against caps that open and close, while it is taken in and out of force."""
    torch_itself = Path(torch.__file__).parent
    folders = [f"-I{KERNEL_SOURCES / name}" for name in ("", "include")] + [f"-isystem{torch_itself / 'include'}"]
    linked = (f"-L{torch_itself / 'lib'}", "-lc10", f"-Wl,-rpath,{torch_itself / 'lib'}")
    flags = ("-O1", "-g1", "-pthread", "-Wall", "-Wextra", "-Werror", *folders)
    output = program(tmp_path, sanitizers, [HERE / "allocator_stress.cpp"], flags, "1500", "4", linked=linked)
    refused, broken = map(int, re.findall(r"\d+", output))
    assert refused > 0
    assert broken == 0
