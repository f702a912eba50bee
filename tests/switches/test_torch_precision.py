"""The TF32 switches against torch's two APIs; the exactness of their restore is in tests/apply and tests/traps."""

from __future__ import annotations

import pytest
import torch
from torch import _C

import msctx
from msctx.switches import SWITCHES, torch_precision

MATMUL, CUDNN = SWITCHES["torch.cuda.matmul.allow_tf32"], SWITCHES["torch.cudnn.allow_tf32"]


@pytest.mark.parametrize("switch", [MATMUL, CUDNN], ids=lambda s: s.name)
@pytest.mark.parametrize("value", [True, False])
def test_both_apis_agree_after_a_write(switch, value):
    state = switch.take()
    try:
        switch.set(value)
        assert switch.read() is value
        assert (torch.backends.cuda.matmul.allow_tf32 if switch is MATMUL else torch.backends.cudnn.allow_tf32) is value
        with torch.backends.cudnn.flags(enabled=True):
            pass
    finally:
        switch.put_back(state)


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


def test_a_precision_of_later_versions_ends_where_exact_products_are_requested_and_comes_back(monkeypatch):
    """A string that this version refuses: it is kept beside torch's own node, which is ieee meanwhile."""
    found, unknown = MATMUL.take(), {}
    get, put, write = torch_precision._get, torch_precision._set, _C._set_float32_matmul_precision

    def put_any(*given):
        *node, value = given
        unknown.pop(tuple(node), None)
        if value == "bfx9":
            unknown[tuple(node)] = value
        put(*node, "ieee" if value == "bfx9" else value)

    def write_all(precision):
        unknown.clear()
        write(precision)

    with monkeypatch.context() as later:
        later.setattr(torch_precision, "_get", lambda *node: unknown.get(node) or get(*node))
        later.setattr(torch_precision, "_set", put_any)
        later.setattr(_C, "_set_float32_matmul_precision", write_all)
        put_any("cuda", "matmul", "bfx9")
        assert msctx.state()["torch.fp32_precision.cuda.matmul"] == "bfx9"
        for value, inside in ((True, "tf32"), (False, "ieee")):
            assert not MATMUL.is_satisfied(value)
            state = MATMUL.take()
            MATMUL.set(value)
            assert msctx.state()["torch.fp32_precision.cuda.matmul"] == inside
            MATMUL.put_back(state)
            assert msctx.state()["torch.fp32_precision.cuda.matmul"] == "bfx9"
    MATMUL.put_back(found)


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
