"""Ascend's switches: listed always, there only with torch_npu and a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import msctx
from msctx.switches import SWITCHES, present, torch_npu

NAMES = [name for name in SWITCHES if name.startswith("torch.npu.")]
npu = pytest.mark.skipif(not (hasattr(torch, "npu") and torch.npu.is_available()), reason="no Ascend NPU")


@pytest.mark.skipif(hasattr(torch, "npu"), reason="torch_npu is here")
def test_none_exists_without_torch_npu():
    assert not any(SWITCHES[name] in present() for name in NAMES)
    assert not any(name in msctx.state() for name in NAMES)


def test_the_folder_of_recorded_operators_is_compared_by_where_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    switch = SWITCHES["torch.npu.aoe_folder"]
    monkeypatch.setattr(torch_npu, "npu", lambda: SimpleNamespace(set_aoe=sent.append))
    monkeypatch.setattr(torch_npu, "_recorded", [])
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    switch.set("tuned")
    assert switch.is_satisfied(str(first / "tuned"))
    monkeypatch.chdir(second)
    assert not switch.is_satisfied("tuned"), "another place"
    assert switch.is_satisfied("../first/tuned")
    assert sent == [str(first / "tuned")]


@npu
@pytest.mark.npu
def test_hf32_is_written_and_put_back():
    found = torch.npu.matmul.allow_hf32
    with msctx.context(matmul_allow_hf32=not found):
        assert torch.npu.matmul.allow_hf32 is not found
    assert torch.npu.matmul.allow_hf32 is found
