"""An Ascend machine without the chip: the real torch_npu over a recorder in the place of CANN's libraries.

What is proven with it ends where CANN begins: which calls reach it, with which values, in which order. Nothing runs on a chip.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build import find_compiler
from msctx.native.cachedir import digest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "tests" / "ascend" / "recorder").iterdir())
LIBRARIES = (
    *("ascendcl", "hccl", "opapi", "acl_op_compiler", "acl_tdt_channel", "ge_runner", "graph", "fmk_parser", "ascend_protobuf"),
)
"""CANN's, all of them one file here: the loader knows a file again by its inode."""
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-Wall", "-Wextra")
OLD_STRINGS = {"ge_old_strings.cpp": ("-D_GLIBCXX_USE_CXX11_ABI=0",)}
PATTERNS = ("torch_npu/lib/*.so", "torch_npu/_C*.so", "torch_npu/dynamo/torchair/core/*.so")


class NotHere(Exception):
    """Why there is no such machine."""


def _pinned() -> str:
    """The version of torch_npu, which constraints.txt states beside torch's."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch_npu=="))


def _once(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, which one process makes."""
    folder = cachedir.folder(kind) / name
    with FileLock(cachedir.folder("tmp") / f"{kind}-{name}.lock"):
        if not folder.exists():
            scratch = cachedir.folder("tmp", f"{kind}-{name}")
            try:
                make(scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


@cache
def wheel() -> Path:
    """The folder that holds torch_npu, outside the environment: there, a bare ``import torch`` would fail without CANN."""
    version = _pinned().partition("==")[2]
    if torch.__version__.partition("+")[0] != version:
        raise NotHere(f"torch_npu {version} needs torch {version}, this is {torch.__version__}")
    if torch.cuda.is_available():
        raise NotHere("torch_npu does not share a process with CUDA")
    return fetched(version)


@cache
def fetched(version: str) -> Path:
    """The folder that holds a version of torch_npu, to be read; another than torch's cannot be imported."""

    def fetch(folder: Path) -> None:
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--retries=1", "--timeout=20")
        command = (sys.executable, "-m", "pip", "install", *options, "--target", str(folder), f"torch_npu=={version}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotHere(f"pip cannot fetch torch_npu {version}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")

    return _once("torch_npu", f"{version}-{sys.implementation.cache_tag}", fetch)


@cache
def recorder() -> Path:
    """The folder of CANN: in lib64 the recorder, compiled, under the name of each of its libraries."""
    try:
        tool = find_compiler()
    except NativeError as error:
        raise NotHere(str(error)) from None
    if not shutil.which("nm"):
        raise NotHere("there is no nm, which is part of binutils")
    files = {path.name: path.read_bytes() for path in (*SOURCES, Path(__file__))}
    folder = wheel()

    def make(scratch: Path) -> None:
        def build(source: Path) -> Path:
            made = scratch / f"{source.stem}.o"
            own = ("-isystem", str(folder / "torch_npu/include"), *OLD_STRINGS.get(source.name, ()))
            _run(*tool.command, *FLAGS, *own, "-c", str(source), "-o", str(made))
            return made

        with ThreadPoolExecutor() as pool:
            parts = [*pool.map(build, [source for source in SOURCES if source.suffix == ".cpp"])]
        rest = scratch / "rest.cpp"
        rest.write_text(_rest(folder, parts), encoding="utf-8")
        for name in ("lib64", "runtime", "compiler", "opp"):  # torch_npu looks whether they are there
            (scratch / name).mkdir()
        first, *others = (scratch / "lib64" / f"lib{name}.so" for name in LIBRARIES)
        _run(*tool.command, "-shared", "-o", str(first), *map(str, [*parts, build(rest)]))
        for other in others:
            other.symlink_to(first.name)
        for part in scratch.glob("*.o"):
            part.unlink()

    return _once("recorder", digest(files, FLAGS, tool.command, tool.version, str(folder))[:16], make)


def _rest(folder: Path, parts: Iterable[Path]) -> str:
    """What the wheel's libraries need beside that: plain functions do nothing, those of C++ end the process."""
    ours = [path for pattern in PATTERNS for path in folder.glob(pattern)]
    torchs = Path(torch.__file__).parent.glob("lib/*.so*")
    there = {symbol for path in (*ours, *torchs) for symbol in _symbols(path, "-D", "--defined-only")}
    there |= {symbol for path in parts for symbol in _symbols(path, "--defined-only")}
    needed = {symbol for path in ours for symbol in _symbols(path, "-D", "--undefined-only")}
    lines = ["#include <cstdio>", "#include <cstdlib>"]
    for number, symbol in enumerate(sorted(needed - there)):
        if "@" not in symbol and not symbol.startswith(("Py", "_Py", "__")):  # the system's have a version
            body = f'std::puts("the recorder has no {symbol}"); std::abort();' if symbol.startswith("_Z") else "return 0;"
            lines += [f'extern "C" long rest{number}() __asm__("{symbol}");', f"long rest{number}() {{ {body} }}"]
    return "\n".join([*lines, ""])


def _symbols(path: Path, *which: str) -> set[str]:
    lines = [line.split() for line in _run("nm", *which, str(path)).splitlines()]
    return {words[-1] for words in lines if len(words) > 1 and words[-2] not in "wv"}  # without those that need not be there


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def variables(*, soc: str = "Ascend910B1", cann: str = "8.5.0", devices: int = 2, memory_mb: int = 65536) -> dict[str, str]:
    cann_home, paths = recorder(), (str(wheel()), str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(cann_home / "lib64"), os.environ.get("LD_LIBRARY_PATH", "")))),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ASCEND_HOME_PATH": str(cann_home),
        "ASCEND_OPP_PATH": str(cann_home / "opp"),
        "RECORDER_SOC": soc,
        "RECORDER_CANN": cann,
        "RECORDER_DEVICES": str(devices),
        "RECORDER_MEMORY_MB": str(memory_mb),
    }
