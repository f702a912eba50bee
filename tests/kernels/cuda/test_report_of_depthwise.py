"""The report on a GPU launches our depthwise kernels rightly: its launcher against an emulation of them."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated import Emulation

from msctx.native import build
from msctx.native.cuda.depthwise import Launch

BENCH = Path(__file__).parents[3] / "bench"


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_our_kernels_beside_torch(emulation: Emulation, monkeypatch: pytest.MonkeyPatch, direction: str, layout: str) -> None:
    build.library()
    monkeypatch.syspath_prepend(str(BENCH))
    for name in {path.stem for path in BENCH.glob("*.py")} & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    import cuda_figures as report

    class Kernels:
        def launch(self, launch: Launch, pointers: dict[str, int], stream: int) -> None:
            emulation.launch(launch, pointers)

    monkeypatch.setattr(report, "loaded", lambda module: Kernels())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(report, "SECONDS", 0.0)
    layer = report.Layer("", 3, 6, 9, 3, 2, 3)
    found: dict[str, Any] = {}
    for arithmetic in (report.STRICT, report.BFLOAT16):
        problem = report.MeasuredProblem(layer, 2, direction, arithmetic, layout, torch.device("cpu"))
        found[arithmetic.name] = {figure.name: figure for figure in report.depthwise_figures(problem)}["msctx"]
    assert {name: figure.why for name, figure in found.items()} == {"float32": "", "bfloat16": ""}
    assert all(figure.ratio for figure in found.values())
