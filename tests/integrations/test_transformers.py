"""MsctxCallback under Hugging Face's Trainer, inside a with-block; a tiny model with random weights."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import reports

import msctx
from msctx.amp import watched

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from msctx.integrations.transformers import MsctxCallback  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("one_thread")]
FP16 = {"precision_mode": "allow_mix_precision_fp16"}


def model() -> Any:
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=2))


def data() -> list[dict[str, Any]]:
    words = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "labels": int(ids[0]) % 2} for ids in words]


def trainer(net: Any, callback: MsctxCallback, folder: Path, **more: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "use_cpu": True}
    options = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "seed": 0}
    arguments = transformers.TrainingArguments(str(folder), **{**quiet, **options, **more})
    return transformers.Trainer(net, arguments, train_dataset=data(), callbacks=[callback])


def hooks(net: torch.nn.Module) -> list[Any]:
    return [*net._forward_hooks.values(), *(hook for p in net.parameters() for hook in (p._backward_hooks or {}).values())]


def test_a_training_in_float16_is_scaled(tmp_path):
    net, found = model(), {}
    for mode in ("must_keep_origin_dtype", "allow_mix_precision_fp16"):
        with warnings.catch_warnings(), watched() as counted, msctx.context(precision_mode=mode, deterministic="ON") as ctx:
            warnings.simplefilter("error", msctx.MsctxWarning)
            run = trainer(model() if not found else net, MsctxCallback(ctx), tmp_path, gradient_accumulation_steps=2)
            run.train()
        found[mode] = [row["loss"] for row in run.state.log_history if "loss" in row]
    assert found["allow_mix_precision_fp16"] == pytest.approx(found["must_keep_origin_dtype"], rel=1e-2)
    assert counted() == {"scaled_steps": 2, "overflow_steps": 0}
    assert not hooks(net)


def test_after_an_exception_the_next_training_begins_clean(tmp_path):
    class Fails(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("on purpose")

    net, before = model(), msctx.state()
    with msctx.context(deterministic="ON", **FP16) as ctx:
        callback = MsctxCallback(ctx)
        run = trainer(net, callback, tmp_path)
        run.add_callback(Fails())
        with pytest.raises(RuntimeError, match="on purpose"):
            run.train()
        again = trainer(net, callback, tmp_path)
        again.train()
        assert torch.are_deterministic_algorithms_enabled()
    assert callback.scaling.scaler.steps == 4
    assert not hooks(net)
    assert {key for key in msctx.diff(before, msctx.state()) if not key.startswith("rng.")} == set()


def test_a_loss_that_the_trainer_computes_is_reported(tmp_path):
    class Own(transformers.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return callback.scaling(super().compute_loss(*args, **kwargs))

    with msctx.context(**FP16) as ctx:
        callback = MsctxCallback(ctx)
        run = trainer(model(), callback, tmp_path, label_smoothing_factor=0.1)
        with pytest.warns(msctx.MsctxWarning, match=r"call callback\.scaling\(loss\) in your own compute_loss"):
            run.train()
        assert callback.scaling.scaler.steps == 0
        run.__class__ = Own
        with warnings.catch_warnings():
            warnings.simplefilter("error", msctx.MsctxWarning)
            run.train()
        assert callback.scaling.scaler.steps == 4


def test_a_context_that_is_not_open_is_an_error(tmp_path):
    with pytest.raises(msctx.ScopeError, match="train inside its with-block"):
        trainer(model(), MsctxCallback(msctx.context(deterministic="ON")), tmp_path).train()


DDP = """
import json, os, sys, torch, transformers, msctx
from msctx.integrations.transformers import MsctxCallback

folder, rank = os.path.dirname(__file__), os.environ["RANK"]
sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
torch.manual_seed(0)
net = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=2))
words = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": ids, "labels": int(ids[0]) % 2} for ids in words]
quiet = dict(report_to=[], disable_tqdm=True, save_strategy="no", logging_steps=1, use_cpu=True, ddp_backend="gloo")
arguments = transformers.TrainingArguments(folder, num_train_epochs=2, per_device_train_batch_size=2, seed=0, **quiet)
with msctx.context(deterministic="ON", precision_mode="allow_mix_precision_fp16", replica_check=1) as ctx:
    trainer = transformers.Trainer(net, arguments, train_dataset=data, callbacks=[callback := MsctxCallback(ctx)])
    trainer.train()
out = dict(wrapped=type(trainer.model_wrapped).__name__, weights=net.classifier.weight.tolist())
out |= dict(steps=callback.scaling.scaler.steps, after=torch.are_deterministic_algorithms_enabled())
out |= dict(size=arguments.world_size)
with open(os.path.join(folder, rank), "w") as file:
    json.dump(out, file)
torch.distributed.barrier()
"""


@pytest.mark.full
def test_two_ranks(tmp_path):
    first, second, errors = reports(tmp_path, DDP)
    assert first == second, "the weights, too: all gradients were reduced"
    assert (first["wrapped"], first["size"], first["after"]) == ("DistributedDataParallel", 2, False)
    assert first["steps"] == 4, "8 samples, 2 at a time on each of 2 ranks, twice"
    assert first["weights"] != model().classifier.weight.tolist()
    assert "differs between" not in errors
    assert "replica_check=1 did nothing" not in errors
