"""Comparisons: what may be compared, what is said of each choice, and experiments as subjects."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import made, model_file, needs_core

import msctx
from msctx.compare import comparison, config
from msctx.compare import comparison as comparing
from msctx.compare.comparison import AGAIN, run
from msctx.compare.config import Comparison, Given, read
from msctx.compare.result_and_recommendation import Cell, Row
from msctx.compare.timing import Ratio
from msctx.shipped import CONFIGS

pytestmark = pytest.mark.usefixtures("one_thread")
FPROP = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However busy the machine is, no choice is too slow, where the clock is real."""
    monkeypatch.setattr(comparing, "HOPELESS", 1e9)


def cells(row: Row) -> dict[str, Cell]:
    return {cell.point: cell for cell in row.cells}


def test_layers(tmp_path):
    needs_core()
    text = """
compare: {workload: small.yaml, directions: [fprop, dgrad], seconds: 0.001}
axes:
  way:
    gemm: {conv_fprop_algo: gemm}
    winograd: {conv_fprop_algo: winograd, conv_dgrad_algo: winograd}
    deterministic: {deterministic: "ON"}
    by rule: {conv_algo_rules: {weight=8x8x3x3: {fprop: gemm}}}
"""
    before = msctx.state()
    found = run(made(tmp_path, text))
    assert set(msctx.diff(before, msctx.state())) <= {"native.calls"}
    assert found.partial == ""
    rows = {(row.name, row.direction): row for row in found.rows}
    second = "<b>second</b>"
    assert [*rows] == [("first", "fprop"), ("first", "dgrad"), (second, "fprop"), (second, "dgrad"), ("product", "forward")]
    first = cells(rows["first", "fprop"])
    assert (first["gemm"].ran, first["gemm"].requested) == ("gemm", {"conv_fprop_algo": "gemm"})
    assert 0 < first["gemm"].error <= first["gemm"].bound < 1e-3
    assert first["gemm"].ratio > 0
    assert first["gemm"].workspace > 0
    assert first["winograd"].ran.startswith("winograd")
    assert first["deterministic"].ran == "torch"
    assert first["by rule"].reason == "none of its rules applies to this layer"
    assert (rows["first", "fprop"].count, rows["first", "fprop"].rounds) == (3, 7)
    assert "none of its options applies to dgrad" in cells(rows["first", "dgrad"])["gemm"].reason
    strided = cells(rows[second, "fprop"])
    assert strided["by rule"].ran == "gemm"
    assert not strided["winograd"].ratio
    assert "stride" in strided["winograd"].reason, "torch's time is not shown for what cannot run"
    assert cells(rows["product", "forward"])["deterministic"].ratio


def test_a_model_in_its_phases(tmp_path):
    needs_core()
    text = f"""
compare: {{model: "{model_file(tmp_path)}:make", seconds: 0.001, error_limit: 0.1}}
axes:
  way:
    normal: {{conv_fprop_algo: normal, conv_dgrad_algo: normal, conv_wgrad_algo: normal}}
    gemm: {{conv_fprop_algo: gemm}}
    bf16: {{precision_mode: allow_mix_precision_bf16}}
"""
    inference, training = run(made(tmp_path, text)).rows
    assert (inference.direction, training.direction) == ("inference", "training")
    for row in (inference, training):
        found = cells(row)
        assert found["gemm"].error < 1e-5 < found["bf16"].error < 0.1
        assert "gemm" in found["gemm"].ran
        assert "products in bfloat16" in found["bf16"].ran


def test_options_without_effect_have_no_time(tmp_path):
    text = """
axes:
  way:
    for another device: {gpu_config.conv_allow_tf32: true}
    not here: {stream_max_parallel_num: "DNN_VM_AICPU:2"}
    in part: {deterministic: "ON", stream_max_parallel_num: "DNN_VM_AICPU:2"}
"""
    for row in run(made(tmp_path, FPROP + text)).rows:
        found = cells(row)
        assert found["for another device"].reason.startswith("gpu_config.conv_allow_tf32 ")
        assert found["not here"].reason.startswith("stream_max_parallel_num refused: ")
        assert found["in part"].ratio
        assert found["in part"].no_effect.startswith("stream_max_parallel_num refused: ")


MODELS = """
import torch
from torch import nn
class Nothing(nn.Module):
    def forward(self, x):
        return x * float("nan")
class Large(nn.Module):
    def forward(self, x):
        return x * 1e30 * 1e30
class Writes(nn.Module):
    def forward(self, x):
        return x.add_(1) * 2
class Out:
    def __init__(self, x): self.logits = x
class Wrapped(nn.Linear):
    def forward(self, x):
        return Out(super().forward(x))
class Failing(nn.Module):
    calls = 0
    def forward(self, x):
        if torch.are_deterministic_algorithms_enabled():
            self.calls += 1
            assert self.calls < 6, "no more\\nsecond line"
        return x * 2
class Wrong(nn.Module):
    def forward(self, x):
        return x * (3 if torch.are_deterministic_algorithms_enabled() else 2)
def wrong(): return Wrong(), torch.ones(3)
class Two(nn.Module):
    def forward(self, x, *, scale):
        return {"a": x * scale, "b": [x + 1, "text"]}
def two(): return Two(), {"x": torch.ones(2), "scale": torch.tensor(3.0)}
def failing(): return Failing(), torch.ones(3)
def nothing(): return Nothing(), torch.ones(3, 5)
def large(): return Large(), torch.ones(3, 5)
def writes(): return Writes(), torch.ones(3)
def wrapped(): return Wrapped(5, 4), torch.ones(3, 5)
def lazy(): return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), torch.randn(3, 5)
def complex_(): return nn.Linear(5, 4, dtype=torch.complex64), torch.randn(3, 5, dtype=torch.complex64)
def fixed(): return nn.ReLU(), torch.randn(3, 5)
def rounded():
    model = nn.Linear(5, 4, bias=False)
    nn.init.constant_(model.weight, 1.003)  # 1 in bfloat16
    return model, torch.ones(3, 5)
"""


def of_model(tmp_path: Path, name: str, phase: str = "inference", axes: str = "{deterministic: [ON, OFF]}") -> Row:
    (tmp_path / "models.py").write_text(MODELS)
    text = f"compare: {{model: '{tmp_path}/models.py:{name}', phases: [{phase}], seconds: 0.001}}\naxes: {axes}\n"
    (row,) = run(made(tmp_path, text)).rows
    return row


@pytest.mark.parametrize(
    ("name", "phase", "reason"),
    [
        ("nothing", "inference", "float64's own result is not finite"),
        ("large", "inference", "torch's own result is not finite"),
        ("fixed", "training", "nothing of its result depends on a parameter that is trained"),
    ],
)
def test_without_a_result_to_compare_with_there_is_no_time(tmp_path, name, phase, reason):
    row = of_model(tmp_path, name, phase)
    assert reason in row.reason
    assert row.cells == []


@pytest.mark.parametrize(
    ("name", "phase"),
    [("writes", "inference"), ("two", "inference"), ("wrapped", "training"), ("lazy", "training"), ("complex_", "training")],
)
def test_models_of_any_kind(tmp_path, name, phase):
    row = of_model(tmp_path, name, phase)
    assert not row.reason
    assert row.cells[0].ratio
    assert row.cells[0].error < 1e-4


def test_a_choice_that_fails_does_not_end_it(tmp_path):
    found = cells(of_model(tmp_path, "failing"))
    assert found["deterministic=ON"].reason == "AssertionError: no more"
    assert found["deterministic=OFF"].ratio


def test_a_choice_that_lowers_the_precision_may_be_further_off_and_no_more(tmp_path):
    axes = "{way: {exact: {deterministic: ON}, lower: {precision_mode: allow_fp32_to_bf16}}}"
    needs_core()
    found = cells(of_model(tmp_path, "rounded", axes=axes))
    assert (found["exact"].bound, found["lower"].bound) == (1e-3, 0.02)
    assert found["lower"].error == pytest.approx(0.003, rel=0.01)
    wrong = cells(of_model(tmp_path, "wrong", axes=axes))["exact"]
    assert (wrong.status, wrong.ratio, wrong.error) == ("failed", 0.0, pytest.approx(0.5))
    assert "is outside the bound of 1.0e-03" in wrong.reason


TWO = FPROP + 'axes: {way: {a: {seed: 1, seed_scope: true}, b: {deterministic: "ON"}}}\n'


@pytest.fixture
def times(monkeypatch):
    """What each choice is found to take, a ratio and a spread; no clock is read."""
    found: dict[str, Any] = {}

    def interleaved(entrants: Any, *_: Any) -> dict[str, Ratio | Exception]:
        found["took part"] = [entrant.name for entrant in entrants]
        return {e.name: Ratio(1e-3, *found.get(e.name, (1.0, 0.0)), 9) for e in entrants}

    monkeypatch.setattr(comparing, "interleaved", interleaved)
    monkeypatch.setattr(comparing, "seconds_of", lambda *_: 1e-3)
    return found


def test_a_choice_much_slower_than_torch_is_not_measured(tmp_path, times, monkeypatch):
    monkeypatch.setattr(comparing, "HOPELESS", 10)
    of_a = iter([0.05, 0.02, 0.04])
    monkeypatch.setattr(comparing, "seconds_of", lambda *_: next(of_a, 1e-3) if torch.initial_seed() == 1 else 1e-3)
    (row,) = run(made(tmp_path, TWO, slice(-1, None))).rows
    assert cells(row)["a"].status == "slow"
    assert cells(row)["a"].reason == "not measured: it takes 20 times as long as torch"
    assert times["took part"] == ["", AGAIN, "b"]


def test_quick_begins_with_the_largest_and_ends(tmp_path, times):
    of = made(tmp_path, FPROP + "axes: {deterministic: [ON]}\n", slice(None, None, -1), quick=True)
    found = run(replace(of, total=1e-9))
    assert [row.name for row in found.rows] == ["first"]
    assert "--quick ends" in found.partial
    assert [row.name for row in run(replace(of, total=100.0)).rows] == ["first", "<b>second</b>", "product"]


ENTRY = """
import torch
def train(scale: float = 1.0):
    assert not (torch.are_deterministic_algorithms_enabled() and scale == 3), "never so"
    return {"deterministic": torch.are_deterministic_algorithms_enabled(), "loss": scale * 2, "seed": torch.initial_seed()}
"""


def experiment(tmp_path: Path, scale: float, text: str = "", **given: Any) -> Comparison:
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{entry: entry.py:train, args: {{scale: {scale}}}}}\n{text}"
    (tmp_path / "train.yaml").write_text(text)
    return read(str(tmp_path / "train.yaml"), Given(**given))


@pytest.mark.full
def test_each_choice_is_a_run_and_words_apply_to_every_one(tmp_path):
    of = experiment(tmp_path, 1.0, "axes: {deterministic: [ON, OFF]}\n", overrides=["args.scale=2.5"], quick=True)
    (row,) = run(replace(of, total=math.inf)).rows
    assert (row.direction, row.rounds) == ("run", 1)
    assert [one.metrics["deterministic"] for one in (row.baseline, *row.cells)] == [False, True, False]
    assert [one.metrics["loss"] for one in (row.baseline, *row.cells)] == [5.0] * 3
    assert [one.metrics["seed"] for one in (row.baseline, *row.cells)] == [1] * 3
    assert all(one.ratio > 0 and one.error is None for one in row.cells)


def test_runs_take_turns_beside_a_control(tmp_path, monkeypatch):
    ran: list[list[str]] = []

    def run_point(file: str, words: list[str], folder: Path) -> dict[str, Any]:
        ran.append(words)
        return {"status": "completed", "seconds": 1.0 if words else 2.0, "loss": 0.5}

    monkeypatch.setattr(comparison, "run_point", run_point)
    of = experiment(tmp_path, 1.0, "compare: {repetitions: 2}\naxes: {deterministic: [ON]}\n")
    seen: list[tuple[int, int]] = []
    found = run(of, lambda done, of, name: seen.append((done, of)))
    on = ["deterministic=ON"]
    assert ran == [on, [], [], [], [], on, on, [], []], "each once before, which is not counted, and twice"
    assert seen[-1] == (8, 9)
    (row,) = found.rows
    assert (row.rounds, row.control, row.cells[0].ratio) == (2, 1.0, 2.0)
    assert found.best.options == {"deterministic": "ON"}


def file(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.yaml").write_text(text)
    return str(tmp_path / "mine.yaml")


def test_a_file(tmp_path):
    text = """
compare: {workload: resnet50, directions: [wgrad, fprop], seconds: 3}
context: {runtime_num_threads: 1, deterministic: "ON"}
axes:
  conv_fprop_algo: [gemm, winograd]
  tf32: {no: {}, yes: {conv_allow_tf32: true}}
"""
    found = read(file(tmp_path, text), Given(overrides=["runtime_num_threads=2"]))
    assert [point.name for point in found.points[:2]] == ["conv_fprop_algo=gemm, no", "conv_fprop_algo=gemm, yes"]
    assert (found.name, found.subject, found.of) == ("mine", "workload", "resnet50")
    assert found.base.settings.get("runtime_num_threads").value == 2  # type: ignore[union-attr]
    assert (found.keys["directions"], found.keys["seconds"]) == (["wgrad", "fprop"], 3)


@pytest.mark.parametrize("path", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_comparisons(path):
    found = read(path.stem, Given())
    assert len(found.points) > 1
    assert read(str(path), Given(quick=True)).total == config.QUICK_TOTAL
