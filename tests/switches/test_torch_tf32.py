"""The TF32 switches against torch's two APIs; the exactness of their restore is in tests/apply and tests/traps."""

from __future__ import annotations

import pytest
import torch

import msctx
from msctx.switches import SWITCHES

MATMUL, CUDNN = SWITCHES["torch.cuda.matmul.allow_tf32"], SWITCHES["torch.cudnn.allow_tf32"]


def test_a_process_that_mixed_both_apis_can_be_read():
    state = CUDNN.take()
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
            _ = torch.backends.cudnn.allow_tf32
        assert CUDNN.read() is False
    finally:
        CUDNN.put_back(state)
    assert torch.backends.cudnn.allow_tf32 is True


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_products_on_a_gpu_are_as_exact_as_requested():
    torch.manual_seed(0)
    a, b = torch.randn(2, 512, 512, device="cuda")
    right = a.double() @ b.double()
    for options, bound in (
        ({"matmul_algo": "strict", "matmul_allow_tf32": True}, 3e-6),
        ({"matmul_algo": "normal", "matmul_allow_tf32": False}, 3e-6),
        ({"matmul_algo": "normal", "matmul_allow_tf32": True, "allow_fp32_emulation": False}, 3e-6),
        ({"matmul_algo": "tf32"}, 1e-3),
    ):
        with msctx.context(matmul_algo="tf32"), msctx.context(options):
            assert torch.backends.cuda.matmul.allow_tf32 is (bound > 1e-5)
            found = a @ b
        assert (found.double() - right).abs().max() < bound * right.abs().max(), options
