"""LossScaling with Accelerate: its backward(), clipping and accumulation."""

from __future__ import annotations

import pytest
import torch

import msctx
from msctx.integrations.scaling import LossScaling

accelerate = pytest.importorskip("accelerate")


@pytest.mark.usefixtures("one_thread")
def test_accelerate() -> None:
    found = {}
    for mode in ("must_keep_origin_dtype", "allow_mix_precision_fp16"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        with msctx.context(precision_mode=mode) as ctx:
            model, optimizer = accelerator.prepare(model, optimizer)
            with LossScaling(ctx, model, optimizer) as scaling:
                for step in range(8):
                    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
                    with accelerator.accumulate(model):
                        accelerator.backward(scaling(model(x).float().square().mean() * 2.0**-24))
                        accelerator.clip_grad_norm_(model.parameters(), 2.0**-24)
                        optimizer.step()
                        optimizer.zero_grad()
        found[mode] = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (scaling.scaler.steps, scaling.scaler.overflow_steps) == (4, 0)
    torch.testing.assert_close(*found.values(), rtol=0, atol=2e-3)
    assert not optimizer.optimizer._optimizer_step_pre_hooks
