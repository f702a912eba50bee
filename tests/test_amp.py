"""The GradScaler of a context counts steps that overflow, and a run records them; digits are learnt in float16 as in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import msctx
from msctx.amp import watched

ROOT = Path(__file__).parents[1]


def train(scaler, steps=3):
    weight = torch.ones(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale((weight @ weight).float().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return weight


def test_steps_that_overflow_are_counted_and_skipped():
    with msctx.context(precision_mode="allow_mix_precision_fp16") as ctx:
        scaler = ctx.grad_scaler(init_scale=2.0**40, backoff_factor=2.0**-30)
        weight = train(scaler, steps=1)
        assert (scaler.steps, scaler.overflow_steps) == (1, 1)
        assert torch.equal(weight, torch.ones(4, 4))
        train(scaler)
    assert (scaler.steps, scaler.overflow_steps) == (4, 1)


def test_a_scaler_that_is_not_enabled_only_passes_on():
    with msctx.context(precision_mode="allow_mix_precision_bf16") as ctx, watched() as counted:
        scaler = ctx.grad_scaler()
        assert not torch.equal(train(scaler), torch.ones(4, 4))
    assert (scaler.steps, scaler.overflow_steps) == (3, 0)
    assert counted() == {}


def test_watched_blocks_nest():
    with msctx.context(precision_mode="force_fp16") as ctx, watched() as outer:
        with watched() as inner:
            train(ctx.grad_scaler(init_scale=1.0))
        train(ctx.grad_scaler(init_scale=1.0), steps=1)
    assert inner() == {"scaled_steps": 3, "overflow_steps": 0}
    assert outer() == {"scaled_steps": 4, "overflow_steps": 0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.full
def test_digits_in_float16(tmp_path, monkeypatch, command):
    monkeypatch.chdir(ROOT)
    found = {}
    for mode in ("must_keep_origin_dtype", "allow_mix_precision_fp16"):
        words = ["run", "configs/experiments/digits.yaml", f"precision_mode={mode}", "args.epochs=5", "--json"]
        assert command(*words, "--out", tmp_path / mode)[0] == 0
        found[mode] = json.loads((tmp_path / mode / "result.json").read_text())
    plain, mixed = found.values()
    assert plain["test_accuracy"] > 0.97
    assert abs(plain["test_accuracy"] - mixed["test_accuracy"]) <= 0.01
    assert plain["weights_sha256"] != mixed["weights_sha256"]
    assert "overflow_steps" not in plain
    assert mixed["scaled_steps"] == 5 * 45
    assert mixed["overflow_steps"] <= 2
    rows = json.loads((tmp_path / "allow_mix_precision_fp16" / "precisions.json").read_text())
    assert {row["dtype"] for row in rows if row["operator"] == "conv2d"} == {"float16"}
    assert not (tmp_path / "must_keep_origin_dtype" / "precisions.json").exists()
