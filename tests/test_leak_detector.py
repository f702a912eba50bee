"""The detector of leaks in conftest.py fails exactly the tests that leak."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAKS = """
import os, torch, msctx, pytest
from torch.nn.modules import module
from msctx.context import ledger

def test_flag():
    torch._C._set_mkldnn_deterministic(True)

def test_variable():
    os.environ["OMP_LEAKED"] = "1"

def test_scope():
    msctx.context(runtime_num_threads=1).__enter__()

def test_base():
    msctx.set_context(max_call_depth=77)

def test_base_that_assigns_nothing():
    msctx.set_context(strict=True)

def test_hook():
    module.register_module_forward_hook(lambda *call: None)

def test_precision():
    torch.backends.mkldnn.rnn.fp32_precision = "bf16"

def test_random_numbers():
    torch.manual_seed(5)

def test_clean(request):
    assert torch.initial_seed() != 5
    assert msctx.get_context("strict") is None
    assert not torch._C._get_mkldnn_deterministic()
    assert torch.get_num_threads() == request.config.threads
    with msctx.context(deterministic="ON", runtime_num_threads=1):
        pass

def pytest_configure(config):
    config.threads = torch.get_num_threads()
"""


@pytest.mark.full
def test_the_detector_fails_exactly_the_tests_that_leak(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "test_leaks",
        "--rootdir=.",
        "test_leaks.py",
    ]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *map(str, Path(__file__).resolve().parents[:2])])
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    told = done.stdout
    failed = {line.split("::")[1].split()[0] for line in told.splitlines() if line.startswith(("ERROR ", "FAILED "))}
    assert failed == {
        "test_flag",
        "test_variable",
        "test_scope",
        "test_base",
        "test_base_that_assigns_nothing",
        "test_hook",
        "test_precision",
    }, told
    assert done.returncode == 1, told
    assert "torch.mkldnn.deterministic: False became True" in told
    assert "env.OMP_LEAKED: None became" in told
    assert "is still open" in told
    assert "the set_context layer is still in force" in told
