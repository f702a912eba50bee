"""The compiler: which one is taken, what is said where there is none, and what it is requested."""

import subprocess
from pathlib import Path

import pytest
from builds import GLUE, made

from msctx.errors import NativeError
from msctx.native import build as native
from msctx.native.build import glue_spec, kernels_spec


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_no_compiler_or_one_that_does_not_work(path, sources, monkeypatch):
    reason = "no C++ compiler (apt install g++, or name one in CXX)"
    assert native.obstacle() == native.obstacle() == reason
    with pytest.raises(NativeError) as caught:
        native.build()
    assert str(caught.value) == reason
    for cxx, why in (
        ("/not/there/g++", "[Errno 2] No such file or directory: '/not/there/g++'"),
        ("/bin/false", "cannot be used for C++20: exit code 1"),
        ("g++ '", "No closing quotation"),
    ):
        monkeypatch.setenv("CXX", cxx)
        assert native.obstacle() == f"CXX={cxx}: {why}; {reason}"
        with pytest.raises(NativeError, match="or name one in CXX"):
            native.build()


OLD = """
case "$*" in *--version*) echo 'g++ 8.5.0';; *) echo "g++: error: unrecognized command line option '-std=c++20'" >&2; exit 1;; esac
"""


def test_a_compiler_that_is_too_old(path, sources):
    (path / "g++").write_text(f"#!/bin/sh\n{OLD}\n")
    (path / "g++").chmod(0o700)
    assert native.obstacle() == (
        "g++: cannot be used for C++20: g++: error: unrecognized command line option '-std=c++20'; "
        "no C++ compiler (apt install g++, or name one in CXX)"
    )


def test_clang_gets_no_openmp_of_its_own(sources):
    (sources / "glue/units").mkdir(parents=True)
    (sources / "glue/units/threads.cpp").write_text(GLUE)
    made_of = glue_spec(kernels_spec(), Path("kernels.so"))
    for version, has in (("g++ 12.2.0", True), ("Debian clang version 16.0.6", False)):
        assert ("-fopenmp" in native._ninja(made_of, native.Compiler(("/usr/bin/c++",), version))) == has


def test_torchs_c_runtime_is_linked_where_a_compiler_would_bring_its_own(sources: Path, tmp_path: Path) -> None:
    """Its own would see none of torch's exceptions."""
    static = native.Compiler((*native.find_compiler().command, "-static-libstdc++"), "g++")
    (tmp_path / "one.cpp").write_text("#include <iostream>\nvoid print(int n) { std::cout << n; }\n")
    one, result = tmp_path / "one.o", tmp_path / "one.so"
    subprocess.run([*static.command, "-fPIC", "-c", tmp_path / "one.cpp", "-o", one], check=True)
    kernels = made()
    last = glue_spec(kernels_spec(), kernels).link
    subprocess.run([*static.command, "-shared", one, *last, "-o", result], check=True, cwd=tmp_path)
    assert b"libstdc++.so.6" in result.read_bytes()
