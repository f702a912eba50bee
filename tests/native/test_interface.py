"""The kernels' library shows a plain C interface and nothing else, and the glue takes nothing but functions of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from msctx.native import core
from msctx.shipped import KERNEL_SOURCES

HEADER = KERNEL_SOURCES / "include/msctx/interface.h"
DECLARED = {*re.findall(r"^MSCTX_API [\w ]+?\W+(msctx_\w+)\(", HEADER.read_text("utf-8"), re.MULTILINE)}


def symbols(library: Path, which: str) -> set[str]:
    if shutil.which("nm") is None:
        pytest.skip("nm is part of binutils")
    lines = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def test_a_c_compiler_takes_the_header(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "uses.c"
    source.write_text(f'#include "{HEADER}"\nint is_on(void) {{ return msctx_in_force(0) != 0; }}\n')
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_the_kernels_show_what_the_header_declares(native_core: None) -> None:
    assert symbols(core.load().made.kernels, "--defined-only") == DECLARED
    assert len(DECLARED) > 30


def test_the_glue_takes_nothing_else_of_the_kernels(native_core: None) -> None:
    taken = {name for name in symbols(core.load().made.glue, "--undefined-only") if "msctx" in name}
    assert {"msctx_take", "msctx_compute"} <= taken <= DECLARED
