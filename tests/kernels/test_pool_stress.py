"""The memory pool under the sanitizers: threads allocate and release at random, against caps that open and close."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from msctx.native import build, compiler
from msctx.shipped import KERNEL_SOURCES

SOURCE = Path(__file__).with_name("pool_stress.cpp")
PARTS = ("common/memory_pool.cpp", "common/process.cpp", "common/python.cpp")


@pytest.mark.full
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_threads_at_random(sanitizers: str, tmp_path: Path) -> None:
    if why := build.obstacle():
        pytest.skip(why)
    tool, root, program = compiler.find(), KERNEL_SOURCES, tmp_path / "stress"
    flags = (
        "-std=c++20",
        "-O1",
        "-g1",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-fsanitize={sanitizers}",
        "-Wl,--wrap=munmap",
        f"-I{root / 'include'}",
    )
    sources = (str(SOURCE), *(str(root / part) for part in PARTS))
    made = subprocess.run([*tool.command, *flags, *sources, "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find" in made.stderr or "unsupported option" in made.stderr:
        pytest.skip(f"{tool.command[0]} has no -fsanitize={sanitizers}")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program), "1500", "4"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr
    refused, broken = (int(word) for word in done.stdout.split() if word.isdigit())
    assert refused > 0
    assert broken == 0
