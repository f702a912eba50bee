"""The comparison itself, run for real on small layers: correctness first, every cell a figure or a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import WORKLOAD, model_file, needs_core

import msctx
from msctx.compare import comparison as comparing
from msctx.compare.cases import Case
from msctx.compare.comparison import Watch, compare
from msctx.compare.config import Comparison, Given, read

pytestmark = pytest.mark.usefixtures("one_thread")


def made(tmp_path: Path, text: str, **given: Any) -> Comparison:
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    (tmp_path / "mine.yaml").write_text(text)
    return read(str(tmp_path / "mine.yaml"), Given(**given))


def cells(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["point"]: cell for cell in row["cells"]}


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
    rows = {(row["name"], row["direction"]): row for row in outcome.rows}
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
    assert first["gemm"]["ran"] == "gemm"
    assert first["gemm"]["asked"] == {"conv_fprop_algo": "gemm"}
    assert 0 < first["gemm"]["error"] <= first["gemm"]["bound"] < 1e-3
    assert first["gemm"]["ratio"] > 0
    assert first["gemm"]["peak_bytes"] >= 8 * 144 * 4
    assert first["winograd"]["ran"].startswith("winograd")
    assert first["deterministic"]["ran"] == "torch"
    assert rows["first", "fprop"]["count"] == 3
    assert rows["first", "fprop"]["rounds"] == 5
    assert "no option of it speaks of dgrad" in cells(rows["first", "dgrad"])["gemm"]["reason"]
    strided = cells(rows["<b>second</b>", "fprop"])["winograd"]
    assert "ratio" not in strided
    assert "stride" in strided["reason"], "what cannot run has torch's time for nobody's"
    assert "no option of it speaks of forward" in cells(rows["product", "forward"])["gemm"]["reason"]
    assert "ratio" in cells(rows["product", "forward"])["deterministic"]


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
    assert (inference["direction"], training["direction"]) == ("inference", "training")
    for row in (inference, training):
        found = cells(row)
        assert found["gemm"]["error"] < 1e-5 < found["bf16"]["error"] < 0.1
        assert "gemm" in found["gemm"]["ran"]
        assert "products in bfloat16" in found["bf16"]["ran"]


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
        assert "ratio" in found["deterministic=OFF"]
        assert "ratio" not in found["deterministic=ON"]
        assert "is outside the bound of 2.0e-02" in found["deterministic=ON"]["reason"]
        assert found["deterministic=ON"]["error"] == pytest.approx(1.0, rel=1e-3)


def test_options_that_are_not_carried_out_have_no_time(tmp_path: Path) -> None:
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes:
  way:
    for another device: {gpu_config.conv_allow_tf32: true}
    not here: {mode: 0}
    in part: {deterministic: "ON", mode: 0}
"""
    for row in compare(made(tmp_path, text)).rows:
        found = cells(row)
        assert found["for another device"]["reason"].startswith("gpu_config.conv_allow_tf32 ")
        assert found["not here"]["reason"].startswith("mode not_built: ")
        assert "ratio" in found["in part"]
        assert found["in part"]["told"].startswith("mode not_built: ")


def test_a_choice_that_fails_does_not_end_it(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("not under this\\nsecond line")
        return x * 2
def make():
    return Model(), torch.ones(3)
""")
    text = f"""
compare: {{model: "{tmp_path}/failing.py:make", phases: inference, seconds: 0.001}}
axes: {{deterministic: [ON, OFF]}}
"""
    (row,) = compare(made(tmp_path, text)).rows
    assert cells(row)["deterministic=ON"]["reason"] == "RuntimeError: not under this"
    assert "ratio" in cells(row)["deterministic=OFF"]


@pytest.mark.parametrize("when", [1, 4, 6])
def test_a_choice_that_fails_late_or_otherwise_does_not_end_it(tmp_path: Path, when: int) -> None:
    (tmp_path / "failing.py").write_text(f"""
import torch
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        if torch.are_deterministic_algorithms_enabled():
            self.calls += 1
            assert self.calls < {when}, "no more"
        return x * 2
def make():
    return Model(), torch.ones(3)
""")
    text = f"""
compare: {{model: "{tmp_path}/failing.py:make", phases: inference, seconds: 0.001}}
axes: {{deterministic: [ON, OFF]}}
"""
    (row,) = compare(made(tmp_path, text)).rows
    assert cells(row)["deterministic=ON"]["reason"] == "AssertionError: no more"
    assert "ratio" in cells(row)["deterministic=OFF"]


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
    assert cells(row)["deterministic=ON"]["error"] == 0.0


def test_names_of_choices_may_be_any(tmp_path: Path) -> None:
    text = """
compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}
axes: {way: {torch: {}, torch again: {deterministic: "ON"}}}
"""
    for row in compare(made(tmp_path, text)).rows:
        assert all("ratio" in cell for cell in row["cells"])


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
    assert [f"{row['name']} {row['direction']}" for row in outcome.rows] == seen
    assert msctx.get_context() == before


def test_quick_begins_with_the_largest_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\naxes: {deterministic: [ON]}\n"
    found = made(tmp_path, text, quick=True)
    object.__setattr__(found, "total", 1e-9)
    outcome = compare(found)
    assert outcome.rows == []
    assert "--quick ends" in outcome.partial
    object.__setattr__(found, "total", 100.0)
    assert [row["name"] for row in compare(found).rows] == ["first", "<b>second</b>", "product"]
