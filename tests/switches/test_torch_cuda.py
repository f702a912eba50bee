"""CUDA's switches: the flags in every build of torch, the rest on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import msctx
from msctx.switches import SWITCHES

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GB = 2**30


@pytest.mark.parametrize("name", ["torch.cudnn.deterministic", "torch.cudnn.benchmark"])
def test_flags_are_written_and_put_back(name):
    switch = SWITCHES[name]
    found = switch.take()
    switch.set(not found)
    assert switch.read() is not found
    switch.put_back(found)
    assert switch.read() is found


def test_what_needs_a_device_is_not_there_without_one():
    here = torch.cuda.is_available()
    for name in ("torch.cuda.current_device", "torch.cuda.memory_cap", "torch.cuda.synchronize_each_op"):
        assert SWITCHES[name].available() is here
        assert (name in msctx.state()) is here


@cuda
@pytest.mark.cuda
def test_a_cap_holds_and_ends():
    torch.ones(1, device="cuda")
    with msctx.context(max_device_memory="1GB"), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GB, dtype=torch.uint8, device="cuda")
    del_me = torch.empty(2 * GB, dtype=torch.uint8, device="cuda")
    assert del_me.numel() == 2 * GB


@cuda
@pytest.mark.cuda
def test_tf32_changes_the_error_of_a_product_and_is_put_back():
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()

    def error() -> float:
        return ((a @ b).double() - exact).abs().max().item()

    with msctx.context(matmul_allow_tf32=False):
        strict = error()
    with msctx.context(matmul_allow_tf32=True):
        rounded = error()
    assert rounded > 10 * strict


@cuda
@pytest.mark.cuda
def test_determinism_in_a_fresh_process():
    code = (
        "import msctx, torch, os\n"
        "msctx.set_context(deterministic='ON', seed=0, strict=True)\n"
        "assert os.environ['CUBLAS_WORKSPACE_CONFIG'] == ':4096:8' and torch.backends.cudnn.deterministic\n"
        "x = torch.randn(64, 64, device='cuda', requires_grad=True)\n(x @ x).sum().backward()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
