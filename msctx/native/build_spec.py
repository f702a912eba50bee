"""What the two libraries are made of: which sources, compiled how and linked in which order, and what stands for all that.

The library of the kernels knows nothing of torch. The glue, which is linked with it, is built for one release of torch.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from msctx.native.cachedir import digest, naming
from msctx.shipped import KERNEL_SOURCES

IS_X86 = platform.machine() == "x86_64"
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma")
# Without instructions for FMA its exact emulation is what counts: -O3 compiles three times as long and gains little
VECTORS = {"generic": ("-O2",), "avx2": ("-mavx2", "-mfma"), "avx512": AVX512} if IS_X86 else {"generic": ()}
"""Instruction sets that all of cpu/*.cpp is compiled for; which one runs is decided when they run."""
# GCC 12 takes what its own headers leave undefined on purpose for a mistake
TILES = dict.fromkeys(
    ("amx", "amx_fp16") if IS_X86 else (), (*AVX512, "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Icpu/amx")
)
"""Those with a matrix unit: cpu/amx/*.cpp is compiled for them, and what that does not compute is left to avx512."""
INCLUDE = ("-Iinclude", "-I.")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", *INCLUDE)
HIDDEN = "-fvisibility=hidden"
Units = tuple[tuple[str, tuple[str, ...]], ...]
SUFFIXES = (".cpp", ".h", ".hpp", ".inc")


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """One library. *units* are sources and their flags in the order in which they are linked, *link* what ends that command.

    *file*, its name, has a hash of all that decides what it computes, but for the compiler: any compiler's library serves. *torch*:
    the release and the commit that its headers are of.
    """

    file: str
    root: Path
    files: dict[str, bytes]
    units: Units
    link: tuple[str, ...]
    what: str = "kernels"
    torch: tuple[str, ...] = ()


def kernels_spec(sources: Path | None = None) -> BuildSpec:
    """The library of the kernels."""
    root = (sources or KERNEL_SOURCES).resolve()
    files = {name: data for name, data in read_sources(root, SUFFIXES).items() if not name.startswith("glue/")}
    first, *others = [
        _units(files, folder, *FLAGS, HIDDEN, *more, f"-DMSCTX_ISA={isa}", f"-Icpu/isa/{isa}")
        for folder, of_isa in (("cpu", VECTORS), ("cpu/amx", TILES))
        for isa, more in of_isa.items()
    ]
    once = _units(files, "common", *FLAGS, *["-DMSCTX_WITH_X86"] * IS_X86)  # what the glue calls is visible to it
    # The linker keeps the first copy of an inline function: one for every processor must come before those for newer ones
    units = (*first, *once, *(unit for rest in others for unit in rest))
    file = f"libmsctx_kernels-{_key(files)}.so"
    # By its name the glue needs it: no other serves
    return BuildSpec(file, root, files, units, ("-pthread", f"-Wl,-soname,{file}"))


def glue_spec(kernels: BuildSpec, library: Path) -> BuildSpec:
    """The glue between the installed torch and the *library* of the kernels, which must be loaded before."""
    import torch

    files = {n: data for n, data in read_sources(kernels.root, SUFFIXES).items() if n.startswith(("glue/", "include/"))}
    folder, identity = Path(torch.__file__).parent, (torch.__version__.partition("+")[0], str(torch.version.git_version))
    include = ("-isystem", f"{folder}/include", "-isystem", f"{folder}/include/torch/csrc/api/include")
    # torch was built without assertions, and its classes are laid out by that
    units = _units(files, "glue", *FLAGS, HIDDEN, "-fopenmp", "-DNDEBUG", "-Wno-subobject-linkage", *include)
    # libgomp is not named: OpenMP must be the copy that torch has loaded, which libtorch_cpu leads to
    torchs = (f"-L{folder}/lib", "-Wl,--as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined")
    file = f"libmsctx_torch-{identity[0]}-{_key(files, kernels.file, identity)}.so"
    link = ("-pthread", str(library), *_runtime(), *torchs)
    return BuildSpec(file, kernels.root, files, units, link, f"glue for torch {identity[0]}", identity)


def _runtime() -> tuple[str, ...]:
    """The C++ runtime that torch has loaded. It is named because some compilers link a copy of their own into the library: that one
    sees none of torch's exceptions and formats no numbers in messages. None where torch is built with another."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = (line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "libstdc++.so" in line)
        return tuple(path for path in [*paths][:1] if Path(path).is_file())


def _units(files: dict[str, bytes], folder: str, *flags: str) -> Units:
    """The sources of a folder. Those that a file of its ``units`` includes are compiled as one: headers take longest."""
    units = [name for name in files if name.startswith(f"{folder}/units/")]
    joined = {name for unit in units for name in re.findall(r'#include "(.+\.cpp)"', files[unit].decode())}
    alone = [name for name in files if re.fullmatch(rf"{folder}/[^/]+\.cpp", name) and name not in joined]
    return tuple((name, flags) for name in (*units, *alone))


def _key(files: dict[str, bytes], *more: object) -> str:
    """Also of this file, which decides how they are compiled."""
    return digest(files, Path(__file__).read_bytes(), platform.machine(), more)[:16]


def read_sources(root: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    """Every file under *root* that ends so, by its path from there."""
    with naming(root, "install msctx again"):
        root.stat()  # it may be missing
        paths = sorted(path for path in root.rglob("*") if path.suffix in suffixes and path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
