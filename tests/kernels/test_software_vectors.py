"""The vectors that stand in for AVX-512, on every processor: what they move where, when they are compiled with sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from msctx.native import build, compiler
from msctx.shipped import KERNEL_SOURCES

SOURCE = Path(__file__).with_name("software_vectors.cpp")
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


def test_every_lane_is_the_right_one(tmp_path: Path) -> None:
    if why := build.obstacle():
        pytest.skip(why)
    tool, program = compiler.find(), tmp_path / "vectors"
    flags = (
        "-std=c++20",
        "-O0",  # or the compiler leaves out what is written before an object is made there
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-Wno-psabi",
        "-DMSCTX_EMULATED_VECTORS",
        "-DMSCTX_EMULATED_TILES",
        "-DMSCTX_ISA=amx_emulated",
        *(f"-I{KERNEL_SOURCES / name}" for name in ("include", "cpu/amx", "cpu/isa/amx")),
    )
    made = subprocess.run([*tool.command, *flags, str(SOURCE), "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find" in made.stderr or "unsupported option" in made.stderr:
        pytest.skip(f"{tool.command[0]} lacks a sanitizer")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = {name: [int(lane) for lane in lanes] for name, *lanes in (line.split() for line in done.stdout.splitlines())}
    assert found == {name: lanes.ravel().tolist() for name, lanes in RIGHT.items()}
