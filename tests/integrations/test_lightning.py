"""The callback for a Lightning Trainer inside a with-block: the loss is scaled, the model is watched, no hook is left."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.amp import watched
from msctx.memory.ddp_and_fsdp_communication import data_parallel
from msctx.native.watched_models import models

lightning = pytest.importorskip("lightning.pytorch")

from msctx.integrations.lightning import MsctxCallback  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


class Small(lightning.LightningModule):
    """Its loss is so small that gradients in float16 vanish, or as large as *factor* makes it."""

    def __init__(self, factor: float = 2.0**-24, fails: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))
        self.factor, self.fails = factor, fails

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("on purpose")
        self.wrappers = [one for model in models() for one in data_parallel(model)]
        return self.layers(batch).float().square().mean() * self.factor

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1 / self.factor)


def fit(model: Small, callback: MsctxCallback, folder: Path, **more: Any) -> None:
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    options = {"accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder, "callbacks": [callback], **quiet, **more}
    data = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    lightning.Trainer(**options).fit(model, torch.utils.data.DataLoader(data, batch_size=2))


@pytest.mark.parametrize("more", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1 * 2.0**-24}])
def test_a_loss_in_float16_is_scaled(more, tmp_path):
    found = {}
    with warnings.catch_warnings(), watched() as counted:
        warnings.simplefilter("error", msctx.MsctxWarning)
        for mode in ("must_keep_origin_dtype", "allow_mix_precision_fp16"):
            with msctx.context(precision_mode=mode) as ctx:
                fit(model := Small(), MsctxCallback(ctx), tmp_path, **more)
            found[mode] = [p.detach() for p in model.parameters()]
            assert not any(p._backward_hooks for p in model.parameters())
    for plain, mixed, first in zip(*found.values(), Small().parameters(), strict=True):
        moved = float((plain - first).abs().max())
        assert moved > 0
        torch.testing.assert_close(mixed, plain, rtol=0, atol=0.05 * moved)
    assert counted() == {"scaled_steps": 4 if more else 8, "overflow_steps": 0}


@pytest.mark.parametrize("mode", ["force_fp32", "allow_mix_precision_fp16"])
def test_a_trainer_with_a_precision_of_its_own_is_reported(mode, tmp_path):
    told = rf"dtype=bfloat16\) overrides precision_mode={mode} .*remove the autocast \(or the framework's mixed precision"
    with pytest.warns(msctx.MsctxWarning, match=told), msctx.context(precision_mode=mode) as ctx:
        fit(Small(), MsctxCallback(ctx), tmp_path, precision="bf16-mixed", max_epochs=1)


def test_after_an_exception_no_hook_is_left(tmp_path):
    model = Small(fails=True)
    with pytest.raises(RuntimeError, match="on purpose"), msctx.context(precision_mode="allow_mix_precision_fp16") as ctx:
        fit(model, MsctxCallback(ctx), tmp_path)
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.usefixtures("one_rank")
def test_the_data_parallel_model_is_watched(tmp_path):
    with msctx.context(conv_fprop_algo="gemm") as ctx:
        fit(model := Small(), MsctxCallback(ctx), tmp_path, strategy="ddp", devices=1)
    assert [one.module for one in model.wrappers] == [model]
    assert {row.module for row in ctx.choices()} == {"layers.0"}
