"""The doctor outlives its patient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from msctx.cli.doctor import checks


def test_a_healthy_machine():
    found = {check.name: check for check in checks()}
    assert found["torch"].status == "ok"
    assert all(check.fix for check in found.values() if check.status != "ok")


def test_without_torch(passes_fresh):
    out = passes_fresh("""
        import sys
        sys.modules["torch"] = None
        from msctx.cli.doctor import checks
        for check in checks():
            print(check.name, check.status, check.fix)
    """)
    lines = out.splitlines()
    assert [line for line in lines if " broken " in line] == ["torch broken pip install 'torch>=2.11'"]
    assert any(line.startswith("numpy ok") for line in lines)


def test_a_check_that_fails_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("msctx.cli.doctor._compilers", lambda: 1 / 0)
    found = list(checks())
    assert any(check.status == "broken" and "ZeroDivisionError" in check.found for check in found)
    assert any(check.name == "numpy" for check in found)


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    ["migrate script.py", "doctor", "explain --device ascend matmul_allow_hf32=true"],
)
def test_torch_npu_without_cann_is_named_with_what_to_do(tmp_path: Path, command: str) -> None:
    """torch loads each installed package for devices, and raises where one cannot be loaded."""
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    (tmp_path / "torch_npu-2.13.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (tmp_path / "torch_npu-2.13.0.dist-info/entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (tmp_path / "script.py").write_text("import mindspore as ms\nms.set_context(device_target='Ascend', device_id=0)\n")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "COLUMNS": "400"}
    words = (sys.executable, "-m", "msctx", *command.split())
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    assert "Traceback" not in done.stderr
    if command.startswith("explain"):  # a plan of another machine needs no torch
        assert done.returncode == 0
        assert "torch.npu.matmul.allow_hf32 = True" in done.stdout
    else:
        assert done.returncode > 0
        told = " ".join((done.stdout + done.stderr).split())
        assert "Failed to load the backend extension: torch_npu" in told
        assert "source CANN's set_env.sh" in told
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in told
