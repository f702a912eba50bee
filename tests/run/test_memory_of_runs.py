"""The memory of a run: its peak, and a cap that is met."""

import gc
import json

import pytest
import torch

from msctx.errors import EntryFailed
from msctx.run.experiment_and_entry import read
from msctx.run.runner import run_experiment

MB = 2**20


@pytest.fixture(autouse=True)
def nothing_is_left_of_tests_before(only_new_objects_are_searched):
    gc.collect()


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
"""


def test_a_run_has_its_peak(job, tmp_path):
    result = run_experiment(
        read(job(NETWORK.format(batches=[16, 256, 16]), "{max_device_memory: 256MB}")), str(tmp_path / "run")
    )
    assert 40 * MB < result["peak_memory_bytes"] < 80 * MB


def test_a_run_that_meets_its_cap_fails(job, tmp_path):
    file = job(NETWORK.format(batches=[16, 512, 700]), "{max_device_memory: 96MB}")
    with pytest.raises(EntryFailed) as failed:
        run_experiment(read(file), str(tmp_path / "run"))
    text = str(failed.value)
    assert "torch.OutOfMemoryError" in text
    assert f"The cap is max_device_memory ({file}" in text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["restored"] is True
    torch.empty(100 * MB, dtype=torch.uint8)


@pytest.mark.parametrize("options", ["{}", "{max_device_memory: 1MB, device_target: CPU}"])
def test_an_accelerators_peaks_are_recorded_whether_host_memory_is_counted_or_not(options, job, far, tmp_path):
    source = """
        import torch

        def main(run):
            held = torch.empty(1000, dtype=torch.uint8, device="far")
            for size in (5000, 50_000):
                torch.empty(size, dtype=torch.uint8, device="far")
    """
    far(f"""
        import torch
        from msctx.run.experiment_and_entry import read
        from msctx.run.runner import run_experiment

        torch.empty(2**20, dtype=torch.uint8, device="far")
        run_experiment(read({job(source, options)!r}), {str(tmp_path / "run")!r})
    """)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["peak_accelerator_bytes"] == 51_000
    assert ("peak_memory_bytes" in result) == ("max_device_memory" in options)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator's memory is recorded always")
def test_without_counted_memory_nothing_is_recorded(job, tmp_path):
    result = run_experiment(read(job(NETWORK.format(batches=[16]), "{deterministic: ON}")), str(tmp_path / "run"))
    assert "peak_memory_bytes" not in result
