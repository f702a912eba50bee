"""The callback and the plugin for a Lightning Trainer: options hold inside each of its functions, and nothing is left after them."""

from __future__ import annotations

import json
import subprocess
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import torchrun
from torch import nn

import msctx
from msctx.amp import watched
from msctx.memory.reductions import data_parallel
from msctx.memory.watched import models

lightning = pytest.importorskip("lightning.pytorch")

from msctx.integrations.lightning import MsctxCallback, MsctxPrecision  # noqa: E402

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


def trainer(folder: Path, *given: MsctxCallback | MsctxPrecision, **more: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    held = {
        "callbacks": [one for one in given if isinstance(one, MsctxCallback)],
        "plugins": [one for one in given if isinstance(one, MsctxPrecision)],
    }
    options = {"accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder, **held}
    return lightning.Trainer(**{**quiet, **options, **more})


both = pytest.mark.parametrize("kind", [MsctxCallback, MsctxPrecision])


def scaling(held: MsctxCallback | MsctxPrecision) -> Any:
    return (held.callback if isinstance(held, MsctxPrecision) else held).scaling


@both
@pytest.mark.parametrize("function", ["fit", "validate", "test", "predict"])
def test_options_hold_inside_and_everything_is_restored(function: str, kind: Any, tmp_path: Path) -> None:
    model, before = Digits(), msctx.state()
    getattr(trainer(tmp_path, kind(deterministic="ON")), function)(model, data())
    assert model.seen
    assert all(model.seen)
    assert msctx.diff(before, msctx.state()).keys() <= {"rng.torch.cpu", "rng.torch"}


@both
@pytest.mark.parametrize("function", ["fit", "predict"])
def test_an_exception_restores_everything(function: str, kind: Any, tmp_path: Path) -> None:
    callback = kind(deterministic="ON", precision_mode="allow_mix_precision_fp16")
    model = Digits(fails=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        getattr(trainer(tmp_path, callback), function)(model, data())
    assert model.seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not any(p._backward_hooks for p in model.parameters())
    model.fails = False
    trainer(tmp_path, callback).fit(model, data())
    assert all(model.seen)
    assert scaling(callback).scaler.steps == 8


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


@both
def test_steps_that_overflow_are_left_out(kind: Any, tmp_path: Path) -> None:
    class TooLarge(Digits):
        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return super().loss(batch) * 1e6

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-8)

    held, model = kind(precision_mode="allow_mix_precision_fp16"), TooLarge()
    trainer(tmp_path, held, max_epochs=6, gradient_clip_val=1.0, gradient_clip_algorithm="value").fit(model, data())
    assert 0 < scaling(held).scaler.overflow_steps < scaling(held).scaler.steps == 24
    assert all(p.isfinite().all() for p in model.parameters())


@both
def test_a_context_that_the_user_holds(kind: Any, tmp_path: Path) -> None:
    model, logger = Digits(), Logger()
    options = {"conv_fprop_algo": "gemm", "max_device_memory": "1GB", "precision_mode": "allow_mix_precision_fp16"}
    with msctx.context(deterministic="ON", **options) as ctx:
        trainer(tmp_path, kind(ctx), logger=logger, log_every_n_steps=1).fit(model, data())
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
@both
def test_the_data_parallel_model_is_watched(kind: Any, tmp_path: Path) -> None:
    class Looks(Digits):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.wrappers = [one for model in models() for one in data_parallel(model)]

    model = Looks()
    ctx = msctx.context(conv_fprop_algo="gemm")
    trainer(tmp_path, kind(ctx), strategy="ddp", devices=1).fit(model, data())
    assert [one.module for one in model.wrappers] == [model]
    assert {row.module for row in ctx.choices()} == {"layers.0"}


def test_a_plugin_holds_options_while_the_model_is_configured(tmp_path: Path) -> None:
    class Late(Digits):
        fails_early = False

        def configure_model(self) -> None:
            self.seen.append(torch.are_deterministic_algorithms_enabled())
            if self.fails_early:
                raise RuntimeError("on purpose")

    plugin, model = MsctxPrecision(deterministic="ON"), Late()
    trainer(tmp_path, plugin).fit(model, data())
    assert model.seen == [True] * 9
    model.fails_early = True
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(tmp_path, plugin).fit(model, data())
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_trainer_that_fits_again_has_its_plugin_once(tmp_path: Path) -> None:
    model, once = Digits(), trainer(tmp_path, MsctxPrecision(deterministic="ON"))
    once.validate(model, data())
    once.fit(model, data())
    assert model.seen == [True] * 12
    assert sum(isinstance(one, MsctxCallback) for one in once.callbacks) == 1


def test_a_training_that_is_resumed_goes_on_with_the_scale(tmp_path: Path) -> None:
    first, later = (MsctxPrecision(precision_mode="allow_mix_precision_fp16") for _ in range(2))
    began = trainer(tmp_path, first)
    began.fit(Digits(), data())
    scaling(first).scaler._scale.fill_(1024.0)
    began.save_checkpoint(tmp_path / "one.ckpt")
    trainer(tmp_path, later, max_epochs=3).fit(Digits(), data(), ckpt_path=tmp_path / "one.ckpt")
    assert scaling(later).scaler.steps == 4
    assert scaling(later).scaler.get_scale() == 1024.0


def test_a_plugin_beside_what_decides_the_same(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision=bf16-mixed"):
        trainer(tmp_path, MsctxPrecision(deterministic="ON"), precision="bf16-mixed")
    two = trainer(tmp_path, MsctxPrecision(deterministic="ON"), MsctxCallback(seed=0))
    with pytest.raises(ValueError, match="one MsctxCallback or MsctxPrecision"):
        two.fit(Digits(), data())
    assert not torch.are_deterministic_algorithms_enabled()


DDP = """
import json, os, sys, torch, warnings
from lightning.pytorch import LightningModule, Trainer
from msctx.integrations.lightning import MsctxCallback, MsctxPrecision
warnings.simplefilter("ignore")

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.seen = torch.nn.Linear(8, 2), []
    def training_step(self, batch):
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return self.layer(batch).float().square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

held = HELD(deterministic="ON", precision_mode="allow_mix_precision_fp16", replica_check=1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, GIVEN=[held], **quiet)
model, data = Net(), torch.utils.data.DataLoader(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)), batch_size=2)
trainer.fit(model, data)
scaler = getattr(held, "callback", held).scaling.scaler
out = dict(seen=model.seen, steps=scaler.steps, weights=model.layer.weight.tolist())
out["after"] = torch.are_deterministic_algorithms_enabled()
with open(os.path.join(os.path.dirname(__file__), os.environ["RANK"]), "w") as file:
    json.dump(out, file)
"""


@pytest.mark.full
@pytest.mark.parametrize(("held", "given"), [("MsctxCallback", "callbacks"), ("MsctxPrecision", "plugins")])
def test_two_ranks(held: str, given: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(DDP).replace("HELD", held).replace("GIVEN", given))
    done = subprocess.run(torchrun(2, tmp_path / "train.py"), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first == second, "the weights, too: all gradients were reduced"
    assert (first["seen"], first["steps"], first["after"]) == ([True] * 8, 8, False)
    assert "differs between" not in done.stderr
