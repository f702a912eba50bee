"""The stamp of results on CUDA, with GPUs that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tuned

from msctx.errors import MsctxWarning, NativeError
from msctx.native import core, tuning
from msctx.native.cuda import build, nvrtc
from msctx.native.environment_key import Stamp, mixed, stamp
from msctx.shipped import KERNEL_SOURCES

Gpus = Callable[..., None]


def of_cuda() -> Stamp:
    stamp.cache_clear()
    return stamp(core.load(), "cuda")


def test_it_names_the_gpu_its_software_and_our_kernels(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(("H200", 9, 0), ("H200", 9, 0))
    monkeypatch.setattr(nvrtc, "find", lambda: nvrtc.Nvrtc("libnvrtc.so", "13.0"))
    found = of_cuda()
    assert (found.cpu, found.flags, found.isa) == ("H200", "sm_90, driver 580.1", "cuDNN 91900")
    assert found.torch.endswith(" CUDA 13.0")
    assert (found.kernels, found.compiler) == (build.origin()[:16], "NVRTC 13.0")
    assert (found.place, stamp(core.load()).place) == ("cuda", "cpu")


def test_results_of_other_kernels_are_not_used_and_those_of_another_compiler_are(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(("H200", 9, 0))
    monkeypatch.setattr(nvrtc, "find", lambda: nvrtc.Nvrtc("libnvrtc.so", "13.0"))
    before = of_cuda()
    monkeypatch.setattr(nvrtc, "find", lambda: nvrtc.Nvrtc("libnvrtc.so", "13.1"))
    assert before.differs(of_cuda()) == ([], ["compiler"])
    folder = tmp_path / "cuda"
    folder.mkdir()
    for path in (KERNEL_SOURCES / "cuda").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "KERNEL_SOURCES", tmp_path)
    assert not before.differs(of_cuda())[0]
    with (folder / "depthwise.cuh").open("a") as file:
        file.write("// faster\n")
    assert before.differs(of_cuda())[0] == ["kernels"]


def test_it_is_there_without_a_compiler_or_sources(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(("H200", 9, 0))

    def none() -> nvrtc.Nvrtc:
        raise NativeError("no compiler")

    monkeypatch.setattr(nvrtc, "find", none)
    assert replace(of_cuda(), kernels="") == of_cuda()
    monkeypatch.setattr(build, "KERNEL_SOURCES", tmp_path)
    assert (of_cuda().kernels, of_cuda().compiler) == ("", "")


def test_gpus_of_several_models_share_nothing_by_a_file(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(("H200", 9, 0), ("H200", 9, 0))
    assert not mixed("cuda")
    path = tmp_path / "tuning.json"
    one = tuned.groups(tuned.entry("a"), stamp=of_cuda())
    path.write_text(tuning.tuning_file.text_of(one))
    gpus(("H200", 9, 0), ("A100", 8, 0))
    assert not mixed("cpu")
    table = tuning._Table(7, path, "", 0, "cuda")
    told: list[object] = []
    monkeypatch.setattr(core.Core, "learn", lambda *given: told.append(given))
    with pytest.warns(MsctxWarning, match=r"several models \(H200, A100\).*neither read from the tuning file nor kept in it"):
        table.refresh(core.load())
    table.keep(core.load(), [tuned.entry("b")])
    assert not told
    assert [e["problem"] for g in json.loads(path.read_text())["groups"] for e in g["entries"]] == ["a"]
