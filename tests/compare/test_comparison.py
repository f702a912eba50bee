"""The comparison itself, run for real on small layers: correctness first, every cell a figure or a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import made, model_file, needs_core

import msctx
from msctx.compare import comparison as comparing
from msctx.compare.cases import Case
from msctx.compare.comparison import Watch, compare
from msctx.compare.measure import Interrupted, Ratio
from msctx.compare.result import Cell, Row

pytestmark = pytest.mark.usefixtures("one_thread")


def cells(row: Row) -> dict[str, Cell]:
    return {cell.point: cell for cell in row.cells}


def test_layers(tmp_path: Path) -> None:
    needs_core()
    text = """
compare: {workload: small.yaml, directions: [fprop, dgrad], seconds: 0.001}
axes:
  way:
    gemm: {conv_fprop_algo: gemm}
    winograd: {conv_fprop_algo: winograd, conv_dgrad_algo: winograd}
    deterministic: {deterministic: "ON"}
"""
    before = msctx.state()
    outcome = compare(made(tmp_path, text))
    assert msctx.diff(before, msctx.state()) == {} or set(msctx.diff(before, msctx.state())) <= {"native.calls"}
    assert outcome.partial == ""
    rows = {(row.name, row.direction): row for row in outcome.rows}
    assert [*rows] == [
        *(
            ("first", "fprop"),
            ("first", "dgrad"),
            ("<b>second</b>", "fprop"),
            ("<b>second</b>", "dgrad"),
            ("product", "forward"),
        )
    ]
    first = cells(rows["first", "fprop"])
    assert first["gemm"].ran == "gemm"
    assert first["gemm"].asked == {"conv_fprop_algo": "gemm"}
    assert 0 < first["gemm"].error <= first["gemm"].bound < 1e-3
    assert first["gemm"].ratio > 0
    assert first["gemm"].peak_bytes >= 8 * 144 * 4
    assert first["winograd"].ran.startswith("winograd")
    assert first["deterministic"].ran == "torch"
    assert rows["first", "fprop"].count == 3
    assert rows["first", "fprop"].rounds == 7
    assert first["gemm"].workspace > 0
    assert "none of its options applies to dgrad" in cells(rows["first", "dgrad"])["gemm"].reason
    strided = cells(rows["<b>second</b>", "fprop"])["winograd"]
    assert not strided.ratio
    assert "stride" in strided.reason, "what cannot run has torch's time for nobody's"
    assert "none of its options applies to forward" in cells(rows["product", "forward"])["gemm"].reason
    assert cells(rows["product", "forward"])["deterministic"].ratio


def test_a_model_in_its_phases(tmp_path: Path) -> None:
    needs_core()
    text = f"""
compare: {{model: "{model_file(tmp_path)}:make", seconds: 0.001, error_limit: 0.1}}
axes:
  way:
    normal: {{conv_fprop_algo: normal, conv_dgrad_algo: normal, conv_wgrad_algo: normal}}
    gemm: {{conv_fprop_algo: gemm}}
    bf16: {{precision_mode: allow_mix_precision_bf16}}
"""
    inference, training = compare(made(tmp_path, text)).rows
    assert (inference.direction, training.direction) == ("inference", "training")
    for row in (inference, training):
        found = cells(row)
        assert found["gemm"].error < 1e-5 < found["bf16"].error < 0.1
        assert "gemm" in found["gemm"].ran
        assert "products in bfloat16" in found["bf16"].ran


def test_a_wrong_result_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\naxes: {deterministic: [OFF, ON]}\n"

    def wrong(case: Case) -> list[torch.Tensor]:
        found = case.run()
        return [found[0] * 2] if torch.are_deterministic_algorithms_enabled() else found

    real = comparing._cases

    def cases(*given: Any) -> Any:
        for case in real(*given):
            yield Case(**{**vars(case), "results": lambda case=case: wrong(case)})

    monkeypatch.setattr(comparing, "_cases", cases)
    for row in compare(made(tmp_path, text)).rows:
        found = cells(row)
        assert found["deterministic=OFF"].ratio
        assert not found["deterministic=ON"].ratio
        assert "is outside the bound of 1.0e-03" in found["deterministic=ON"].reason
        assert found["deterministic=ON"].status == "failed"
        assert found["deterministic=ON"].error == pytest.approx(1.0, rel=1e-3)


def test_options_that_are_not_carried_out_have_no_time(tmp_path: Path) -> None:
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes:
  way:
    for another device: {gpu_config.conv_allow_tf32: true}
    not here: {stream_max_parallel_num: "DNN_VM_AICPU:2"}
    in part: {deterministic: "ON", stream_max_parallel_num: "DNN_VM_AICPU:2"}
"""
    for row in compare(made(tmp_path, text)).rows:
        found = cells(row)
        assert found["for another device"].reason.startswith("gpu_config.conv_allow_tf32 ")
        assert found["not here"].reason.startswith("stream_max_parallel_num refused: ")
        assert found["in part"].ratio
        assert found["in part"].not_carried_out.startswith("stream_max_parallel_num refused: ")


@pytest.mark.parametrize("when", [1, 4, 6])
def test_a_choice_that_fails_does_not_end_it(tmp_path: Path, when: int) -> None:
    (tmp_path / "failing.py").write_text(f"""
import torch
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        if torch.are_deterministic_algorithms_enabled():
            self.calls += 1
            assert self.calls < {when}, "no more\\nsecond line"
        return x * 2
def make():
    return Model(), torch.ones(3)
""")
    text = f"""
compare: {{model: "{tmp_path}/failing.py:make", phases: inference, seconds: 0.001}}
axes: {{deterministic: [ON, OFF]}}
"""
    (row,) = compare(made(tmp_path, text)).rows
    assert cells(row)["deterministic=ON"].reason == "AssertionError: no more"
    assert cells(row)["deterministic=OFF"].ratio


def test_a_model_that_writes_to_its_input_gets_a_copy(tmp_path: Path) -> None:
    (tmp_path / "writing.py").write_text("""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.add_(1) * 2
def make():
    return Model(), torch.ones(3)
""")
    text = (
        f"compare: {{model: '{tmp_path}/writing.py:make', phases: inference, seconds: 0.001}}\naxes: {{deterministic: [ON]}}\n"
    )
    (row,) = compare(made(tmp_path, text)).rows
    assert cells(row)["deterministic=ON"].error == 0.0


MODELS = """
import torch
from torch import nn
class Chance(nn.Module):
    def forward(self, x):
        return torch.randn_like(x)
class Nothing(nn.Module):
    def forward(self, x):
        return x * float("nan")
class Out:
    def __init__(self, x): self.logits = x
class Wrapped(nn.Linear):
    def forward(self, x):
        return Out(super().forward(x))
class Text(nn.Linear):
    def forward(self, x):
        return "done"
class Ends(nn.Module):
    def forward(self, x):
        raise SystemExit(3)
class Roots(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.first, self.last, self.values = nn.Linear(5, 4), nn.Linear(4, 2), values
    def forward(self, x):
        return self.last(self.first(x) * torch.tensor(self.values)[:, None].to(x))
class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.power = nn.Sequential(nn.Linear(5, 4, bias=False))
        nn.init.ones_(self.power[0].weight)
    def forward(self, x):
        return self.power(x * 1e30) * 1e30
class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.trace(Roots([1.0, 1.0, float("nan")]), torch.ones(3, 5))
    def forward(self, x):
        return self.inner(x)
def scripted(): return Scripted(), torch.ones(3, 5)
def no_number(): return Roots([float("nan")] * 3), torch.ones(3, 5)
def some_numbers(): return Roots([1.0, 1.0, float("nan")]), torch.ones(3, 5)
def large(): return Large(), torch.full((3, 5), 1e30)
def lost():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    model[0].weight.data[2] = float("nan")
    return model, torch.ones(3, 5)
def chance(): return Chance(), torch.ones(30, 50)
def nothing(): return Nothing(), torch.ones(3, 5)
def wrapped(): return Wrapped(5, 4), torch.ones(3, 5)
def text(): return Text(5, 4), torch.ones(3, 5)
def ends(): return Ends(), torch.ones(3, 5)
def lazy(): return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), torch.randn(3, 5)
def complex_(): return nn.Linear(5, 4, dtype=torch.complex64), torch.randn(3, 5, dtype=torch.complex64)
def fixed(): return nn.ReLU(), torch.randn(3, 5)
def rounded():
    model = nn.Linear(5, 4, bias=False)
    nn.init.constant_(model.weight, 1.003)  # 1 in bfloat16
    return model, torch.ones(3, 5)
"""


def of_model(tmp_path: Path, name: str, phase: str = "inference", axes: str = "{deterministic: [ON]}") -> Row:
    (tmp_path / "models.py").write_text(MODELS)
    text = f"compare: {{model: '{tmp_path}/models.py:{name}', phases: {phase}, seconds: 0.001}}\naxes: {axes}\n"
    (row,) = compare(made(tmp_path, text)).rows
    return row


@pytest.mark.parametrize(
    ("name", "phase", "reason"),
    [
        ("chance", "inference", "off float64's: there is nothing to hold a choice against"),
        ("nothing", "inference", "float64's own result has no finite value"),
        ("no_number", "training", "hold a choice against; NaN or infinity comes up first in the input of last (Linear)"),
        (
            "large",
            "inference",
            "hold a choice against; NaN or infinity comes up first in the result of power.0 (Linear)",
        ),
        ("text", "inference", "it cannot run: ValueError: its result, of type str, holds no tensor"),
        ("ends", "inference", "it cannot run: SystemExit: 3"),
        ("fixed", "training", "nothing of its result depends on a parameter that is trained"),
    ],
)
def test_what_nothing_can_be_held_against_has_no_time(tmp_path: Path, name: str, phase: str, reason: str) -> None:
    row = of_model(tmp_path, name, phase)
    assert reason in row.reason
    assert row.cells == []


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("some_numbers", r"2 of 6 .* in the input of last \(Linear\)"),
        ("lost", "3 of 12 .* in its parameter 0.weight"),
        ("scripted", r"2 of 6 .* in the result of Scripted"),
    ],
)
def test_a_model_whose_result_has_nan_is_measured_with_a_warning_that_says_where(tmp_path: Path, name: str, where: str) -> None:
    with pytest.warns(msctx.MsctxWarning, match=f"{name} inference: {where}; errors count the finite values alone"):
        row = of_model(tmp_path, name)
    assert row.cells[0].error < 1e-5


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("name", ["wrapped", "lazy", "complex_"])
def test_models_of_any_kind(tmp_path: Path, name: str, phase: str) -> None:
    row = of_model(tmp_path, name, phase)
    assert not row.reason
    assert 0 < row.cells[0].error < 1e-4


def test_a_choice_that_lowers_the_precision_may_be_further_off(tmp_path: Path) -> None:
    axes = "{way: {exact: {deterministic: ON}, lower: {precision_mode: allow_fp32_to_bf16}}}"
    needs_core()
    found = cells(of_model(tmp_path, "rounded", axes=axes))
    assert (found["exact"].bound, found["lower"].bound) == (1e-3, 0.02)
    assert found["lower"].error == pytest.approx(0.003, rel=0.01)


def test_random_numbers_are_put_back(tmp_path: Path) -> None:
    from msctx.compare.run import run

    (tmp_path / "models.py").write_text(MODELS)
    text = f"compare: {{model: '{tmp_path}/models.py:lazy', seconds: 0.001}}\naxes: {{deterministic: [ON]}}\n"
    of = made(tmp_path, text)
    before = torch.get_rng_state()
    run(of)
    assert torch.equal(torch.get_rng_state(), before)


def turns(monkeypatch: pytest.MonkeyPatch, *found: dict[str, tuple[float, float]]) -> list[list[str]]:
    """What each measurement finds for each choice, a ratio and a spread; who took part is returned."""
    each, seen = iter(found), list[list[str]]()

    def interleaved(entrants: Any, *_: Any) -> dict[str, Ratio]:
        seen.append([entrant.name for entrant in entrants])
        now = next(each)
        return {e.name: Ratio(1e-3 / now.get(e.name, (1.0, 0.0))[0], *now.get(e.name, (1.0, 0.0)), 9) for e in entrants}

    monkeypatch.setattr(comparing, "interleaved", interleaved)
    monkeypatch.setattr(comparing, "seconds_of", lambda *_: 1e-3)
    return seen


TWO = """
compare: {workload: small.yaml, seconds: 0.001, directions: [fprop]}
axes: {way: {a: {seed: 1, seed_scope: true}, b: {deterministic: ON}}}
"""


def test_the_fastest_is_measured_again_and_the_smaller_figure_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = made(tmp_path, TWO, slice(-1, None))
    first = {"a": (1.5, 0.01), "b": (1.3, 0.01)}
    seen = turns(monkeypatch, first, {"again": (1.1, 0.01)}, {"again": (1.4, 0.01)})
    (row,) = compare(of).rows
    assert {name: (cell.ratio, cell.measured) for name, cell in cells(row).items()} == {
        "a": (1.1, [1.5, 1.1]),
        "b": (1.3, [1.3, 1.4]),
    }
    assert cells(row)["a"].ms == pytest.approx(1 / 1.1)
    assert len(seen) == 3
    turns(monkeypatch, first, {})
    (row,) = compare(of).rows
    assert cells(row)["a"].ratio == 1.0, "and where nothing of it is left, it is none"


def test_noise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = made(tmp_path, TWO, slice(-1, None))
    for found, noisy in (
        ({}, False),
        ({comparing.AGAIN: (1.2, 0.0)}, True),
        ({comparing.AGAIN: (1.0, 0.3)}, True),
        ({"a": (0.9, 0.3), "b": (0.9, 0.3)}, True),
        ({"a": (0.9, 0.3)}, False),
    ):
        turns(monkeypatch, found, {}, {})
        (row,) = compare(of).rows
        assert row.noisy is noisy, found


def test_an_error_while_the_winner_is_measured_again_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = turns(monkeypatch, {"a": (1.5, 0.01)}, {"again": (1.5, 0.01)})
    of = made(tmp_path, TWO, slice(-1, None))
    real = comparing.interleaved

    def once(*given: Any) -> Any:
        if seen:
            raise RuntimeError("not now")
        return real(*given)

    monkeypatch.setattr(comparing, "interleaved", once)
    (row,) = compare(of).rows
    assert cells(row)["a"].reason == "torch's own path, when it was measured once more: RuntimeError: not now"
    assert cells(row)["b"].ratio


def test_ctrl_c_between_rounds_keeps_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(entrants: Any, *_: Any) -> Any:
        raise Interrupted({entrant.name: Ratio(1e-3, 1.1, 0.01, 3) for entrant in entrants})

    monkeypatch.setattr(comparing, "interleaved", interrupted)
    outcome = compare(made(tmp_path, TWO))
    assert outcome.partial == "interrupted"
    (row,) = outcome.rows
    assert [cell.ratio for cell in row.cells] == [1.1, 1.1]


@pytest.mark.parametrize(
    ("runs", "ratio", "spread"),
    [
        ([5.0, 4.0], 0.00025, None),  # two take all the time there is
        ([0.04, 0.05, 0.02, 0.05, 0.04], 0.05, None),
        ([5.0, 0.001], 1.5, 0.01),
        ([0.04, 0.04, 0.001], 1.5, 0.01),  # another process disturbed the second
    ],
)
def test_a_hopeless_choice_has_the_fastest_of_its_first_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[float], ratio: float, spread: float | None
) -> None:
    turns(monkeypatch, {"a": (1.5, 0.01)}, {"again": (1.5, 0.01)})
    times = iter([0.001, 0.001, *runs])
    monkeypatch.setattr(comparing, "seconds_of", lambda *_: next(times))
    text = "compare: {workload: small.yaml, seconds: 1, directions: [fprop]}\naxes: {way: {a: {seed: 1, seed_scope: true}}}\n"
    (row,) = compare(made(tmp_path, text, slice(-1, None))).rows
    (cell,) = row.cells
    assert (cell.ratio, cell.spread, cell.noisy) == (pytest.approx(ratio), spread, False)
    assert not list(times), "no more runs and no fewer"


def test_choices_that_come_to_the_same_are_measured_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    text = """
compare: {workload: small.yaml, seconds: 0.001, directions: [fprop]}
axes:
  way:
    as it is: {deterministic: "OFF"}
    gemm: {conv_fprop_algo: gemm}
    gemm, TF32 allowed: {conv_fprop_algo: gemm, conv_allow_tf32: true}
    gemm by rule: {conv_algo_rules: {groups=1: {fprop: gemm}}}
    gemm, frozen: {conv_fprop_algo: gemm, frozen_weights: true}
    winograd: {conv_fprop_algo: winograd}
"""
    of = made(tmp_path, text, slice(1))
    seen = turns(monkeypatch, {"gemm": (1.25, 0.01), "gemm, TF32 allowed": (1.19, 0.01)}, {"again": (1.2, 0.01)}, {}, {})
    (row,) = compare(of).rows
    assert seen[0] == [comparing.TORCH, comparing.AGAIN, "gemm", "gemm, frozen", "winograd"]
    found = cells(row)
    assert {name: cell.same_as for name, cell in found.items()} == {
        "as it is": "",
        "gemm": None,
        "gemm, TF32 allowed": "gemm",
        "gemm by rule": "gemm",
        "gemm, frozen": None,
        "winograd": None,
    }
    assert found["as it is"].ratio == 1.0
    for name in ("gemm", "gemm, TF32 allowed", "gemm by rule"):
        assert (found[name].ratio, found[name].measured) == (1.2, [1.25, 1.2]), "what is the same has the same figure"


def test_rules_that_say_nothing_of_a_layer_have_no_time(tmp_path: Path) -> None:
    needs_core()
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes:
  way:
    other: {conv_algo_rules: {weight=9x9x9x9: {fprop: gemm}}}
    strided: {conv_algo_rules: {weight=8x8x3x3: {fprop: winograd}}}
"""
    first, second, product = (cells(row) for row in compare(made(tmp_path, text)).rows)
    assert first["other"].reason == second["other"].reason == "none of its rules applies to this layer"
    assert "stride" in second["strided"].reason
    assert product["other"].reason == "none of its options applies to forward"


def test_names_of_choices_may_be_any(tmp_path: Path) -> None:
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes: {way: {torch: {}, torch again: {deterministic: "ON"}}}
"""
    for row in compare(made(tmp_path, text)).rows:
        assert all(cell.ratio for cell in row.cells)


def test_an_interrupted_comparison_keeps_its_rows(tmp_path: Path) -> None:
    text = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\naxes: {deterministic: [ON]}\n"
    seen: list[str] = []

    def row(name: str) -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(name)

    before = msctx.get_context()
    outcome = compare(made(tmp_path, text), Watch(row=row))
    assert outcome.partial == "interrupted"
    assert [row.label for row in outcome.rows] == seen
    assert msctx.get_context() == before


def test_quick_begins_with_the_largest_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\naxes: {deterministic: [ON]}\n"
    of = made(tmp_path, text, slice(None, None, -1), quick=True)
    outcome = compare(replace(of, total=1e-9))
    assert outcome.rows == []
    assert "--quick ends" in outcome.partial
    assert [row.name for row in compare(replace(of, total=100.0)).rows] == ["first", "<b>second</b>", "product"]


def test_rules_for_one_layer_are_not_unmatched_in_the_rows_of_others(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Only what matches in no row is."""
    needs_core()
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes:
  way:
    one: {conv_algo_rules: {"weight=8x4x3x3": gemm, "stride=7": gemm}}
    none: {conv_algo_rules: {"stride=9": gemm}}
    layers: {conv_algo_rules: {"weight=8x4x3x3": gemm, "stride=2": gemm}}
"""
    rows = compare(made(tmp_path, text)).rows
    assert [cells(row)["one"].status for row in rows] == ["measured", "no_say", "no_say"]
    told = [str(one.message) for one in recwarn if "no convolution matched" in str(one.message)]
    assert told == [f"conv_algo_rules: no convolution matched stride={n}" for n in (7, 9)]
