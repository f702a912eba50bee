"""The TF32 switches against torch's two APIs; the exactness of their restore is in tests/apply and tests/traps."""

from __future__ import annotations

import pytest
import torch

from msctx.switches import SWITCHES

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
