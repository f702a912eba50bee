"""What the library is made of: which sources, compiled how and linked in which order, and the keys of the results."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from msctx.errors import NativeError
from msctx.native.artifacts import digest, hashes
from msctx.native.compiler import Compiler
from msctx.shipped import KERNEL_SOURCES

FORMAT = 3
"""Part of every key: to be raised when what a build means changes."""

AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma")
VECTORS = {"generic": (), "avx2": ("-mavx2", "-mfma"), "avx512": AVX512}
"""Instruction sets that all of cpu/*.cpp is compiled for."""
# GCC 12 takes what its own headers leave undefined on purpose for a mistake
TILES = dict.fromkeys(("amx", "amx_fp16"), (*AVX512, "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Icpu/amx"))
"""Those with a matrix unit: cpu/amx/*.cpp is compiled for them, and what that does not compute is left to avx512."""
EMULATED = {f"{isa}_emulated": (*flags, "-DMSCTX_EMULATED_TILES") for isa, flags in TILES.items()}
"""Those in software, for tests on a processor with AVX-512: not in the library that is used."""
FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra")
SUFFIXES = (".cpp", ".h", ".hpp", ".inc")
TORCH = "<torch>"
"""Stands for torch's folder: the same torch in another environment is the same key."""
RUNTIME = "<libstdc++>"
"""Stands for the C++ runtime that torch has loaded. It is named because some compilers link a copy of their own into the library:
that one sees none of torch's exceptions and formats no numbers in messages."""


def isas() -> tuple[str, ...]:
    """The instruction sets that kernels are compiled for on this kind of machine; which one runs is decided when they run."""
    return (*VECTORS, *TILES) if _is_x86() else ("generic",)


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _runtime() -> tuple[str, ...]:
    """The file of libstdc++ in this process; none where torch is built with another."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = (line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "libstdc++.so" in line)
        return tuple(path for path in [*paths][:1] if Path(path).is_file())


def has_avx512() -> bool:
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return all(flag.removeprefix("-m") in flags for flag in AVX512)


@dataclass(frozen=True, slots=True)
class Unit:
    """One source compiled in one way; *flags* are relative to the sources."""

    source: str
    flags: tuple[str, ...]

    @property
    def object(self) -> str:
        return f"objects/{digest(self.flags)[:8]}/{Path(self.source).with_suffix('.o')}"


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """All that decides what a library computes, but for the compiler. *units* are in the order in which they are linked; *torch*
    identifies the torch whose headers the glue includes, *torch_folder* is where it lies."""

    product: str
    root: Path
    files: dict[str, bytes]
    units: tuple[Unit, ...]
    link: tuple[str, ...]
    torch: tuple[str, ...]
    torch_folder: str

    @property
    def inputs(self) -> str:
        """The key of the library: any compiler's serves."""
        units = [[unit.source, *unit.flags] for unit in self.units]
        return digest(FORMAT, self.product, machine(), hashes(self.files), units, self.link, self.torch)

    @property
    def tops(self) -> set[str]:
        """The folders that its sources are in."""
        return {name.partition("/")[0] for name in self.files}

    def folder(self, tool: Compiler) -> str:
        """Where it is built: what is compiled for one product serves the others with this compiler and this torch."""
        return digest(FORMAT, machine(), tool.command, tool.version, self.torch_folder, *torch_identity())[:16]

    def ninja(self, tool: Compiler) -> str:
        """The text of build.ninja."""
        cxx = shlex.join(tool.command)
        lines = [
            f"rule compile\n command = {_escaped(cxx)} $flags -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc"
        ]
        for unit in self.units:
            lines.append(f"build {unit.object}: compile {unit.source}\n flags = {_escaped(self.flags(unit, tool))}")
        objects = " ".join(unit.object for unit in self.units)
        lines.append(f"rule link\n command = {_escaped(cxx)} -shared $in $last -o $out")
        lines.append(f"build {self.product}.so: link {objects}\n last = {_escaped(self.last())}\ndefault {self.product}.so\n")
        return "\n".join(lines)

    def flags(self, unit: Unit, tool: Compiler) -> str:
        flags = (flag.replace(TORCH, self.torch_folder) for flag in unit.flags)
        clang = tool.is_clang  # its OpenMP needs a runtime of its own, beside which torch's would run once more
        return shlex.join(flag for flag in flags if not (clang and flag == "-fopenmp"))

    def last(self) -> str:
        """The end of the command that links."""
        last = (flag.replace(TORCH, self.torch_folder) for flag in self.link)
        return shlex.join(word for flag in last for word in (_runtime() if flag == RUNTIME else (flag,)))


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


def torch_identity() -> tuple[str, str]:
    import torch

    return torch.__version__, str(torch.version.git_version)


def spec_of(product: str, sanitize: str, sources: Path | None) -> BuildSpec:
    """Of the *product* ``library`` (for torch), ``kernels`` (without torch and its glue; *sanitize* as for kernels_library()) or
    ``emulated`` (for torch, with a matrix unit in software). The last two are for tests."""
    check_platform()
    if not re.fullmatch(r"[a-z,-]*", sanitize):
        raise NativeError(
            f"sanitize={sanitize!r}: give names of sanitizers with commas between them, such as address,undefined"
        )
    import torch

    root, with_torch = (sources or KERNEL_SOURCES).resolve(), product != "kernels"
    # use-after-scope: what unrolled loops keep in registers would each be watched, which takes minutes to compile
    no_scope = "-fno-sanitize-address-use-after-scope"
    # -g1: the lines that a report names; with the variables, which it does not, compiling takes nearly twice as long
    checks = (f"-fsanitize={sanitize}", no_scope, "-fno-omit-frame-pointer", "-g1", "-O1") if sanitize else ()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = (*FLAGS, *(checks or ("-O3",)), abi, "-Iinclude")
    link = ("-pthread", *checks)
    if with_torch:  # libgomp is not named: OpenMP must be the copy that torch has loaded, which libtorch_cpu leads to
        link += (RUNTIME, f"-L{TORCH}/lib", "-Wl,--as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined")
    files = read_sources(root, SUFFIXES)
    if not with_torch:
        files = {name: data for name, data in files.items() if not name.startswith("glue/")}
    x86 = _is_x86()
    emulated = EMULATED if product != "library" and has_avx512() else {}

    def units(folder: str, *more: str) -> list[Unit]:
        return [Unit(n, (*flags, *more)) for n in files if re.fullmatch(rf"{folder}/[^/]+\.cpp", n)]

    def of_isa(folder: str, isa: str, flags: tuple[str, ...]) -> list[Unit]:
        return units(folder, *flags, f"-DMSCTX_ISA={isa}", f"-Icpu/isa/{isa.removesuffix('_emulated')}")

    tiles = {**TILES, **emulated} if x86 else {}
    by_isa = [of_isa("cpu", isa, f) for isa, f in VECTORS.items() if x86 or isa == "generic"]
    by_isa += [of_isa("cpu/amx", isa, f) for isa, f in tiles.items()]
    once = units("common", *(("-DMSCTX_WITH_X86", *(["-DMSCTX_WITH_EMULATED"] if emulated else ())) if x86 else ()))
    include = ("-isystem", f"{TORCH}/include", "-isystem", f"{TORCH}/include/torch/csrc/api/include")
    # torch was built without assertions, and its classes are laid out by that. A unit includes the files that are compiled as one
    glue = units("glue/units", "-I.", "-fopenmp", "-DNDEBUG", "-Wno-subobject-linkage", *include)
    # The linker keeps the first copy of an inline function: one for every processor must come before those for newer ones
    linked = (*by_isa[0], *once, *glue, *(unit for rest in by_isa[1:] for unit in rest))
    if not linked:
        raise NativeError(f"{root}: no kernels are there; msctx is not installed completely, install it again")
    identity = torch_identity() if with_torch else ()
    return BuildSpec(product, root, files, linked, link, identity, str(Path(torch.__file__).parent))


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


def machine() -> str:
    return " ".join([platform.machine(), *platform.libc_ver()]).strip()
