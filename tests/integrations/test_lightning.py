"""MsctxCallback under a Lightning Trainer: options hold inside each of its functions, and nothing is left after them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.amp import watched
from msctx.memory.reductions import data_parallel
from msctx.memory.watched import models

lightning = pytest.importorskip("lightning.pytorch")

from msctx.integrations.lightning import MsctxCallback  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


class Digits(lightning.LightningModule):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))
        self.fails, self.seen = fails, []

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        if self.fails:
            raise RuntimeError("on purpose")
        return self.layers(batch).float().square().mean()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("loss", self.loss(batch))

    def test_step(self, batch: torch.Tensor) -> None:
        self.loss(batch)

    def predict_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Logger(lightning.loggers.logger.DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(metrics)


def data() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.randn(8, 1, 8, 8), batch_size=2)


def trainer(folder: Path, *callbacks: MsctxCallback, **more: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    options = {"accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder, "callbacks": [*callbacks]}
    return lightning.Trainer(**{**quiet, **options, **more})


@pytest.mark.parametrize("function", ["fit", "validate", "test", "predict"])
def test_options_hold_inside_and_everything_is_restored(function: str, tmp_path: Path) -> None:
    model, before = Digits(), msctx.state()
    getattr(trainer(tmp_path, MsctxCallback(deterministic="ON")), function)(model, data())
    assert model.seen
    assert all(model.seen)
    assert msctx.diff(before, msctx.state()).keys() <= {"rng.torch.cpu", "rng.torch"}


@pytest.mark.parametrize("function", ["fit", "predict"])
def test_an_exception_restores_everything(function: str, tmp_path: Path) -> None:
    callback = MsctxCallback(deterministic="ON", precision_mode="allow_mix_precision_fp16")
    model = Digits(fails=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        getattr(trainer(tmp_path, callback), function)(model, data())
    assert model.seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not any(p._backward_hooks for p in model.parameters())
    model.fails = False
    trainer(tmp_path, callback).fit(model, data())
    assert all(model.seen)
    assert callback.scaling.scaler.steps == 8


@pytest.mark.parametrize(
    "clip", [{}, {"gradient_clip_val": 0.1}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}]
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_in_float16_is_scaled(clip: dict[str, Any], accumulate: int, tmp_path: Path) -> None:
    """The weights are those of float32 but for float16's rounding, although the loss is so small that its gradients vanish."""

    class Small(Digits):
        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return super().loss(batch) * 2.0**-24

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1 * 2.0**24)

    torch.manual_seed(1)
    batches, found = data(), {}
    clip = {**clip, "gradient_clip_val": clip["gradient_clip_val"] * 2.0**-24} if clip else {}
    with warnings.catch_warnings(), watched() as counted:
        warnings.simplefilter("error", msctx.MsctxWarning)
        for mode in ("must_keep_origin_dtype", "allow_mix_precision_fp16"):
            model = Small()
            more = {"accumulate_grad_batches": accumulate, **clip}
            trainer(tmp_path, MsctxCallback(precision_mode=mode), **more).fit(model, batches)
            found[mode] = [p.detach() for p in model.parameters()]
    start = [*Small().parameters()]
    for plain, mixed, first in zip(*found.values(), start, strict=True):
        moved = float((plain - first).abs().max())
        assert moved > 0
        torch.testing.assert_close(mixed, plain, rtol=0, atol=0.05 * moved)
    assert counted() == {"scaled_steps": 8 // accumulate, "overflow_steps": 0}


def test_steps_that_overflow_are_left_out(tmp_path: Path) -> None:
    class TooLarge(Digits):
        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return super().loss(batch) * 1e6

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-8)

    callback, model = MsctxCallback(precision_mode="allow_mix_precision_fp16"), TooLarge()
    trainer(tmp_path, callback, max_epochs=6, gradient_clip_val=1.0, gradient_clip_algorithm="value").fit(model, data())
    assert 0 < callback.scaling.scaler.overflow_steps < callback.scaling.scaler.steps == 24
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_context_that_the_user_holds(tmp_path: Path) -> None:
    model, logger = Digits(), Logger()
    options = {"conv_fprop_algo": "gemm", "max_device_memory": "1GB", "precision_mode": "allow_mix_precision_fp16"}
    with msctx.context(deterministic="ON", **options) as ctx:
        trainer(tmp_path, MsctxCallback(ctx), logger=logger, log_every_n_steps=1).fit(model, data())
        assert torch.are_deterministic_algorithms_enabled(), "entering and leaving are the user's"
    assert [row["peak_memory_bytes"] > 0 for row in logger.rows if "peak_memory_bytes" in row] == [True] * 3
    last = logger.rows[-1]
    assert last["scaled_steps"] == 8 > last["overflow_steps"]
    assert last["choices/fprop/gemm"] == 8
    assert {row.module for row in ctx.choices()} == {"layers.0"}


def test_options_beside_a_context_are_refused() -> None:
    with msctx.context() as ctx, pytest.raises(TypeError, match=r"give seed to msctx\.context"):
        MsctxCallback(ctx, seed=0)
    with pytest.raises(msctx.OptionError, match="did you mean deterministic"):
        MsctxCallback(determinstic="ON")


def test_a_context_that_is_not_open_is_entered(tmp_path: Path) -> None:
    model, before = Digits(), msctx.state()
    trainer(tmp_path, MsctxCallback(msctx.context(deterministic="ON"))).fit(model, data())
    assert model.seen
    assert all(model.seen)
    assert msctx.diff(before, msctx.state()).keys() <= {"rng.torch.cpu", "rng.torch"}


def test_a_model_without_optimizers_is_fitted(tmp_path: Path) -> None:
    class Still(Digits):
        def configure_optimizers(self) -> None:
            return None

    model = Still()
    trainer(tmp_path, MsctxCallback(precision_mode="allow_mix_precision_fp16")).fit(model, data())
    assert model.seen


@pytest.mark.usefixtures("one_rank")
def test_the_data_parallel_model_is_watched(tmp_path: Path) -> None:
    class Looks(Digits):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.wrappers = [one for model in models() for one in data_parallel(model)]

    model = Looks()
    callback = MsctxCallback(conv_fprop_algo="gemm")
    trainer(tmp_path, callback, strategy="ddp", devices=1).fit(model, data())
    assert [one.module for one in model.wrappers] == [model]
    assert {row.module for row in callback.context.choices()} == {"layers.0"}
