"""The two libraries of the native core: those that the wheel brings, else those in the cache, else built there by ninja.

The library of the kernels knows nothing of torch. The glue, which is linked with it, is built for one release of torch.

In the cache, ``build/<key>`` has the sources, ninja's files and the objects, for one compiler and one torch. What has changed is
compiled again, also after a build that was killed.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, SubprocessError, run

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.cachedir import digest, say
from msctx.shipped import KERNEL_SOURCES, LIBRARIES

# --- what they are made of --------------------------------------------------------------------------------------------

IS_X86 = platform.machine() == "x86_64"
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma")
# Without instructions for FMA its exact emulation is what counts: -O3 compiles three times as long and gains little
VECTORS = {"generic": ("-O2",), "avx2": ("-mavx2", "-mfma"), "avx512": AVX512} if IS_X86 else {"generic": ()}
"""Instruction sets that all of cpu/*.cpp is compiled for; which one runs is decided when they run."""
TILES = ("amx", "amx_fp16") if IS_X86 else ()
"""Those with a matrix unit: cpu/amx/*.cpp has a table for each, and what that does not compute is left to avx512."""
# GCC 12 takes what its own headers leave undefined on purpose for a mistake
OF_TILES = {"amx": (*AVX512, "-Wno-uninitialized", "-Wno-maybe-uninitialized")} if IS_X86 else {}
INCLUDE = ("-Iinclude", "-I.")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", *INCLUDE)
HIDDEN = "-fvisibility=hidden"
# torch was built without assertions, and its classes are laid out by that. What takes long is in the other library: -O3 gains nothing
OF_GLUE = (*FLAGS, "-O2", HIDDEN, "-fopenmp", "-DNDEBUG", "-Wno-subobject-linkage")
# libgomp is not named: OpenMP must be the copy that torch has loaded, which libtorch_cpu leads to
TORCH = ("-Wl,--as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined")
Units = tuple[tuple[str, tuple[str, ...]], ...]
SUFFIXES = (".cpp", ".h")


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """One library. *units* are sources and their flags in the order in which they are linked, *link* what ends that command.

    *file*, its name, has a hash of all that decides what it computes, but for the compiler: any compiler's library serves. *torch*:
    the release, the commit and the C++ ABI that its headers are of.
    """

    file: str
    files: dict[str, bytes]
    units: Units
    link: tuple[str, ...]
    what: str = "part 1 of 2, the kernels"
    torch: tuple[str, ...] = ()


def kernels_spec() -> BuildSpec:
    """The library of the kernels."""
    files = {name: data for name, data in read_sources(KERNEL_SOURCES, SUFFIXES).items() if not name.startswith("glue/")}
    first, *others = [
        _units(files, folder, *FLAGS, HIDDEN, *more, f"-DMSCTX_ISA={isa}", f"-Icpu/isa/{isa}")
        for folder, of_isa in (("cpu", VECTORS), ("cpu/amx", OF_TILES))
        for isa, more in of_isa.items()
    ]
    # The linker keeps the first copy of an inline function: one for every processor must come before those for newer ones
    units = sum(others, (*first, *_units(files, "common", *FLAGS, HIDDEN, *["-DMSCTX_WITH_X86"] * IS_X86)))
    files["exports.map"] = b"{ global: msctx_*; local: *; };\n"  # include/msctx/interface.h
    file = f"libmsctx_kernels-{digest(files, platform.machine(), units)[:16]}.so"
    # By its name the glue needs it: no other serves
    return BuildSpec(file, files, units, ("-pthread", f"-Wl,-soname,{file}", "-Wl,--version-script=exports.map"))


def glue_spec(kernels: BuildSpec, library: Path) -> BuildSpec:
    """The glue between the installed torch and the *library* of the kernels, which must be loaded before."""
    import torch

    files = {n: data for n, data in read_sources(KERNEL_SOURCES, SUFFIXES).items() if n.startswith(("glue/", "include/"))}
    folder, abi = Path(torch.__file__).parent, f"cxx11abi{int(torch.compiled_with_cxx11_abi())}"
    identity = torch.__version__.partition("+")[0], str(torch.version.git_version), abi
    include = ("-isystem", f"{folder}/include", "-isystem", f"{folder}/include/torch/csrc/api/include")
    key = digest(files, platform.machine(), OF_GLUE, TORCH, kernels.file, identity)[:16]
    file = f"libmsctx_torch-{identity[0]}-{key}.so"
    link = ("-pthread", str(library), *_runtime(), f"-L{folder}/lib", *TORCH)
    units = _units(files, "glue", *OF_GLUE, *include)
    return BuildSpec(file, files, units, link, f"part 2 of 2, the glue for torch {identity[0]}", identity)


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


def read_sources(root: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    """Every file under *root* that ends so, by its path from there."""
    paths = sorted(path for path in root.rglob("*") if path.suffix in suffixes and path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


# --- building ---------------------------------------------------------------------------------------------------------

PROBE, USED = ("-v", "-std=c++20", "-x", "c++", "-fsyntax-only", "-"), "#include <bit>\nstatic_assert(std::popcount(7u) == 3);"


@dataclass(frozen=True, slots=True)
class Build:
    """The core: the library of the *kernels*, which is loaded first, and the *glue*."""

    kernels: Path
    glue: Path

    @property
    def origin(self) -> str:
        """Whether the wheel has brought it."""
        shipped = [path.parent == LIBRARIES for path in (self.kernels, self.glue)]
        return "from the wheel" if all(shipped) else "kernels from the wheel, glue built here" if any(shipped) else "built here"


def build(verbose: bool = False) -> Build:
    """The core, built if need be; *verbose* prints each command and the compiler's messages. Import torch before loading it.

    Raises:
        NativeError: it cannot be built, or the cache is not safe to load from.
    """
    spec = kernels_spec()
    kernels = library(spec, verbose)
    return Build(kernels, library(glue_spec(spec, kernels), verbose))


def found() -> Build | None:
    """The core, if it need not be built."""
    spec = kernels_spec()
    if (kernels := _found(spec)) and (glue := _found(glue_spec(spec, kernels))):
        return Build(kernels, glue)
    return None


def obstacle() -> str:
    """Why there can be no native core here, or ``""``: it is there, or there is what it takes to build it. Cheap when repeated."""
    try:
        if not _is_there():
            find_compiler()
            cachedir.usable()
    except NativeError as error:
        return str(error)
    return ""


@cache
def _is_there() -> bool:
    return found() is not None


def _found(spec: BuildSpec) -> Path | None:
    shipped = LIBRARIES / spec.file
    return shipped if shipped.exists() else cachedir.cached("native", spec.file)


def library(spec: BuildSpec, verbose: bool = False) -> Path:
    """One of the two, built if need be."""
    return _found(spec) or cachedir.obtain("native", spec.file, lambda: _make(spec, verbose))


def _make(spec: BuildSpec, verbose: bool) -> bytes:
    """The library's bytes, made by ninja of copies of the sources: what the name was made of, whoever edits the files meanwhile."""
    from ninja import BIN_DIR

    tool = find_compiler()
    key = digest(platform.machine(), platform.libc_ver(), tool.command, tool.version, spec.torch)[:16]
    folder, began = cachedir.folder("build", key), time.perf_counter()
    for name, data in {**spec.files, "build.ninja": _ninja(spec, tool).encode()}.items():
        if not (path := folder / name).is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    command = [f"{BIN_DIR}/ninja", "-v", "-j", str(len(os.sched_getaffinity(0)))]
    env, due, lines = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}, began, list[str]()
    say(told := f"building {spec.what} (once)")
    with Popen(command, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT, encoding="utf-8", errors="replace") as process:
        for line in process.stdout or ():
            lines.append(line)
            if verbose:
                say(line.rstrip("\n"))
            elif (now := time.perf_counter()) >= due and (step := re.match(r"\[(\d+)/(\d+)\] ", line)):
                due = now + 10
                say(f"{told}: {step[1]} of {step[2]} files, {now - began:.0f} s")
    (log := folder / "log").write_text(output := "".join(lines), encoding="utf-8")
    if process.returncode:
        failed = first_lines(output.partition("FAILED: ")[2], 13).replace("\n", "\n  ")
        raise NativeError(
            f"the native core cannot be built: the compiler failed\n  {failed}\n"
            f"The sources are in {KERNEL_SOURCES}, the whole output is in {log}. "
            f"Try another compiler (CXX=…); if that does not help, report it with this file."
        )
    say(f"built {spec.what} in {time.perf_counter() - began:.1f} s")
    return (folder / "result.so").read_bytes()


def _ninja(spec: BuildSpec, tool: Compiler) -> str:
    """The text of build.ninja, which makes ``result.so``."""

    def joined(words: Iterable[str]) -> str:
        return shlex.join(words).replace("$", "$$")

    cxx, objects, compiled = joined(tool.command), list[str](), list[str]()
    lines = [
        f"rule compile\n command = {cxx} $flags -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc",
        f"rule link\n command = {cxx} -shared $in {joined(spec.link)} -o $out",
    ]
    for source, flags in spec.units:
        # clang's OpenMP needs a runtime of its own, beside which torch's would run once more
        used = joined(flag for flag in flags if not ("clang" in tool.version and flag == "-fopenmp"))
        objects.append(f"objects/{digest(flags)[:8]}/{Path(source).with_suffix('.o')}")
        compiled.insert(0, f"build {objects[-1]}: compile {source}\n flags = {used}")  # the last take longest: they begin
    return "\n".join([*lines, *compiled, f"build result.so: link {' '.join(objects)}\n"])


# --- the compiler -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works; *version* is the line of its own description that has it."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that works. Cheap when called again."""
    if sys.platform != "linux":
        raise NativeError("the native core is built only on Linux")
    given, why = os.environ.get("CXX", "").strip(), ""
    for name in (given,) if given else ("c++", "g++", "clang++"):
        try:
            return _examined(name, os.environ.get("PATH", ""))
        except (ValueError, OSError, SubprocessError) as error:
            if given or shutil.which(name):
                why = why or f"{'CXX=' if given else ''}{name}: {error}; "
    raise NativeError(f"{why}no C++ compiler (apt install g++, or name one in CXX)")


def first_lines(log: str, most: int = 12) -> str:
    """The beginning of a compiler's messages, without blank lines and ptxas's account."""
    lines = [line for line in log.splitlines() if line.strip() and "ptxas info" not in line]
    return "\n".join([*lines[:most], *(["…"] if len(lines) > most else [])])


@lru_cache(maxsize=16)
def _examined(words: str, _path: str) -> Compiler:
    """The compiler that a name or CXX stands for; an error if it will not do."""
    program, *arguments = shlex.split(words)
    command, env = (os.path.abspath(shutil.which(program) or program), *arguments), {**os.environ, "LC_ALL": "C"}
    done = run([*command, *PROBE], input=USED, stdout=PIPE, stderr=STDOUT, text=True, timeout=60, env=env, check=False)
    lines = [line.strip() for line in done.stdout.splitlines()]
    if done.returncode:
        why = next((line for line in lines if "error:" in line), f"exit code {done.returncode}")
        raise OSError(f"cannot be used for C++20: {why}")
    return Compiler(command, next((line for line in lines if " version " in line), ""))
