"""The build: once, whoever asks and whatever happens; never loaded half done, altered or another's."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from msctx.errors import MsctxError, NativeError
from msctx.native import build as native
from msctx.native import compiler, recipe
from msctx.native.recipe import recipe_of

VECTORS = recipe.VECTORS if len(recipe.isas()) > 1 else {"generic": ()}
ISAS = len(VECTORS)
"""The instruction sets that the small kernels are compiled for: they have none for a matrix unit."""


def made(sources):
    """What is built in most tests: everything but the glue, and no need of torch."""
    return native._make(recipe_of("kernels", "", sources), verbose=False)


def call(path, name="msctx_one"):
    return ctypes.CDLL(str(path))[name]()


def edit(sources, name, old, new):
    file = sources / name
    file.write_text(file.read_text().replace(old, new))


def leftovers(cache):
    """What no build leaves: folders in progress and parts of files."""
    return [*cache.glob("tmp/*"), *cache.rglob("*.part")]


def test_a_library_is_built_once(cache, sources, watched, forked, capfd):
    first = made(sources)
    assert not first.cached
    assert first.compiled == len(watched.compiled) == ISAS + 1
    assert first.path.parent.parent == cache / "native"
    assert forked(lambda: call(first.path)).ended() == {"returned": 41}
    err = capfd.readouterr().err
    assert err.startswith(f"msctx: building the native core (once): {ISAS + 1} files\nmsctx: built the native core in ")
    again = made(sources)
    assert (again.cached, again.path, again.compiler, again.isas, again.log) == (
        *(True, first.path, first.compiler, first.isas, first.log),
    )
    assert len(watched.runs) == ISAS + 2
    assert capfd.readouterr() == ("", "")
    assert native.kernels_library(sources=sources) == first.path
    assert leftovers(cache) == []


def test_the_note_beside_it_is_for_people(sources):
    note = json.loads((made(sources).path.parent / "build.json").read_text())
    assert note["product"] == "kernels"
    assert note["isas"] == [*recipe.isas()]
    assert any("-DMSCTX_ISA=generic" in line and line.endswith("cpu/one.cpp") for line in note["commands"])


def test_how_kernels_are_compiled(sources, watched):
    made(sources)
    generic = next(line for line in watched.compiled if "-DMSCTX_ISA=generic" in line)
    assert not any(word.startswith("-m") for word in generic.split())
    for line in watched.compiled:
        assert {"-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"} <= set(
            line.split()
        )
        assert "-march=native" not in line
        assert "torch" not in line
        if "-DMSCTX_ISA=" in line:
            isa = line.split("-DMSCTX_ISA=")[1].split()[0]
            assert {f"-Icpu/isa/{isa}", *recipe.VECTORS[isa]} <= set(line.split())
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
        'extern "C" __attribute__((visibility("default"))) int here() { return level() * 10 + avx512::two(); }\n'
    )
    path = made(sources).path
    assert forked(lambda: call(path, "here")).ended() == {"returned": 0}


def test_machines_without_x86_have_one_instruction_set(monkeypatch, sources):
    monkeypatch.setattr(recipe.platform, "machine", lambda: "aarch64")
    units = recipe_of("kernels", "", sources).units
    assert recipe.isas() == ("generic",)
    assert [unit.source for unit in units] == ["cpu/one.cpp", "common/api.cpp"]
    assert not any(flag.startswith("-m") or "X86" in flag for unit in units for flag in unit.flags)


GLUE = """
#include <ATen/Parallel.h>
#include <atomic>
#include "glue/parts.h"
extern "C" __attribute__((visibility("default"))) int threads_used() {
  std::atomic<int> parts{0};
  at::parallel_for(0, 1000, 1, [&](int64_t, int64_t) { parts++; });
  return parts;
}
"""


def test_the_glue_uses_the_openmp_that_torch_has_loaded(sources, passes):
    (sources / "glue").mkdir()
    (sources / "glue" / "threads.cpp").write_text(GLUE)
    (sources / "glue" / "parts.h").write_text("#pragma once\n")
    made(sources)
    built = native.build(sources=sources)
    path = built.path
    assert (path.name, built.compiled, built.reused) == ("libmsctx.so", 2, ISAS)
    if shutil.which("readelf"):
        needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        assert "libtorch_cpu.so" in needed
        assert not any(word in needed for word in ("gomp", "libomp", "RPATH", "RUNPATH"))
    code = f"""
        import ctypes, torch
        torch.set_num_threads(3)
        print(ctypes.CDLL({str(path)!r}).threads_used())
        print(len({{line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "libomp" in line}}))
    """
    assert passes(code).split() == ["3", "1"]


def test_sanitizers(sources):
    path = native.kernels_library("address,undefined", sources)
    assert b"__asan_" in path.read_bytes()
    assert path != native.kernels_library(sources=sources)
    with pytest.raises(NativeError, match="give names of sanitizers"):
        native.kernels_library("address -o /tmp/x", sources)


# What a build depends on


def test_a_header_that_changes_makes_another_library_and_compiles_those_that_include_it(sources, forked):
    first = made(sources)
    edit(sources, "include/msctx/number.h", "40", "50")
    second = made(sources)
    assert second.path != first.path
    assert (second.compiled, second.reused) == (ISAS, 1)
    assert forked(lambda: call(second.path)).ended() == {"returned": 51}
    edit(sources, "include/msctx/number.h", "50", "40")
    assert made(sources).path == first.path


def test_a_header_by_way_of_another_and_one_of_an_instruction_set(sources, forked):
    edit(sources, "include/msctx/number.h", "#pragma once", '#pragma once\n#  include "msctx/more.h"')
    (sources / "include/msctx/more.h").write_text("#define MORE 1\n")
    first = made(sources)
    edit(sources, "include/msctx/more.h", "1", "2")
    assert (made(sources).compiled, first.compiled) == (ISAS, ISAS + 1)
    edit(sources, "cpu/isa/generic/vec.h", "1", "7")
    second = made(sources)
    assert (second.compiled, second.reused) == (1, ISAS)
    assert forked(lambda: call(second.path)).ended() == {"returned": 47}


def test_a_source_that_changes_is_all_that_is_compiled(sources, watched):
    made(sources)
    edit(sources, "common/api.cpp", "generic::one()", "generic::one() + 1")
    second = made(sources)
    assert (second.compiled, second.reused) == (1, ISAS)
    assert len(watched.compiled) == ISAS + 2


def test_what_the_key_depends_on(sources, monkeypatch):
    def key(product="library", sanitize=""):
        return recipe_of(product, sanitize, sources).key(compiler.find())

    import torch

    keys = [key(), key("kernels"), key("kernels", "undefined")]
    assert key() == keys[0]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        keys.append(key())
        assert key("kernels") == keys[1]
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "git_version", "another")
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(recipe.platform, "machine", lambda: "aarch64")
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "find", lambda: compiler.Compiler(("/usr/bin/c++",), "another"))
        keys.append(key())
    (sources / "README.md").write_text("no source")
    assert key() == keys[0]
    (sources / "cpu/one.cpp").rename(sources / "cpu/uno.cpp")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_sources_that_are_edited_during_a_build(sources, watched, forked):
    """What is compiled is what the key was made of."""
    watched.hold("common/api.cpp")
    process = forked(lambda: made(sources).path)
    watched.until_stopped()
    edit(sources, "common/api.cpp", "generic::one()", "syntax error")
    watched.let_go()
    first = process.ended()["returned"]
    edit(sources, "common/api.cpp", "syntax error", "generic::one()")
    assert str(made(sources).path) == first
    assert forked(lambda: call(first)).ended() == {"returned": 41}


def test_no_kernels(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NativeError, match="no kernels are there; msctx is not installed completely"):
        native.library(tmp_path / "empty")


def test_the_sources_that_travel_with_msctx():
    assert (recipe.source_folder() / "cpu").is_dir()


# Many at once


def test_many_processes_at_once_build_once(sources, watched, forked):
    watched.hold("common/api.cpp")
    processes = [forked(lambda: made(sources).path) for _ in range(6)]
    watched.until_stopped()
    time.sleep(1.3)  # so that the others have waited long enough to say so
    watched.let_go()
    answers = [process.ended() for process in processes]
    assert len({answer["returned"] for answer in answers}) == 1
    assert len(watched.compiled) == ISAS + 1
    said = [process.said for process in processes]
    assert sum("built the native core" in text for text in said) == 1
    assert sum(text == "msctx: another process is building the native core; waiting for it\n" for text in said) == 5


def test_many_threads_at_once_build_once(sources, watched):
    found = []
    threads = [threading.Thread(target=lambda: found.append(made(sources).path)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(watched.compiled) == ISAS + 1


def test_a_process_that_is_forked_during_a_build_does_not_hold_it_up(sources, watched, forked):
    watched.hold("common/api.cpp")
    thread = threading.Thread(target=made, args=(sources,))
    thread.start()
    watched.until_stopped()
    child = forked(lambda: time.sleep(600))
    watched.let_go()
    thread.join()
    second = forked(lambda: made(sources).cached)
    assert second.ended() == {"returned": True}
    with native._locked(made(sources).path.parent.name, wait=False):
        assert child.process.is_alive()


# Builds that end badly


@pytest.mark.parametrize("word", ["common/api.cpp", "-shared"])
def test_a_build_that_is_killed_leaves_nothing_that_is_loaded(cache, sources, watched, forked, word):
    watched.hold(word)
    process = forked(lambda: made(sources).path)
    held = watched.until_stopped()
    process.signal(signal.SIGKILL)
    assert process.ended() == {"killed": -signal.SIGKILL}
    assert [*cache.glob("tmp/*")] != []
    assert [*cache.glob("native/*/*")] == []
    watched.let_go()
    while any(is_running(number) for number in held):  # the compiler of the killed build, which now ends by itself
        time.sleep(0.01)
    built = made(sources)
    assert not built.cached
    assert leftovers(cache) == []
    assert forked(lambda: call(built.path)).ended() == {"returned": 41}


def test_builds_that_are_killed_at_any_moment(cache, sources, watched, forked):
    began = time.monotonic()
    made(sources)
    whole = time.monotonic() - began
    for step in range(6):
        shutil.rmtree(cache)
        process = forked(lambda: made(sources).path)
        time.sleep(whole * (step + 0.5) / 5)
        process.signal(signal.SIGKILL)
        process.ended()
        assert forked(lambda: call(made(sources).path)).ended() == {"returned": 41}
    edit(sources, "common/api.cpp", "return", "return 1 +")
    made(sources)  # tidies up after one that was killed when all was done but that
    assert leftovers(cache) == []


def test_ctrl_c(cache, sources, watched, forked):
    watched.hold("common/api.cpp")
    process = forked(lambda: made(sources).path)
    compilers = watched.until_stopped()
    process.signal(signal.SIGINT)
    assert process.ended()["raised"] == "KeyboardInterrupt"
    assert not any(is_running(number) for number in compilers)
    assert leftovers(cache) == []
    watched.let_go()
    assert not made(sources).cached


def test_ctrl_c_while_another_process_builds(sources, watched, forked):
    watched.hold("common/api.cpp")
    builder = forked(lambda: made(sources).path)
    watched.until_stopped()
    waiting = forked(lambda: made(sources).path)
    time.sleep(0.3)
    waiting.signal(signal.SIGINT)
    assert waiting.ended()["raised"] == "KeyboardInterrupt"
    watched.let_go()
    assert "returned" in builder.ended()
    assert len(watched.compiled) == ISAS + 1


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_kernel_with_a_mistake(cache, sources):
    edit(sources, "common/api.cpp", "generic::one()", "generic::two()")
    with pytest.raises(NativeError) as caught:
        made(sources)
    text = str(caught.value)
    assert isinstance(caught.value, MsctxError)
    assert isinstance(caught.value, RuntimeError)
    assert "the compiler ended with exit code 1" in text
    assert "-c common/api.cpp" in text
    assert "error: " in text
    assert f"The sources are in {sources}" in text
    log = next(cache.glob("logs/*.log"))
    assert str(log) in text
    assert "error: " in log.read_text()
    assert "-c common/api.cpp" in log.read_text()
    assert leftovers(cache) == []
    assert [*cache.glob("native/*/*")] == []
    edit(sources, "common/api.cpp", "generic::two()", "generic::one()")
    assert made(sources).compiled <= ISAS + 1


def test_a_compiler_that_is_killed(sources, watched):
    script = watched.folder / "c++"
    script.write_text(script.read_text().replace("exec ", 'case "$*" in *common/api*) kill -9 $$;; esac\nexec '))
    with pytest.raises(NativeError, match=r"was killed by SIGKILL \(is there too little memory\?\)"):
        made(sources)


def test_a_compiler_that_leaves_nothing(sources, watched):
    script = watched.folder / "c++"
    script.write_text(script.read_text().replace("exec ", 'case "$*" in *common/api*) exit 0;; esac\nexec '))
    with pytest.raises(NativeError, match="left no result"):
        made(sources)


def test_a_full_disk_while_compiling(sources, watched):
    script = watched.folder / "c++"
    full = "echo 'cannot write: No space left on device' >&2; exit 1"
    script.write_text(script.read_text().replace("exec ", f'case "$*" in *common/api*) {full};; esac\nexec '))
    with pytest.raises(NativeError, match="has no room left: make room there, or set MSCTX_CACHE_DIR"):
        made(sources)


def test_a_limit_on_what_may_be_written(cache, sources, forked):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return made(sources)

    answer = forked(limited).ended()
    assert answer["raised"] == "NativeError"
    assert leftovers(cache) == []
    assert not made(sources).cached


def test_warnings_are_in_the_log_and_do_not_stop_it(sources, capfd):
    edit(sources, "common/api.cpp", "return", "int unused; return")
    built = made(sources)
    assert "unused variable" in built.log.read_text()
    assert "unused variable" not in capfd.readouterr().err


def test_verbose(sources, capfd):
    edit(sources, "common/api.cpp", "return", "int unused; return")
    built = native.build(verbose=True, sources=sources)
    err = capfd.readouterr().err
    assert "-c common/api.cpp" in err
    assert "unused variable" in err
    assert "-shared" in err
    assert (built.isas, built.cached) == (recipe.isas(), False)


# What is in the cache is not trusted blindly


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def alter(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def replace_by_symlink(path):
    path.rename(path.with_name("other.so"))
    path.symlink_to("other.so")


@pytest.mark.parametrize("damage", [truncate, alter, Path.unlink, replace_by_symlink])
@pytest.mark.parametrize("name", ["libmsctx_kernels.so", "build.json"])
def test_a_damaged_build_is_built_again(sources, forked, watched, damage, name):
    path = made(sources).path
    damage(path.parent / name)
    again = made(sources)
    assert again.path == path
    assert (again.cached, again.reused) == (False, ISAS + 1)
    assert forked(lambda: call(path)).ended() == {"returned": 41}
    assert made(sources).cached


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"inputs": 1}', "\x00\xff"])
def test_a_note_that_is_something_else(sources, text):
    (made(sources).path.parent / "build.json").write_text(text, encoding="latin-1")
    assert not made(sources).cached


def test_a_damaged_object_is_compiled_again(cache, sources, forked):
    path = made(sources).path
    for damage, file in zip([truncate, alter], sorted(cache.glob("objects/*.o"))[:2], strict=True):
        damage(file)
    path.unlink()
    assert made(sources).compiled == 2
    assert forked(lambda: call(path)).ended() == {"returned": 41}


@pytest.mark.parametrize("what", ["path", "path.parent", "cache", "note"])
def test_what_others_can_write_is_refused(cache, sources, what):
    path = made(sources).path
    target = {"path": path, "path.parent": path.parent, "cache": cache, "note": path.parent / "build.json"}[what]
    target.chmod(0o777)
    with pytest.raises(
        NativeError, match=f"{target}: can be written by its group and everybody, .*; run `chmod go-w {target}`"
    ):
        made(sources)
    target.chmod(0o700)
    assert made(sources).cached


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_somebody_else_is_refused(sources):
    path = made(sources).path
    os.chown(path, 65534, 65534)
    with pytest.raises(NativeError, match="belongs to"):
        made(sources)


@pytest.mark.parametrize("mask", [0, 0o777])
def test_any_umask(cache, sources, umask, mask):
    umask(mask)
    made(sources)
    assert made(sources).cached
    modes = {stat.S_IMODE(path.stat().st_mode) for path in cache.rglob("*") if path.is_file()}
    assert modes == {0o600}


def read_only(cache, monkeypatch):
    """Nothing in the cache can be written, not even by root."""

    def refuse(*args, **more):
        raise OSError(30, "Read-only file system", str(cache))

    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: not mode & os.W_OK and access(path, mode, **more))
    for name in ("mkdir", "utime", "replace", "chmod"):
        monkeypatch.setattr(os, name, refuse)


def test_a_read_only_cache_is_good_to_load_from(cache, sources, monkeypatch):
    made(sources)
    read_only(cache, monkeypatch)
    assert made(sources).cached
    edit(sources, "common/api.cpp", "return", "return 1 +")
    with pytest.raises(NativeError, match=f"{cache}: cannot be written; set MSCTX_CACHE_DIR"):
        made(sources)


def test_what_nobody_uses_is_removed(cache, sources):
    old = made(sources)
    edit(sources, "include/msctx/number.h", "40", "41")
    kept = made(sources)
    ago = time.time() - 31 * 86400
    for path in [old.path.parent / "build.json", old.log, *cache.glob("objects/*")]:
        os.utime(path, (ago, ago))
    (cache / "tmp" / f"{'0' * 16}.killed").mkdir()
    edit(sources, "include/msctx/number.h", "41", "42")
    new = made(sources)
    assert not old.path.parent.exists()
    assert not old.log.exists()
    assert made(sources).path == new.path
    assert kept.path.exists()
    assert len([*cache.glob("objects/*")]) == ISAS + 1
    assert leftovers(cache) == []


def test_remove(cache, sources):
    assert native.remove() == 0
    assert not cache.exists()
    made(sources)
    assert native.remove() > 1000
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert not made(sources).cached


def test_remove_waits_for_a_build_in_progress(sources, watched, forked):
    watched.hold("common/api.cpp")
    builder = forked(lambda: made(sources).path)
    watched.until_stopped()
    remover = forked(native.remove)
    time.sleep(0.2)
    assert remover.process.is_alive()
    watched.let_go()
    assert "returned" in builder.ended()
    assert "returned" in remover.ended()
    assert not made(sources).cached


# The compiler


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def test_no_compiler(path, sources):
    reason = "no C++ compiler (set CXX, or install g++ or clang++)"
    assert native.obstacle(sources) == native.obstacle(sources) == reason
    with pytest.raises(NativeError) as caught:
        native.library(sources)
    assert str(caught.value) == reason


def test_what_is_cached_needs_no_compiler(sources, monkeypatch, tmp_path):
    built = native.build(sources=sources)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.obstacle(sources) == ""
    assert native.build(sources=sources).path == built.path
    edit(sources, "common/api.cpp", "return", "return 1 +")
    with pytest.raises(NativeError, match="no C\\+\\+ compiler"):
        native.build(sources=sources)


def test_an_obstacle_is_cheap_to_ask_for(sources):
    assert native.obstacle(sources) == ""
    began = time.perf_counter()
    for _ in range(20):
        native.obstacle(sources)
    assert (time.perf_counter() - began) / 20 < 0.01


def test_a_folder_that_is_refused_is_an_obstacle(cache):
    cache.mkdir()
    cache.chmod(0o777)
    assert "can be written by its group and everybody" in native.obstacle()


def test_another_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert native.obstacle() == "the native core is built on Linux alone"


@pytest.mark.parametrize(
    ("cxx", "why"),
    [
        ("/not/there/g++", "there is no such program"),
        ("false", "does not say its --version"),
        ("g++ '", "cannot be read as a command"),
    ],
)
def test_a_cxx_that_does_not_work_is_told_and_not_passed_over(sources, monkeypatch, cxx, why):
    native.build(sources=sources)
    monkeypatch.setenv("CXX", cxx)
    assert native.obstacle(sources).startswith(f"CXX={cxx}: {why}")
    with pytest.raises(NativeError, match="correct CXX, or unset it"):
        native.build(sources=sources)


def test_a_cxx_with_arguments(sources, monkeypatch, watched):
    monkeypatch.setenv("CXX", f"{watched.folder / 'c++'} -DMORE")
    made(sources)
    assert all(line.startswith("-DMORE ") for line in watched.runs)


OLD = """
case "$*" in *--version*) echo 'g++ 8.5.0';; *) echo "g++: error: unrecognized command line option '-std=c++20'" >&2; exit 1;; esac
"""


def test_a_compiler_that_is_too_old(path, sources):
    program(path / "g++", OLD)
    assert native.obstacle(sources) == (
        "g++: cannot compile C++20 (g++ 8.5.0): g++: error: unrecognized command line option '-std=c++20'; "
        "no other C++ compiler (set CXX, or install g++ or clang++)"
    )


def test_the_first_compiler_that_works_is_taken(path, monkeypatch):
    good = shutil.which("g++", path=os.defpath) or shutil.which("c++", path=os.defpath)
    program(path / "c++", OLD)
    program(path / "clang++", f'PATH={os.defpath} exec {good} "$@"')
    assert compiler.find().command == (str(path / "clang++"),)
    program(path / "c++", f'PATH={os.defpath} exec {good} "$@" # repaired')
    assert compiler.find().command == (str(path / "c++"),)


def test_clang_gets_no_openmp_of_its_own(sources):
    (sources / "glue").mkdir()
    (sources / "glue" / "threads.cpp").write_text(GLUE)
    made_of = recipe_of("library", "", sources)
    unit = next(unit for unit in made_of.units if unit.source.startswith("glue/"))
    for version, has in (("g++ 12.2.0", True), ("Debian clang version 16.0.6", False)):
        tool = compiler.Compiler(("/usr/bin/c++",), version)
        assert ("-fopenmp" in made_of.command(unit, tool, Path("x.o"))) == has


# What is seen of it


def test_a_terminal_sees_a_line_that_counts(sources, monkeypatch, forked):
    class Terminal:
        def __init__(self, stream):
            self.stream = stream

        def isatty(self):
            return True

        def __getattr__(self, name):
            return getattr(self.stream, name)

    def build():
        monkeypatch.setenv("TERM", "xterm")
        sys.stderr = Terminal(sys.stderr)
        return made(sources).compiled

    process = forked(build)
    assert process.ended() == {"returned": ISAS + 1}
    assert "msctx: building the native core (once):" in process.said
    assert f"{ISAS + 1}/{ISAS + 1}" in process.said
    assert "msctx: built the native core in" in process.said


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_no_stderr(sources, monkeypatch, tmp_path, stderr, capfd):
    if stderr == "closed":
        stderr = open(tmp_path / "closed", "w")  # noqa: SIM115
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert made(sources).compiled == ISAS + 1
    assert capfd.readouterr() == ("", "")
