"""A cache folder of its own for each test, small kernels to build, and a compiler that is watched."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from msctx.native import build as native

SOURCES = {
    "include/msctx/number.h": "#pragma once\n#define NUMBER 40\n",
    "cpu/isa/generic/vec.h": "#define WIDTH 1\n",
    "cpu/isa/avx2/vec.h": "#define WIDTH 2\n",
    "cpu/isa/avx512/vec.h": "#define WIDTH 3\n",
    "cpu/one.cpp": '#include "msctx/number.h"\n#include "vec.h"\nnamespace MSCTX_ISA { int one() { return NUMBER + WIDTH; } }\n',
    "common/api.cpp": (
        "namespace generic { int one(); }\n"
        'extern "C" __attribute__((visibility("default"))) int msctx_one() { return generic::one(); }\n'
    ),
}


class Watched:
    """A compiler that notes each of its runs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.log, script = folder / "runs", folder / "c++"
        script.write_text(f'#!/bin/sh\necho "$*" >> {self.log}\nexec {shutil.which("c++") or shutil.which("g++")} "$@"\n')
        script.chmod(0o700)

    @property
    def runs(self) -> list[str]:
        """The commands so far that made something."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if " -o " in line]

    @property
    def compiled(self) -> list[str]:
        return [line for line in self.runs if "-shared" not in line]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's cache is to be."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MSCTX_CACHE_DIR", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    native._is_there.cache_clear()
    return folder


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels that are compiled in no time."""
    root = tmp_path / "sources"
    monkeypatch.setattr(native, "KERNEL_SOURCES", root)
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The compiler of this test."""
    monkeypatch.setenv("CXX", str(tmp_path / "compiler" / "c++"))
    return Watched(tmp_path / "compiler")


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the umask; it is put back."""
    before = os.umask(0o077)
    os.umask(before)
    yield os.umask
    os.umask(before)
