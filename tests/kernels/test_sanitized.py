"""The C++ code under sanitizers: every row on small problems on every instruction set, the allocator, the emulated vectors."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sanitizers import check, program, run_sanitized, runtime_libraries

from msctx.native import build
from msctx.shipped import KERNEL_SOURCES

HERE = Path(__file__).parent
QUADS = np.hstack([np.arange(16).reshape(4, 4), np.arange(16, 32).reshape(4, 4)])
"""Of two vectors, what lies in the same 16 bytes."""
RIGHT = {
    "unpacklo_ps": QUADS[:, [0, 4, 1, 5]],
    "unpackhi_ps": QUADS[:, [2, 6, 3, 7]],
    "unpacklo_pd": QUADS[:, [0, 1, 4, 5]],
    "unpackhi_pd": QUADS[:, [2, 3, 6, 7]],
    "shuffle_ps": QUADS[:, [1, 3, 6, 4]],
    "shuffle_f32x4": np.arange(32).reshape(8, 4)[[0, 2, 5, 7]],
    "permutex2var_ps": np.arange(3, 3 + 7 * 16, 7) % 32,
    "sizes": np.array([192 + 2 * 3072, 192 + 25 * 3072]),
}


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
    script = str(HERE / "sanitized.py"), str(build.kernels_library("address,undefined"))
    done = run_sanitized(libraries, *script, after_return=False)
    assert int(check(done).split()[0]) > 500


@pytest.mark.full
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_threads_use_the_allocator_at_random(sanitizers: str, tmp_path: Path) -> None:
    """Against caps that open and close, while it is taken in and out of force."""
    parts = [KERNEL_SOURCES / "common" / name for name in ("process.cpp", "python.cpp")]
    torch_itself = Path(torch.__file__).parent
    folders = [f"-I{KERNEL_SOURCES / name}" for name in ("", "include")] + [f"-isystem{torch_itself / 'include'}"]
    linked = (f"-L{torch_itself / 'lib'}", "-lc10", f"-Wl,-rpath,{torch_itself / 'lib'}")
    flags = ("-O1", "-g1", "-pthread", "-Wall", "-Wextra", "-Werror", *folders)
    output = program(tmp_path, sanitizers, [HERE / "allocator_stress.cpp", *parts], flags, "1500", "4", linked=linked)
    refused, broken = map(int, re.findall(r"\d+", output))
    assert refused > 0
    assert broken == 0


@pytest.mark.full
def test_every_lane_of_emulated_vectors_is_the_right_one(tmp_path: Path) -> None:
    """Those that stand in for AVX-512, on every processor."""
    folders = [f"-I{KERNEL_SOURCES / name}" for name in ("include", "cpu/amx", "cpu/isa/amx")]
    macros = [f"-D{macro}" for macro in ("MSCTX_EMULATED_VECTORS", "MSCTX_EMULATED_TILES", "MSCTX_ISA=amx_emulated")]
    # -O0: or the compiler leaves out what is written before an object is made there
    flags = ("-O0", "-fno-sanitize-recover=undefined", "-Wno-psabi", *macros, *folders)
    output = program(tmp_path, "address,undefined", [HERE / "software_vectors.cpp"], flags)
    found = {name: [int(lane) for lane in lanes] for name, *lanes in (line.split() for line in output.splitlines())}
    assert found == {name: lanes.ravel().tolist() for name, lanes in RIGHT.items()}
