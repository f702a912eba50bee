"""msctx build --cuda: what is compiled, reported and kept, and how it fails."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.cuda import compiled_kernels
from msctx.native.cuda.compiled_kernels import ARCHS, DTYPES, KERNELS, MODULES, THREADS, Module, sum_size

SMALL = 'extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * FACTOR; }\n'
MODULE = Module("copy.cu", ("FACTOR=2",))
REGISTERS = {
    "fprop": {"any": 72, "3x3": 64, "5x5": 96, "7x7": 168},
    "dgrad": {"any": 72, "3x3": 80, "5x5": 128, "7x7": 112},
    "wgrad": {"any": 136, "3x3": 80, "5x5": 128, "7x7": 176, "finish": 48},
}
"""Budgets by the window. Times threads, a processor's 65536 hold two blocks at the least."""
AT_ONCE = 8
"""Taps that are summed over a block's threads at once: ``at_once`` of depthwise_wgrad.cu."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("MSCTX_CACHE_DIR", str(cache))
    return cache


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    monkeypatch.setattr(compiled_kernels, "SOURCES", folder)
    monkeypatch.setattr(compiled_kernels, "MODULES", [MODULE])
    (folder / "copy.cu").write_text(SMALL)
    return folder


@pytest.fixture
def tool() -> compiled_kernels.Nvrtc:
    try:
        return compiled_kernels.find_nvrtc()
    except NativeError as error:
        pytest.skip(str(error))


class Fake(compiled_kernels.Nvrtc):
    """Compiles nothing; returns what a test wants."""

    result: tuple[bytes | None, str] = None, ""

    def compile(self, files: Any, module: Module, arch: str) -> tuple[bytes | None, str]:
        data, log = self.result
        return data, log.replace("sm_80", arch)


# --- the manifest -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_take_no_more_than_their_budgets(tool: compiled_kernels.Nvrtc, arch: str) -> None:
    found = set()
    for report in compiled_kernels.build([arch]):
        assert not report.error
        for part in report.log.split("Compiling entry function ")[1:]:
            name = part.split("'")[1]
            numbers = [int(re.findall(rf"(\d+){what}", part)[0]) for what in (" bytes spill stores", " bytes spill loads")]
            registers = int(re.findall(r"Used (\d+) registers", part)[0])
            shared = int((re.findall(r"(\d+)(?:\+\d+)? bytes smem", part) or [0])[0])
            op, window = name.split("_")[1], re.findall(r"any|finish|\dx\d", name)[0]
            dtype = next(dtype for dtype, element in DTYPES.items() if f"_{element}" in name)
            assert numbers == [0, 0], name
            assert registers <= REGISTERS[op][window], name
            assert shared <= (
                AT_ONCE * THREADS * sum_size(dtype) if (op, window) != ("wgrad", "finish") and op == "wgrad" else 0
            )
            found.add(name)
    assert found == set(KERNELS)


# --- the compiler and its reports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_a_module_is_compiled_and_reported(tool: compiled_kernels.Nvrtc, sources: Path, arch: str) -> None:
    (report,) = compiled_kernels.build([arch])
    assert "Used " in report.log
    found = report.as_dict()
    assert found.pop("bytes") > 100
    assert found == {"module": str(MODULE), "arch": arch, "compiler": str(tool), "cached": False, "error": ""}
    assert compiled_kernels.cubin(MODULE, arch)[:4] == b"\x7fELF"


def test_what_is_compiled_is_kept_until_something_changes(
    tool: compiled_kernels.Nvrtc, sources: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(module: Module = MODULE, arch: str = "sm_80") -> bool:
        monkeypatch.setattr(compiled_kernels, "MODULES", [module])
        (report,) = compiled_kernels.build([arch])
        assert not report.error
        return not report.cached

    assert [made(), made()] == [True, False]
    assert [made(Module("copy.cu", ("FACTOR=3",))), made(arch="sm_90a")] == [True, True]
    (sources / "other.cu").write_text("no part of it")
    assert not made()
    (sources / "new.cuh").write_text("// a header, which it may include")
    assert made()
    (sources / "copy.cu").write_text(f"// changed\n{SMALL}")
    assert made()
    assert cachedir.remove() > 0
    assert not list(own_cache.glob("cuda/*.cubin"))
    assert made()


def test_an_error_of_a_source_is_reported_and_not_kept(tool: compiled_kernels.Nvrtc, sources: Path, own_cache: Path) -> None:
    (sources / "copy.cu").write_text(SMALL.replace("FACTOR", "nobody_knows_this"))
    for _ in range(2):
        (report,) = compiled_kernels.build(["sm_80"])
        assert not report.cached
        assert "nobody_knows_this" in report.error
    assert not list(own_cache.glob("cuda/*.cubin"))
    with pytest.raises(NativeError, match=r"(?s)copy\.cu cannot be compiled for sm_80 by .*nobody_knows_this"):
        compiled_kernels.cubin(MODULE, "sm_80")


# --- the command ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [(b"\x7fELF", "ptxas info"), (None, "an error")], ids=["compiled", "not compiled"])
def test_the_command_reports_and_ends_with_1_where_a_module_fails(
    result: tuple[bytes | None, str], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "result", result)
    monkeypatch.setattr(compiled_kernels, "find_nvrtc", lambda: Fake("fake", "0.0"))
    count = len(MODULES) * (result[0] is not None)
    code, out, err = command("build", "--cuda", "--json")
    assert code == (0 if count else 1)
    assert ("an error" in err) == (not count)
    assert {(r["module"], r["arch"]) for r in json.loads(out)} == {
        (str(m), arch) for m in MODULES for arch in ("sm_80", "sm_90a")
    }
    code, out, err = command("build", "--cuda", "--verbose")
    assert code == (0 if count else 1)
    assert f"{2 * count} of {2 * len(MODULES)} modules compiled by NVRTC 0.0" in out
    assert result[1] in err


def test_what_the_command_refuses(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernels, "_places", lambda: iter([str(tmp_path / "libnvrtc.so.13")]))
    code, out, err = command("build", "--cuda")
    assert (code, out) == (8, "")
    for part in ("no compiler for CUDA kernels: no libnvrtc.so.13 or", "cannot be loaded", "pip install nvidia-cuda-nvrtc"):
        assert part in err
    assert json.loads(command("build", "--cuda", "--json")[1])["exit_code"] == 8
