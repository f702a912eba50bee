"""msctx build --cuda: what is compiled, reported and kept, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msctx.cli import main
from msctx.errors import NativeError
from msctx.native import artifacts
from msctx.native.cuda import build, nvrtc
from msctx.native.cuda.build import Usage
from msctx.native.cuda.manifest import ARCHS, DTYPES, KERNELS, LAYOUTS, REGISTERS, THREADS, Kernel, Module
from msctx.shipped import KERNEL_SOURCES

SMALL = 'extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * FACTOR; }\n'
MODULE = Module("copy.cu", ("FACTOR=2",))
COPY = Kernel("copy", MODULE, 32, 0, 32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("MSCTX_CACHE_DIR", str(cache))
    return cache


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "copy.cu").write_text(SMALL)
    return folder


@pytest.fixture
def tool() -> nvrtc.Nvrtc:
    try:
        return nvrtc.find()
    except NativeError as error:
        pytest.skip(str(error))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["build", *words])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


class Fake(nvrtc.Nvrtc):
    """Compiles nothing; returns what a test wants."""

    result: tuple[bytes | None, str] = None, ""

    def compile(self, files: Any, module: Module, arch: str) -> tuple[bytes | None, str]:
        data, log = self.result
        return data, log.replace("sm_80", arch)


LOG = """ptxas info    : Compiling entry function 'copy' for 'sm_80'
ptxas info    : Function properties for copy
    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 368 bytes cmem[0]
"""


# --- the manifest -----------------------------------------------------------------------------------------------------


def test_the_manifest_is_sound() -> None:
    assert len(KERNELS) == 3 * 2 * (3 * 6 + 1) + 4
    for name, kernel in KERNELS.items():
        assert name == kernel.name
        assert (KERNEL_SOURCES / "cuda" / kernel.module.source).exists()
        assert 2 * kernel.threads * kernel.registers <= 65536
        assert kernel.shared <= 48 << 10
        assert kernel.spills == 0
    assert set(THREADS) == set(REGISTERS)
    assert {name.split("_")[2] for name in KERNELS if "finish" not in name} == set(DTYPES.values())
    assert all(any(layout in name for name in KERNELS) for layout in LAYOUTS)


# --- the compiler and its reports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_is_compiled_and_reported(tool: nvrtc.Nvrtc, sources: Path, arch: str) -> None:
    (report,) = build.build([arch], kernels={"copy": COPY}, tool=tool, sources=sources)
    assert report.is_good
    assert report.usage is not None
    assert 0 < report.usage.registers <= 32
    assert 0 < report.bytes < report.cubin_bytes
    found = report.as_dict()
    assert (found["name"], found["arch"], found["compiler"], found["cached"]) == ("copy", arch, str(tool), False)
    assert (found["spill_stores"], found["spill_loads"], found["shared"]) == (0, 0, 0)
    assert build.cubin(MODULE, arch, tool=tool, sources=sources)[:4] == b"\x7fELF"


def test_what_is_compiled_is_kept_until_something_changes(tool: nvrtc.Nvrtc, sources: Path, own_cache: Path) -> None:
    def made(module: Module = MODULE, arch: str = "sm_80") -> bool:
        kernel = replace(COPY, module=module)
        (report,) = build.build([arch], kernels={"copy": kernel}, tool=tool, sources=sources)
        assert report.is_good
        return not report.cached

    assert [made(), made()] == [True, False]
    assert [made(Module("copy.cu", ("FACTOR=3",))), made(arch="sm_90a")] == [True, True]
    (sources / "other.cu").write_text("no part of it")
    assert not made()
    (sources / "new.cuh").write_text("// a header, which it may include")
    assert made()
    (sources / "copy.cu").write_text(f"// changed\n{SMALL}")
    assert made()
    for path in own_cache.glob("cuda/*.cubin"):
        path.write_bytes(path.read_bytes()[:-1])
    assert made()
    assert artifacts.remove() > 0
    assert not list(own_cache.glob("cuda/*"))
    assert made()


def test_an_error_of_a_source_is_reported_and_not_kept(tool: nvrtc.Nvrtc, sources: Path, own_cache: Path) -> None:
    (sources / "copy.cu").write_text(SMALL.replace("FACTOR", "nobody_knows_this"))
    for _ in range(2):
        (report,) = build.build(["sm_80"], kernels={"copy": COPY}, tool=tool, sources=sources)
        assert not report.is_good
        assert not report.cached
        assert "nobody_knows_this" in report.error
        assert report.as_dict()["registers"] is None
    assert not list(own_cache.glob("cuda/*.cubin"))
    with pytest.raises(NativeError, match=r"(?s)copy\.cu cannot be compiled for sm_80 by .*nobody_knows_this"):
        build.cubin(MODULE, "sm_80", tool=tool, sources=sources)


def test_budgets_that_are_exceeded_are_reported(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "result", (b"\x7fELF", LOG))
    tool = Fake("fake", "0.0")
    (report,) = build.build(["sm_80"], kernels={"copy": replace(COPY, shared=4095)}, tool=tool, sources=sources)
    assert report.usage == Usage(40, 12, 8, 4096)
    assert report.exceeded == [
        "40 registers, budget 32",
        "20 bytes of spills, budget 0",
        "4096 bytes of shared memory, budget 4095",
    ]
    enough = replace(COPY, shared=4096, registers=40, spills=20)
    (report,) = build.build(["sm_80"], kernels={"copy": enough}, tool=tool, sources=sources)
    assert report.cached
    assert report.is_good


# --- no compiler, no sources ----------------------------------------------------------------------------------------------


def test_without_a_compiler_the_error_lists_what_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setattr(nvrtc, "_places", lambda: iter([str(tmp_path / "libnvrtc.so.13")]))
    code, out, err = command("--cuda")
    assert (code, out) == (8, "")
    for part in ("no compiler for CUDA kernels: no libnvrtc.so.13 or", "cannot be loaded", "pip install 'msctx[cuda]'"):
        assert part in err
    assert json.loads(command("--cuda", "--json")[1])["exit_code"] == 8


# --- the command ------------------------------------------------------------------------------------------------------------


def reports(sources: Path, **changes: Any) -> Callable[..., list[build.Report]]:
    original, tool = build.build, Fake("fake", "0.0")
    return lambda archs, **more: original(archs, kernels={"copy": replace(COPY, **changes)}, tool=tool, sources=sources, **more)


@pytest.mark.parametrize("is_within", [True, False])
def test_the_command_reports_and_ends_with_1_beyond_a_budget(
    is_within: bool, command: Any, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "result", (b"\x7fELF", LOG))
    monkeypatch.setattr(build, "build", reports(sources, shared=4096, spills=20, registers=40 if is_within else 39))
    code, out, _ = command("--cuda", "--json", "--arch", "sm_90a", "--arch", "sm_80", "--arch", "sm_80")
    assert code == (0 if is_within else 1)
    found = json.loads(out)
    assert [r["arch"] for r in found] == ["sm_90a", "sm_80"]
    assert [r["within_budget"] for r in found] == [is_within] * 2
    assert [r["registers"] for r in found] == [40, 40]
    code, out, _ = command("--cuda")
    assert code == (0 if is_within else 1)
    assert ("40 registers, budget 39" in out) is not is_within
    assert f"{2 * is_within} of 2 kernels within their budgets, compiled by NVRTC 0.0" in out


def test_an_arch_that_is_not_compiled_for_is_refused(command: Any) -> None:
    code, _, err = command("--cuda", "--arch", "sm_12")
    assert code == 2
    assert "'sm_12' is not compiled for" in err
    assert "allowed: sm_80, sm_90a" in err
    code, _, err = command("--arch", "sm_80")
    assert code == 2
    assert "is given without --cuda" in err
