"""The hook for an Accelerator: options hold inside its block, and nothing is left after it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import reports
from torch import nn

import msctx
from msctx.memory.reductions import data_parallel
from msctx.memory.watched import models

accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.tracking import GeneralTracker  # noqa: E402

from msctx.integrations.accelerate import MsctxHook  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "no_state")
FP16 = "allow_mix_precision_fp16"


@pytest.fixture
def no_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Accelerate keeps one state for the process."""
    yield
    monkeypatch.undo()  # it would put a part of the state back
    AcceleratorState._reset_state()
    GradientState._reset_state()
    PartialState._reset_state()


class Tracker(GeneralTracker):
    name, requires_logging_directory = "rows", False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.finished = False

    @property
    def tracker(self) -> Any:
        return self.rows

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        assert not self.finished
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished = True


def accelerator(**options: Any) -> Any:
    return accelerate.Accelerator(cpu=True, **options)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))


def train(it: Any, model: nn.Module, optimizer: Any, size: float = 1.0, clip: float = 0.0, steps: int = 8) -> None:
    for step in range(steps):
        x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        with it.accumulate(model):
            it.backward(model(x).float().square().mean() * size)
            if clip:
                it.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("first", [False, True], ids=["prepared inside", "prepared before"])
def test_a_loss_in_float16_is_scaled(clip: float, accumulate: int, first: bool) -> None:
    """The weights are those of float32 but for float16's rounding, although the loss is so small that its gradients vanish."""
    tiny, found = 2.0**-24, {}
    for mode in ("must_keep_origin_dtype", FP16):
        it, model = accelerator(gradient_accumulation_steps=accumulate), net()
        prepared = model, torch.optim.SGD(model.parameters(), 0.1 / tiny)
        if first:
            prepared = it.prepare(*prepared)
        with warnings.catch_warnings(), MsctxHook(it, precision_mode=mode) as hook:
            warnings.simplefilter("error", msctx.MsctxWarning)
            train(it, *(prepared if first else it.prepare(*prepared)), size=tiny, clip=clip * tiny)
        found[mode] = [p.detach() for p in model.parameters()]
    assert (hook.scaling.scaler.steps, hook.scaling.scaler.overflow_steps) == (8 // accumulate, 0)
    for plain, mixed, start in zip(*found.values(), net().parameters(), strict=True):
        moved = float((plain - start.detach()).abs().max())
        assert moved > 0
        torch.testing.assert_close(mixed, plain, rtol=0, atol=0.05 * moved)


def test_everything_is_restored_after_an_exception_too() -> None:
    it, model, before = accelerator(), net(), msctx.state()
    methods = {name: value for name, value in vars(it).items() if callable(value)}
    for error in (None, RuntimeError("on purpose")):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        try:
            with MsctxHook(it, deterministic="ON", precision_mode=FP16):
                _, prepared = it.prepare(model, optimizer)
                train(it, model, prepared, steps=2)
                assert torch.are_deterministic_algorithms_enabled()
                assert model[0].weight._backward_hooks
                if error:
                    raise error
        except RuntimeError as found:
            assert found is error  # noqa: PT017
        assert msctx.diff(before, msctx.state()).keys() <= {"rng.torch.cpu", "rng.torch"}
        assert {name: value for name, value in vars(it).items() if callable(value)} == methods
        assert not it._save_model_state_pre_hook
        assert not it._load_model_state_pre_hook
        assert not any(p._backward_hooks for p in model.parameters())
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks


def test_an_entry_that_fails_leaves_nothing() -> None:
    it, half = accelerator(), net().half()
    it.prepare(half, torch.optim.SGD(half.parameters(), 0.1))
    with pytest.raises(ValueError, match="is in float16"), MsctxHook(it, precision_mode=FP16, deterministic="ON"):
        pass
    assert not torch.are_deterministic_algorithms_enabled()
    assert "backward" not in vars(it)
    it.free_memory()
    with MsctxHook(it, precision_mode=FP16):
        pass


def test_a_step_that_overflows_is_left_out_by_schedulers_too() -> None:
    it, model = accelerator(), net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-8)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    skipped = []
    with MsctxHook(it, precision_mode=FP16) as hook:
        model, optimizer, scheduler = it.prepare(model, optimizer, scheduler)
        for _ in range(24):
            train(it, model, optimizer, size=1e6, steps=1)
            scheduler.step()
            skipped.append(it.optimizer_step_was_skipped)
    scaler = hook.scaling.scaler
    assert 0 < scaler.overflow_steps < scaler.steps == 24
    assert sum(skipped) == scaler.overflow_steps
    assert scheduler.scheduler._step_count == 25 - scaler.overflow_steps
    assert not it.optimizer_step_was_skipped


def test_an_overflow_of_one_optimizer_leaves_out_no_step_of_another() -> None:
    it, (large, small) = accelerator(), (net(), net())
    left_out = []
    with MsctxHook(it, precision_mode=FP16):
        pairs = [it.prepare(model, torch.optim.SGD(model.parameters(), 1e-8)) for model in (large, small)]
        for _ in range(3):
            for (model, optimizer), size in zip(pairs, (1e6, 1e-3), strict=True):
                train(it, model, optimizer, size=size, steps=1)
            left_out.append([optimizer.step_was_skipped for _, optimizer in pairs])
    assert left_out[0] == [True, False], left_out
    assert not any(other for _, other in left_out)


def test_the_context_gets_the_exception() -> None:
    """As one that is left by with: contexts that are still open inside it go, too."""
    before = torch.are_deterministic_algorithms_enabled()

    def fails_inside_another() -> None:
        msctx.context(seed_scope=True).__enter__()
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), MsctxHook(accelerator(), deterministic="ON"):
        fails_inside_another()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_two_optimizers_that_are_prepared_one_after_the_other() -> None:
    it, models_, kept = accelerator(), [net(), net()], []
    with MsctxHook(it, precision_mode=FP16) as hook:
        for model in models_:
            kept.append(it.prepare(model, torch.optim.SGD(model.parameters(), 0.1 * 2.0**24)))
            train(it, *kept[-1], size=2.0**-24, steps=2)
    assert hook.scaling.scaler.steps == 4
    for one, other in zip(*(model.parameters() for model in models_), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not torch.equal(models_[0][0].weight, net()[0].weight)


def test_memory_that_is_freed_is_not_kept() -> None:
    it, model = accelerator(), net()
    with MsctxHook(it, precision_mode=FP16) as hook:
        model, _ = it.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        first = hook.scaling
        it.free_memory()
        assert not any(p._backward_hooks for p in model.parameters())
        again = net()
        train(it, *it.prepare(again, torch.optim.SGD(again.parameters(), 0.1)), steps=2)
    assert hook.scaling is not first
    assert hook.scaling.scaler.steps == 2


def test_the_trackers_get_peaks_and_a_summary() -> None:
    for ends_inside in (True, False):
        tracker = Tracker()
        it, model = accelerator(log_with=tracker), net()
        it.init_trackers("project")
        with MsctxHook(it, conv_fprop_algo="gemm", max_device_memory="1GB", precision_mode=FP16) as hook:
            model, optimizer = it.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
            train(it, model, optimizer)
            it.log({"loss": 1.0}, step=7)
            if ends_inside:
                it.end_training()
        assert [step for step, _ in tracker.rows] == [7, 7]
        (_, row), (_, last) = tracker.rows
        assert row["loss"] == 1.0
        assert row["peak_memory_bytes"] > 0
        assert last["scaled_steps"] == 8 > last["overflow_steps"]
        assert last["choices/fprop/gemm"] == 8
        assert {row.module for row in hook.context.choices()} == {"0"}


def test_a_context_that_the_user_holds() -> None:
    it = accelerator()
    with msctx.context(deterministic="ON") as ctx:
        with MsctxHook(it, ctx):
            assert torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled(), "entering and leaving are the user's"
        with pytest.raises(TypeError, match=r"give seed to msctx\.context"):
            MsctxHook(it, ctx, seed=0)


def test_what_cannot_be_together_names_both() -> None:
    it = accelerator(mixed_precision="bf16")
    said = r"mixed_precision=bf16 and precision_mode=allow_mix_precision_fp16 both decide"
    with pytest.raises(ValueError, match=said), MsctxHook(it, precision_mode=FP16):
        pass
    with MsctxHook(it, deterministic="ON"):
        with pytest.raises(ValueError, match="one MsctxHook at a time"), MsctxHook(it, seed=0):
            pass
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_gradients_in_float16_that_cannot_be_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    it, model = accelerator(), net()
    with MsctxHook(it, precision_mode=FP16), pytest.warns(msctx.MsctxWarning, match="without a GradScaler"):
        it.backward(model(torch.randn(4, 1, 8, 8)).float().sum())
    monkeypatch.setattr(it.state, "distributed_type", accelerate.DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"allow_mix_precision_fp16 computes in float16.*not under FSDP"):
        MsctxHook(it, precision_mode=FP16).__enter__()
    with MsctxHook(it, precision_mode="allow_mix_precision_bf16"):
        pass


def test_the_scale_is_in_checkpoints_and_has_accelerates_settings(tmp_path: Path) -> None:
    def scale(load: bool, settings: Any) -> float:
        it, model = accelerator(kwargs_handlers=[accelerate.utils.GradScalerKwargs(**settings)]), net()
        with MsctxHook(it, precision_mode=FP16) as hook:
            model, optimizer = it.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
            if load:
                it.load_state(tmp_path)
            train(it, model, optimizer, steps=1)
            if not load:
                it.save_state(tmp_path)
        return hook.scaling.scaler.get_scale() if hook.scaling else 0.0

    assert scale(False, {"init_scale": 1024.0}) == 1024.0
    assert scale(True, {}) == 1024.0
    assert scale(True, {"enabled": False}) == 0.0


@pytest.mark.usefixtures("one_rank")
def test_the_data_parallel_model_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    it, model = accelerator(), net()
    monkeypatch.setattr(it.state, "distributed_type", accelerate.DistributedType.MULTI_CPU)
    with MsctxHook(it, conv_fprop_algo="gemm") as hook:
        prepared = it.prepare(model)
        prepared(torch.randn(4, 1, 8, 8))
        assert [one for known in models() for one in data_parallel(known)] == [prepared]
    assert {row.module for row in hook.context.choices()} == {"0"}


DDP = """
import json, os, torch, warnings
from accelerate import Accelerator
from msctx.integrations.accelerate import MsctxHook

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
data = torch.utils.data.DataLoader(torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), batch_size=2)
with MsctxHook(accelerator, deterministic="ON", precision_mode="allow_mix_precision_fp16", replica_check=1) as hook:
    model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1 * 2.0**24), data)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).float().square().mean() * 2.0**-24)
            accelerator.clip_grad_norm_(model.parameters(), 2.0**-24)
            optimizer.step()
            optimizer.zero_grad()
out = dict(wrapped=type(model).__name__, steps=hook.scaling.scaler.steps, weights=model.module.weight.tolist())
out["after"] = torch.are_deterministic_algorithms_enabled()
with open(os.path.join(os.path.dirname(__file__), os.environ["RANK"]), "w") as file:
    json.dump(out, file)
accelerator.end_training()
"""


@pytest.mark.full
def test_two_ranks(tmp_path: Path) -> None:
    first, second, errors = reports(tmp_path, DDP)
    assert first == second, "the weights, too: all gradients were reduced"
    assert (first["wrapped"], first["steps"], first["after"]) == ("DistributedDataParallel", 4, False)
    torch.manual_seed(0)
    assert first["weights"] != nn.Linear(8, 2).weight.tolist()
    assert "differs between" not in errors
    assert "nothing to compare" not in errors
