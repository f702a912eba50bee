"""What the two libraries are made of: which sources, compiled how and linked in which order, and what stands for all that.

The library of the kernels knows nothing of torch. The glue, which is linked with it, is built for one release of torch.
"""

from __future__ import annotations

import platform
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from msctx.errors import NativeError
from msctx.native.artifacts import digest, hashes, sha256
from msctx.native.compiler import Compiler
from msctx.shipped import KERNEL_SOURCES

AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma")
VECTORS = {"generic": (), "avx2": ("-mavx2", "-mfma"), "avx512": AVX512}
"""Instruction sets that all of cpu/*.cpp is compiled for."""
# GCC 12 takes what its own headers leave undefined on purpose for a mistake
TILES = dict.fromkeys(("amx", "amx_fp16"), (*AVX512, "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Icpu/amx"))
"""Those with a matrix unit: cpu/amx/*.cpp is compiled for them, and what that does not compute is left to avx512."""
EMULATED = {f"{isa}_emulated": (*flags, "-DMSCTX_EMULATED_TILES") for isa, flags in TILES.items()}
"""Those in software, for tests on a processor with AVX-512: not in the library that is used."""
FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Iinclude")
HIDDEN = "-fvisibility=hidden"
Units = tuple[tuple[str, tuple[str, ...]], ...]
SUFFIXES = (".cpp", ".h", ".hpp", ".inc")


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def isas() -> tuple[str, ...]:
    """The instruction sets that kernels are compiled for on this kind of machine; which one runs is decided when they run."""
    return (*VECTORS, *TILES) if is_x86() else ("generic",)


def has_avx512() -> bool:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return all(flag.removeprefix("-m") in flags for flag in AVX512)


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
    torch: tuple[str, ...] = ()

    def folder(self, tool: Compiler) -> str:
        """Where it is built: what is compiled of it once serves its next versions."""
        return digest(platform.machine(), platform.libc_ver(), tool.command, tool.version, self.torch)[:16]

    def ninja(self, tool: Compiler) -> str:
        """The text of build.ninja, which makes ``result.so``."""
        cxx, objects = _escaped(shlex.join(tool.command)), []
        lines = [f"rule compile\n command = {cxx} $flags -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc"]
        for source, flags in self.units:
            # clang's OpenMP needs a runtime of its own, beside which torch's would run once more
            used = [flag for flag in flags if not (tool.is_clang and flag == "-fopenmp")]
            objects.append(f"objects/{digest(flags)[:8]}/{Path(source).with_suffix('.o')}")
            lines.append(f"build {objects[-1]}: compile {source}\n flags = {_escaped(shlex.join(used))}")
        lines.append(f"rule link\n command = {cxx} -shared $in {_escaped(shlex.join(self.link))} -o $out")
        lines.append(f"build result.so: link {' '.join(objects)}\ndefault result.so\n")
        return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


def kernels_spec(sources: Path | None = None, sanitize: str = "", *, emulated: bool = False) -> BuildSpec:
    """The library of the kernels. For tests: with sanitizers (``"address,undefined"``), or *emulated* matrix units beside."""
    if not re.fullmatch(r"[a-z,-]*", sanitize):
        raise NativeError(
            f"sanitize={sanitize!r}: give names of sanitizers with commas between them, such as address,undefined"
        )
    root = (sources or KERNEL_SOURCES).resolve()
    files = {name: data for name, data in read_sources(root, SUFFIXES).items() if not name.startswith("glue/")}
    # use-after-scope: what unrolled loops keep in registers would each be watched, which takes minutes to compile
    no_scope = "-fno-sanitize-address-use-after-scope"
    # -g1: the lines that a report names; with the variables, which it does not, compiling takes nearly twice as long
    checks = (f"-fsanitize={sanitize}", no_scope, "-fno-omit-frame-pointer", "-g1", "-O1") if sanitize else ()
    flags = (*FLAGS, *(checks or ("-O3",)))
    in_software = EMULATED if (emulated or sanitize) and has_avx512() else {}

    def of_isa(folder: str, isa: str, more: tuple[str, ...]) -> Units:
        here = f"-Icpu/isa/{isa.removesuffix('_emulated')}"
        return _units(files, folder, *flags, HIDDEN, *more, f"-DMSCTX_ISA={isa}", here)

    # Without instructions for FMA its exact emulation is what counts: -O3 compiles three times as long and gains little
    flags_of = {**VECTORS, "generic": ("-O2",) if is_x86() and not sanitize else ()}
    first, *others = [of_isa("cpu", isa, flags_of[isa]) for isa in VECTORS if isa in isas()]
    others += [of_isa("cpu/amx", isa, more) for isa, more in {**TILES, **in_software}.items() if is_x86()]
    defined = (*(["-DMSCTX_WITH_X86"] * is_x86()), *(["-DMSCTX_WITH_EMULATED"] * bool(in_software)))
    once = _units(files, "common", *flags, *defined)  # what the glue calls is visible to it
    # The linker keeps the first copy of an inline function: one for every processor must come before those for newer ones
    units = (*first, *once, *(unit for rest in others for unit in rest))
    file = f"libmsctx_kernels-{_key(files, sanitize, [*in_software])}.so"
    # By its name the glue needs it: no other serves
    return BuildSpec(file, root, files, units, ("-pthread", *checks, f"-Wl,-soname,{file}"))


def glue_spec(kernels: BuildSpec, library: Path) -> BuildSpec:
    """The glue between the installed torch and the *library* of the kernels, which must be loaded before."""
    import torch

    files = {n: data for n, data in read_sources(kernels.root, SUFFIXES).items() if n.startswith(("glue/", "include/"))}
    folder, identity = Path(torch.__file__).parent, (torch.__version__.partition("+")[0], str(torch.version.git_version))
    include = ("-isystem", f"{folder}/include", "-isystem", f"{folder}/include/torch/csrc/api/include")
    # torch was built without assertions, and its classes are laid out by that. A unit includes the files that are compiled as one
    units = _units(
        files, "glue/units", *FLAGS, "-O3", HIDDEN, "-I.", "-fopenmp", "-DNDEBUG", "-Wno-subobject-linkage", *include
    )
    # libgomp is not named: OpenMP must be the copy that torch has loaded, which libtorch_cpu leads to
    torchs = (f"-L{folder}/lib", "-Wl,--as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined")
    file = f"libmsctx_torch-{identity[0]}-{_key(files, kernels.file, identity)}.so"
    return BuildSpec(file, kernels.root, files, units, ("-pthread", str(library), *_runtime(), *torchs), identity)


def _runtime() -> tuple[str, ...]:
    """The C++ runtime that torch has loaded. It is named because some compilers link a copy of their own into the library: that one
    sees none of torch's exceptions and formats no numbers in messages. None where torch is built with another."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = (line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "libstdc++.so" in line)
        return tuple(path for path in [*paths][:1] if Path(path).is_file())


def _units(files: dict[str, bytes], folder: str, *flags: str) -> Units:
    return tuple((name, flags) for name in files if re.fullmatch(rf"{folder}/[^/]+\.cpp", name))


def _key(files: dict[str, bytes], *more: object) -> str:
    """Also of this file, which decides how they are compiled."""
    return digest(hashes(files), sha256(Path(__file__).read_bytes()), platform.machine(), more)[:16]


def read_sources(root: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    """Every file under *root* that ends so, by its path from there."""
    try:
        if not root.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(root))
        paths = sorted(path for path in root.rglob("*") if path.suffix in suffixes and path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        raise NativeError(f"{error.filename or root}: cannot be read: {error.strerror}; install msctx again") from None


def check_platform() -> None:
    if sys.platform != "linux":
        raise NativeError("the native core is built on Linux alone")
