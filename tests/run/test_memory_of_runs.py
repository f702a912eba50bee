"""The memory of a run: its phases in memory.json, and what is said when a cap is met."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
from msctx.errors import EntryFailed
from msctx.run.config import read
from msctx.run.runner import run_experiment

MB = 2**20


@pytest.fixture
def job(tmp_path: Path) -> Any:
    def job(source: str, context: str) -> str:
        (tmp_path / "job.py").write_text(textwrap.dedent(source))
        file = tmp_path / "job.yaml"
        file.write_text(f"context: {context}\nexperiment: {{entry: job.py:main}}\n")
        return str(file)

    return job


NETWORK = """
    import torch
    from torch import nn

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Linear(64, 1 << 15)
            self.head = nn.Linear(1 << 15, 8)

        def forward(self, x):
            return self.head(self.wide(x))

    def main(run):
        model = Body()
        for batch in {batches}:
            loss = model(torch.randn(batch, 64)).sum()
            del loss
            run.log(batch=batch)
"""


def test_each_phase_has_its_peak(job: Any, tmp_path: Path) -> None:
    result = run_experiment(
        read(job(NETWORK.format(batches=[16, 256, 16]), "{max_device_memory: 256MB}")), str(tmp_path / "run")
    )
    held = json.loads((tmp_path / "run" / "memory.json").read_text())
    peaks = [phase["peak_bytes"] for phase in held["phases"]]
    assert len(peaks) == 4, "three that were logged, and what came after"
    assert peaks[1] - peaks[0] > 28 * MB
    assert peaks[1] - peaks[2] > 28 * MB
    assert result["peak_memory_bytes"] == held["peak_bytes"] == max(peaks)
    assert held["caps"][0]["limit_bytes"] == 256 * MB
    assert "when_refused" not in held


def test_a_run_that_meets_its_cap_says_where_the_memory_was(job: Any, tmp_path: Path) -> None:
    file = job(NETWORK.format(batches=[16, 512, 700]), "{max_device_memory: 96MB}")
    with pytest.raises(EntryFailed) as failed:
        run_experiment(read(file), str(tmp_path / "run"))
    text = str(failed.value)
    assert "torch.OutOfMemoryError" in text
    assert f"The cap is max_device_memory ({file}" in text
    held = json.loads((tmp_path / "run" / "memory.json").read_text())["when_refused"]
    assert held[0]["module"] == "outside of forward passes"  # the parameters
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["restored"] is True
    torch.empty(100 * MB, dtype=torch.uint8)


def test_activations_belong_to_their_modules(job: Any, tmp_path: Path) -> None:
    source = """
        import torch
        from torch import nn

        def main(run):
            model = nn.Sequential(nn.Linear(64, 1 << 15), nn.ReLU(), nn.Linear(1 << 15, 1 << 11))
            model(torch.randn(256, 64))
            model(torch.randn(512, 64))
    """
    with pytest.raises(EntryFailed, match=r"Sequential\.0"):
        run_experiment(read(job(source, "{max_device_memory: 340MB}")), str(tmp_path / "run"))
    held = {row["module"]: row["bytes"] for row in json.loads((tmp_path / "run" / "memory.json").read_text())["when_refused"]}
    assert held["Sequential.0"] == 512 * 2**15 * 4


def test_without_the_pool_nothing_is_recorded(job: Any, tmp_path: Path) -> None:
    result = run_experiment(read(job(NETWORK.format(batches=[16]), "{deterministic: ON}")), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "memory.json").exists()
    assert "peak_memory_bytes" not in result


def test_hooks_and_purposes_are_gone_after_a_run(job: Any, tmp_path: Path) -> None:
    from torch.nn.modules import module

    run_experiment(read(job(NETWORK.format(batches=[16]), "{max_device_memory: 256MB}")), str(tmp_path / "run"))
    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    assert msctx.memory_stats()["current_bytes"] == 0


def test_compiled_code_stays_whole(job: Any, tmp_path: Path) -> None:
    source = """
        import torch
        from torch import nn

        def main(run):
            model = torch.compile(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), backend="eager", fullgraph=True)
            return {"size": model(torch.ones(1, 4)).numel()}
    """
    result = run_experiment(read(job(source, "{max_device_memory: 256MB}")), str(tmp_path / "run"))
    assert result["size"] == 4
    torch.compiler.reset()
