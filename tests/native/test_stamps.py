"""The stamp of results on CUDA, with GPUs that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from msctx.native import core
from msctx.native.cuda import driver, plans
from msctx.native.tuning_file import Stamp, stamp
from msctx.shipped import KERNEL_SOURCES

Gpus = Callable[..., None]


def of_cuda() -> Stamp:
    stamp.cache_clear()
    return stamp(core.load(), "cuda")


def test_it_names_the_gpu_its_software_and_our_kernels(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(("H200", 9, 0), ("H200", 9, 0))
    monkeypatch.setattr(driver, "find", lambda: driver.Nvrtc("libnvrtc.so", "13.0"))
    found = of_cuda()
    assert (found.cpu, found.flags, found.isa) == ("H200", "sm_90, driver 580.1", "cuDNN 91900")
    assert found.torch.endswith(" CUDA 13.0")
    assert (found.kernels, found.compiler) == (plans.origin()[:16], "NVRTC 13.0")
    assert (found.place, stamp(core.load()).place) == ("cuda", "cpu")


def test_results_of_other_kernels_are_not_used_and_those_of_another_compiler_are(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(("H200", 9, 0))
    monkeypatch.setattr(driver, "find", lambda: driver.Nvrtc("libnvrtc.so", "13.0"))
    before = of_cuda()
    monkeypatch.setattr(driver, "find", lambda: driver.Nvrtc("libnvrtc.so", "13.1"))
    assert before.differs(of_cuda()) == ([], ["compiler"])
    folder = tmp_path / "cuda"
    folder.mkdir()
    for path in (KERNEL_SOURCES / "cuda").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(plans, "KERNEL_SOURCES", tmp_path)
    assert not before.differs(of_cuda())[0]
    with (folder / "depthwise.cuh").open("a") as file:
        file.write("// faster\n")
    assert before.differs(of_cuda())[0] == ["kernels"]
