"""The core is built once, by one process, and again when something changed; nothing half done is left, loaded or kept for ever."""

import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import variants
from builds import GLUE, ISAS, call, edit, leftovers, made
from filelock import FileLock
from processes import until

from msctx.errors import NativeError
from msctx.native import build as native
from msctx.native import cachedir
from msctx.native.build import glue_spec, kernels_spec
from msctx.shipped import KERNEL_SOURCES


def test_a_library_is_built_once(cache, sources, watched, capfd):
    first = made()
    assert len(watched.compiled) == ISAS + 1
    assert first.parent == cache / "native"
    assert call(first) == 41
    err = capfd.readouterr().err
    assert err.startswith(f"{(told := 'msctx: building part 1 of 2, the kernels (once)')}\n{told}: 1 of ")
    assert "\nmsctx: built part 1 of 2, the kernels in " in err
    assert made() == first
    assert len(watched.runs) == ISAS + 2
    assert capfd.readouterr() == ("", "")
    assert leftovers(cache) == []


@pytest.mark.skipif(ISAS == 1, reason="there is one instruction set on this machine")
def test_inline_functions_of_all_objects_are_the_baseline_ones(sources):
    """The linker keeps one copy of an inline function; one with newer instructions must not reach an old processor."""
    (sources / "include/msctx/number.h").write_text(
        "#pragma once\n#define NUMBER 40\n"
        "#ifdef __AVX512F__\n#define LEVEL 2\n#elif defined(__AVX2__)\n#define LEVEL 1\n#else\n#define LEVEL 0\n#endif\n"
        "__attribute__((noinline)) inline int level() { volatile int found = LEVEL; return found; }\n"
    )
    (sources / "cpu/two.cpp").write_text(
        '#include "msctx/number.h"\nnamespace MSCTX_ISA {\n#if LEVEL\nint two() { return level(); }\n#endif\n}\n'
    )
    (sources / "common/level.cpp").write_text(
        '#include "msctx/number.h"\nnamespace avx512 { int two(); }\n'
        'extern "C" __attribute__((visibility("default"))) int msctx_here() { return level() * 10 + avx512::two(); }\n'
    )
    path = made()
    assert call(path, "msctx_here") == 0


@pytest.fixture
def glue(sources):
    """A glue beside the small kernels."""
    (sources / "glue/units").mkdir(parents=True)
    (sources / "glue/units/threads.cpp").write_text(GLUE)
    (sources / "glue" / "parts.h").write_text("#pragma once\n")


def test_the_glue_uses_the_openmp_that_torch_has_loaded(sources, glue, watched, passes):
    built = native.build()
    assert len(watched.compiled) == ISAS + 1 + 1
    if shutil.which("readelf"):
        needed = subprocess.run(["readelf", "-d", built.glue], capture_output=True, text=True, check=True).stdout
        assert "libtorch_cpu.so" in needed
        assert not any(word in needed for word in ("gomp", "libomp", "RPATH", "RUNPATH"))
    code = f"""
        import ctypes, torch
        torch.set_num_threads(3)
        ctypes.CDLL({str(built.kernels)!r})
        print(ctypes.CDLL({str(built.glue)!r}).threads_used())
        print(len({{line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "libomp" in line}}))
    """
    assert passes(code).split() == ["3", "1"]


def test_what_the_wheel_brings_is_used_and_only_the_glue_of_another_torch_is_built(
    sources, glue, watched, tmp_path, monkeypatch, cache
):
    built = native.build()
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(native, "LIBRARIES", shipped)
    for path in (built.kernels, built.glue):
        path.rename(shipped / path.name)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        patch.delenv("CXX")
        there = native.build()
        assert (there.origin, there == native.found()) == ("from the wheel", True)
        assert native.obstacle() == ""
    import torch

    monkeypatch.setattr(torch, "__version__", "9.9.9+cu130")
    native._is_there.cache_clear()
    assert native.found() is None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        patch.delenv("CXX")
        assert native.obstacle().startswith("no C++ compiler")
        with pytest.raises(NativeError, match="no C\\+\\+ compiler"):
            native.build()
    other = native.build()
    assert (other.kernels, other.origin) == (there.kernels, "kernels from the wheel, glue built here")
    assert other.glue.parent == cache / "native"
    assert other.glue.name.startswith("libmsctx_torch-9.9.9-")


# --- what a build depends on -------------------------------------------------------------------------------------------


def test_what_changes_makes_another_library_and_compiles_what_includes_it(sources, watched):
    """A header, one by way of another, and one of an instruction set."""
    first = made()
    edit(sources, "include/msctx/number.h", "40", "50")
    second = made()
    assert second != first
    assert len(watched.compiled) == 2 * ISAS + 1
    assert call(second) == 51
    edit(sources, "include/msctx/number.h", "50", "40")
    assert made() == first
    edit(sources, "include/msctx/number.h", "#pragma once", '#pragma once\n#  include "msctx/more.h"')
    (sources / "include/msctx/more.h").write_text("#define MORE 1\n")
    made()
    before = len(watched.compiled)
    edit(sources, "include/msctx/more.h", "1", "2")
    made()
    assert len(watched.compiled) == before + ISAS
    edit(sources, "cpu/isa/generic/vec.h", "1", "7")
    last = made()
    assert len(watched.compiled) == before + ISAS + 1
    assert call(last) == 47


def test_what_the_name_depends_on(sources, glue, monkeypatch):
    import torch

    def names():
        kernels = kernels_spec()
        return kernels.file, glue_spec(kernels, Path("x.so")).file

    kernels, first = names()
    assert (kernels, first) == names()
    assert len({kernels, *(variants.sanitized(kernels_spec(), names).file for names in ("undefined", "address"))}) == 3
    others = (torch, "__version__", "9.9"), (torch.version, "git_version", "9.9"), (torch, "compiled_with_cxx11_abi", bool)
    for module, name, other in others:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, other)
            assert names()[0] == kernels
            assert names()[1] != first
    (sources / "README.md").write_text("no source")
    assert names() == (kernels, first)
    (sources / "glue/parts.h").write_text("#pragma once\n//\n")
    assert names()[0] == kernels
    assert names()[1] != first
    (sources / "cpu/one.cpp").rename(sources / "cpu/uno.cpp")
    assert names()[0] != kernels
    monkeypatch.setattr(native.platform, "machine", lambda: "aarch64")
    assert names()[0] != kernels


# --- what is seen of it ------------------------------------------------------------------------------------------------


def test_each_file_of_the_glue_is_in_one_unit():
    glue = KERNEL_SOURCES / "glue"
    included = [line.split('"')[1] for path in glue.glob("units/*.cpp") for line in path.read_text().splitlines()[1:]]
    assert sorted(included) == sorted(f"glue/{path.name}" for path in glue.glob("*.cpp"))


# --- builds that end badly, or that many want at once -----------------------------------------------------------------


def test_a_kernel_with_a_mistake(cache, sources):
    edit(sources, "common/api.cpp", "generic::one()", "generic::two()")
    with pytest.raises(NativeError) as caught:
        made()
    text, log = str(caught.value), next(cache.glob("build/*/log"))
    assert isinstance(caught.value, RuntimeError)
    for part in ("the compiler failed", "-c common/api.cpp", "error: ", f"The sources are in {sources}", str(log)):
        assert part in text
    assert "error: " in log.read_text()
    assert leftovers(cache) == []
    assert [*cache.glob("native/*.so")] == []
    edit(sources, "common/api.cpp", "generic::two()", "generic::one()")
    assert made().exists()


def test_many_processes_at_once_build_once(sources, watched, tmp_path):
    """They wait for one that builds, which this one seems to be, and say so."""
    files = [tmp_path / f"{number}.stderr" for number in range(6)]

    def build(file):
        sys.stderr = file.open("w", buffering=1)
        made()

    def said(text):
        return sum(text in file.read_text() for file in files if file.exists())

    children = [multiprocessing.get_context("fork").Process(target=build, args=(file,)) for file in files]
    with FileLock(cachedir.folder() / "building.lock", mode=0o600):
        for child in children:
            child.start()
        until(lambda: said("msctx: another process is building kernels; waiting for it\n") == len(files))
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert len(watched.compiled) == ISAS + 1
    assert said("built part 1 of 2") == 1


def test_what_was_built_is_removed(cache, sources):
    made()
    assert cachedir.remove() > 1000
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert cachedir.remove() == 0
