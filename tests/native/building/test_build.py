"""The build: once, with the flags it needs, again when something changed that it depends on; and what is seen of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import variants
from builds import GLUE, ISAS, call, edit, leftovers, made

from msctx.errors import NativeError
from msctx.native import build as native
from msctx.native import cachedir
from msctx.native.build import glue_spec, kernels_spec
from msctx.shipped import KERNEL_SOURCES


def test_a_library_is_built_once(cache, sources, watched, forked, capfd):
    first = made()
    assert len(watched.compiled) == ISAS + 1
    assert first.parent == cache / "native"
    assert forked(lambda: call(first)).ended() == {"returned": 41}
    err = capfd.readouterr().err
    assert err.startswith("msctx: building the kernels (once)\nmsctx: building the kernels (once): 1 of ")
    assert "\nmsctx: built the kernels in " in err
    assert made() == first
    assert len(watched.runs) == ISAS + 2
    assert capfd.readouterr() == ("", "")
    assert leftovers(cache) == []


def test_what_takes_long_is_told_again(monkeypatch, capsys):
    def output():
        yield "[1/7] c++ one.cpp\n"
        yield "[2/7] c++ two.cpp\n"
        monkeypatch.setattr(native, "EVERY", 0)
        yield "[3/7] c++ three.cpp\n"

    native._told(output(), "building (once)", False)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("once)")[2].partition(",")[0] for line in said] == ["", ": 1 of 7 files", ": 3 of 7 files"]


def test_how_kernels_are_compiled(sources, watched):
    made()
    generic = next(line for line in watched.compiled if "-DMSCTX_ISA=generic" in line)
    assert not any(word.startswith("-m") for word in generic.split())
    for line in watched.compiled:
        assert {"-std=c++20", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno"} <= set(line.split())
        assert "-fvisibility=hidden" in line
        assert "-march=native" not in line
        assert "torch" not in line
        if "-DMSCTX_ISA=" in line:
            isa = line.split("-DMSCTX_ISA=")[1].split()[0]
            assert {f"-Icpu/isa/{isa}", *native.VECTORS[isa]} <= set(line.split())
    common = next(line for line in watched.compiled if "common/api.cpp" in line)
    assert ("-DMSCTX_WITH_X86" in common.split()) == (ISAS > 1)


@pytest.mark.skipif(ISAS == 1, reason="there is one instruction set on this machine")
def test_inline_functions_of_all_objects_are_the_baseline_ones(sources, forked):
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
    assert forked(lambda: call(path, "msctx_here")).ended() == {"returned": 0}


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
        patch.setitem(sys.modules, "ninja", None)
        there = native.build()
        assert (there.origin, there == native.found()) == ("from the wheel", True)
        assert native.obstacle() == ""
    import torch

    monkeypatch.setattr(torch, "__version__", "9.9.9+cu130")
    native._is_there.cache_clear()
    assert native.found() is None
    for missing, why in (("CXX", "no C++ compiler (set CXX, or install g++ or clang++)"), ("ninja", "pip install ninja")):
        with monkeypatch.context() as patch:
            if missing == "CXX":
                patch.setenv("PATH", "")
                patch.delenv("CXX")
            else:
                patch.setitem(sys.modules, "ninja", None)
            assert native.obstacle().endswith(why)
            with pytest.raises(NativeError, match=re.escape(why)):
                native.build()
    other = native.build()
    assert (other.kernels, other.origin) == (there.kernels, "kernels from the wheel, glue built here")
    assert other.glue.parent == cache / "native"
    assert other.glue.name.startswith("libmsctx_torch-9.9.9-")


def test_a_build_of_the_same_release_serves_every_kind_of_it(sources, glue, monkeypatch):
    import torch

    kernels = kernels_spec()
    names = set()
    for version in ("9.9.9+cpu", "9.9.9+cu130", "9.9.9"):
        monkeypatch.setattr(torch, "__version__", version)
        names.add(glue_spec(kernels, Path("x.so")).file)
    assert len(names) == 1


def test_sanitizers(sources):
    path = variants.kernels_library("address,undefined")
    assert b"__asan_" in path.read_bytes()
    assert path != variants.kernels_library()


# --- what a build depends on -------------------------------------------------------------------------------------------


def test_a_header_that_changes_makes_another_library_and_compiles_those_that_include_it(sources, watched, forked):
    first = made()
    edit(sources, "include/msctx/number.h", "40", "50")
    second = made()
    assert second != first
    assert len(watched.compiled) == 2 * ISAS + 1
    assert forked(lambda: call(second)).ended() == {"returned": 51}
    edit(sources, "include/msctx/number.h", "50", "40")
    assert made() == first


def test_a_header_by_way_of_another_and_one_of_an_instruction_set(sources, watched, forked):
    edit(sources, "include/msctx/number.h", "#pragma once", '#pragma once\n#  include "msctx/more.h"')
    (sources / "include/msctx/more.h").write_text("#define MORE 1\n")
    made()
    edit(sources, "include/msctx/more.h", "1", "2")
    made()
    assert len(watched.compiled) == 2 * ISAS + 1
    edit(sources, "cpu/isa/generic/vec.h", "1", "7")
    second = made()
    assert len(watched.compiled) == 2 * ISAS + 2
    assert forked(lambda: call(second)).ended() == {"returned": 47}


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


def test_warnings_are_in_the_log_and_do_not_stop_it(cache, sources, capfd):
    edit(sources, "common/api.cpp", "return", "int unused; return")
    made()
    assert "unused variable" in next(cache.glob("build/*/log")).read_text()
    assert "unused variable" not in capfd.readouterr().err
    cachedir.remove()
    native.library(kernels_spec(), verbose=True)
    err = capfd.readouterr().err
    assert [word for word in ("-c common/api.cpp", "unused variable", "-shared") if word not in err] == []


def test_each_file_of_the_glue_is_in_one_unit():
    glue = KERNEL_SOURCES / "glue"
    included = [line.split('"')[1] for path in glue.glob("units/*.cpp") for line in path.read_text().splitlines()[1:]]
    assert sorted(included) == sorted(f"glue/{path.name}" for path in glue.glob("*.cpp"))
