"""Comparisons from files and command lines; every problem at once, and with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from msctx.compare import config
from msctx.compare.config import Given, read
from msctx.errors import OptionError
from msctx.shipped import CONFIGS


def file(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.yaml").write_text(text)
    return str(tmp_path / "mine.yaml")


def test_a_file(tmp_path: Path) -> None:
    text = """
compare: {workload: resnet50, directions: [wgrad, fprop], seconds: 3}
context: {runtime_num_threads: 1, deterministic: "ON"}
axes:
  conv_fprop_algo: [gemm, winograd]
  tf32: {no: {}, yes: {conv_allow_tf32: true}}
"""
    found = read(file(tmp_path, text), Given(overrides=["runtime_num_threads=2"]))
    assert [point.name for point in found.points[:2]] == ["conv_fprop_algo=gemm, no", "conv_fprop_algo=gemm, yes"]
    assert (found.name, found.subject, found.of, found.keys.directions) == ("mine", "workload", "resnet50", ["wgrad", "fprop"])
    assert found.base.settings.get("runtime_num_threads").value == 2  # type: ignore[union-attr]
    assert found.keys.seconds == 3


@pytest.mark.parametrize("path", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_comparisons(path: Path) -> None:
    found = read(path.stem, Given())
    assert len(found.points) > 1
    assert read(str(path), Given(quick=True)).total == config.QUICK_TOTAL


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("compare: {workload: resnet5}", "did you mean resnet50?"),
        ('compare: {workload: resnet50}\naxes: {way: {"": {deterministic: ON}}}', "a choice has no name"),
        ("compare: {workload: resnet50, model: a:b}", "give one thing to compare, not workload and model"),
        ("compare: {workload: resnet50}\naxes: {conv_fprop_algo: gemm}", "is not a list of values"),
        ("compare: {workload: resnet50}\naxis: {}", "did you mean axes?"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=r"mine\.yaml") as caught:
        read(file(tmp_path, text), Given())
    assert told in str(caught.value)
