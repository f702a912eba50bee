"""A cache folder of its own for each test, small kernels to build, a compiler that is watched, and processes that are forked."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass
class Watched:
    """A compiler that notes each of its runs, and stops at one whose command has a certain word until it is let go."""

    folder: Path
    stop_at: Path = field(init=False)
    stopped: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.stop_at, self.stopped = self.folder / "stop_at", self.folder / "stopped"
        script = self.folder / "c++"
        script.write_text(
            f'#!/bin/sh\necho "$*" >> {self.folder}/runs\n'
            f'if [ -e {self.stop_at} ]; then case "$*" in *$(cat {self.stop_at})*) echo $$ >> {self.stopped}\n'
            f"i=0; while [ -e {self.stop_at} ] && [ $i -lt 300 ]; do sleep 0.05; i=$((i+1)); done;; esac; fi\n"
            f'exec {shutil.which("c++") or shutil.which("g++")} "$@"\n'
        )
        script.chmod(0o700)

    @property
    def runs(self) -> list[str]:
        """The commands so far that made something."""
        path = self.folder / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if " -o " in line]

    @property
    def compiled(self) -> list[str]:
        return [line for line in self.runs if "-shared" not in line]

    def hold(self, word: str) -> None:
        self.stop_at.write_text(word)

    def until_stopped(self) -> list[int]:
        """Wait until a run is held; the processes that are."""
        end = time.monotonic() + 20
        while not (self.stopped.exists() and self.stopped.read_text().endswith("\n")):
            assert time.monotonic() < end, "the compiler was never run"
            time.sleep(0.01)
        return [int(number) for number in self.stopped.read_text().split()]

    def let_go(self) -> None:
        self.stop_at.unlink(missing_ok=True)


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
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """The compiler of this test."""
    found = Watched(tmp_path / "compiler")
    monkeypatch.setenv("CXX", str(found.folder / "c++"))
    yield found
    found.let_go()


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Callable[[Callable[[], Any]], tuple[Any, Path]]]:
    """Start a function in a process of its own; where it writes what it says, and what it raises."""
    made: list[Any] = []

    def fork(function: Callable[[], Any]) -> tuple[Any, Path]:
        (said := tmp_path / f"process-{len(made)}.stderr").touch()

        def run() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stderr = said.open("w", buffering=1)
            function()

        made.append(multiprocessing.get_context("fork").Process(target=run))
        made[-1].start()
        return made[-1], said

    yield fork
    for each in made:
        each.kill()
        each.join()


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the umask; it is put back."""
    before = os.umask(0o077)
    os.umask(before)
    yield os.umask
    os.umask(before)
