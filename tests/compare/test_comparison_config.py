"""Comparisons from files and command lines; every problem at once, and with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from msctx.compare import config
from msctx.compare.config import Comparison, Given, combined, pairs, read
from msctx.compare.workload import NetworkLayer, Product
from msctx.errors import OptionError
from msctx.shipped import CONFIGS


def file(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.yaml").write_text(text)
    return str(tmp_path / "mine.yaml")


def names(comparison: Comparison) -> list[str]:
    return [point.name for point in comparison.points]


def test_a_file(tmp_path: Path) -> None:
    text = """
compare: {workload: resnet50, directions: [wgrad, fprop], batch: 2, seconds: 3}
context: {runtime_num_threads: 1, deterministic: "ON"}
axes:
  conv_fprop_algo: [gemm, winograd]
  tf32: {no: {}, yes: {conv_allow_tf32: true}}
"""
    found = read(file(tmp_path, text), Given(overrides=["runtime_num_threads=2"]))
    assert names(found)[:2] == ["conv_fprop_algo=gemm, no", "conv_fprop_algo=gemm, yes"]
    assert (found.name, found.subject, found.of, found.keys.directions) == ("mine", "workload", "resnet50", ("fprop", "wgrad"))
    assert found.base.settings.get("runtime_num_threads").value == 2  # type: ignore[union-attr]
    assert found.layers is not None
    assert found.layers.layers[0].problem.input[0] == 2  # type: ignore[union-attr]
    assert found.keys.seconds == 3


@pytest.mark.parametrize("path", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_comparisons(path: Path) -> None:
    found = read(path.stem, Given())
    assert len(found.points) > 1
    assert read(str(path), Given(quick=True)).total == config.QUICK_TOTAL


@pytest.mark.parametrize(
    ("subject", "given", "kind"),
    [
        ("conv", {"keys": {"workload": "vgg16"}}, "workload"),
        ("matmul", {"shapes": ["64x32x16", "8X8X8"]}, "workload"),
        ("resnet50", {}, "workload"),
        ("package.module:function", {}, "model"),
        ("digits", {}, "experiment"),
    ],
)
def test_quick_forms(subject: str, given: dict[str, Any], kind: str) -> None:
    found = read(subject, Given(**given))
    assert found.subject == kind
    assert len(found.points) > 1


def test_what_is_no_convolution_is_left_out_of_conv_and_the_other_way_round() -> None:
    both = (read(kind, Given(keys={"workload": "resnet50"})).layers for kind in ("conv", "matmul"))
    counts = [len(layers.layers) for layers in both if layers is not None]
    assert counts == [23, 1]
    found = read("matmul", Given(shapes=["64x32x16"])).layers
    assert found is not None
    assert found.layers == (NetworkLayer("64x32x16", Product((64, 32), (32, 16))),)


def test_an_experiment_file_is_a_subject_itself(tmp_path: Path) -> None:
    name = file(tmp_path, "context: {seed: 1}\nexperiment: {entry: train.py:train}\n")
    found = read(name, Given(axes=["deterministic=ON,OFF"]))
    assert (found.subject, found.of, names(found)) == ("experiment", name, ["deterministic=ON", "deterministic=OFF"])


def test_a_files_own_run_is_the_subject_where_none_is_named(tmp_path: Path) -> None:
    name = file(tmp_path, "compare: {repetitions: 2}\nexperiment: {entry: train.py:train}\n")
    found = read(name, Given(axes=["deterministic=ON,OFF"]))
    assert (found.subject, found.of, found.keys.repetitions) == ("experiment", name, 2)


def test_a_workloads_file_is_a_subject(tmp_path: Path) -> None:
    found = read(file(tmp_path, "workload: {layers: [{a: 3x4, b: 4x5}]}\n"), Given(axes=["deterministic=ON"]))
    assert found.subject == "workload"
    assert found.layers is not None
    assert [layer.name for layer in found.layers.layers] == ["layer 1"]


def test_values_with_commas_stand_in_a_list() -> None:
    found = read("digits", Given(axes=["optypelist_for_implmode=['Sqrt,Exp','Log']"]))
    assert [point.options["optypelist_for_implmode"] for point in found.points] == ["Sqrt,Exp", "Log"]
    for text in ("true,false", "[true, false]"):
        found = read("digits", Given(axes=[f"conv_allow_tf32={text}"]))
        assert [point.options["conv_allow_tf32"] for point in found.points] == [True, False]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("compare: {workload: resnet5}", "did you mean resnet50?"),
        ("compare: {workload: resnet50, model: a:b}", "give one thing to compare, not workload and model"),
        ("compare: {}", "give something to compare"),
        ("compare: {workload: resnet50, second: 2}", "did you mean seconds?"),
        ("compare: {workload: resnet50, directions: [forward]}", "'forward' is not one of them"),
        ("compare: {workload: resnet50}\naxes: {conv_fprop_alg: [gemm]}", "did you mean conv_fprop_algo?"),
        ("compare: {workload: resnet50}\naxes: {conv_fprop_algo: [gemm, winogrd]}", "did you mean 'winograd'?"),
        ("compare: {workload: resnet50}\naxes: {mine: {a: {conv_fprop_algo: gem}}}", "did you mean 'gemm'?"),
        ("compare: {workload: resnet50}\naxes: {conv_fprop_algo: gemm}", "is not a list of values"),
        ("compare: {workload: resnet50}\naxes: [1]", "axes: is not a dictionary"),
        ("compare: {workload: resnet50}\ncontext: {determinstic: ON}", "did you mean deterministic?"),
        ("compare: {workload: resnet50}\naxis: {}", "did you mean axes?"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=r"mine\.yaml") as caught:
        read(file(tmp_path, text), Given())
    assert told in str(caught.value)


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = "compare: {workload: nothing, batch: 0}\ncontext: {sed: 1}\naxes: {conv_fprop_algo: [gem]}\n"
    with pytest.raises(OptionError) as caught:
        read(file(tmp_path, text), Given(axes=["x=1"], shapes=["1x2"], keys={"seconds": -1}))
    assert len(caught.value.problems) >= 7


def test_options_that_cannot_stand_together_are_a_points_own_reason(tmp_path: Path) -> None:
    text = "compare: {workload: resnet50}\naxes: {deterministic: [ON], session.deterministic: [0, 1]}\n"
    found = read(file(tmp_path, text), Given())
    assert [*combined(found.points)] == ["deterministic=ON, session.deterministic=0"]


def test_pairs_that_differ_in_one_option(tmp_path: Path) -> None:
    text = "compare: {workload: resnet50}\naxes: {deterministic: [OFF, ON], conv_fprop_algo: [gemm, winograd]}\n"
    found = pairs(read(file(tmp_path, text), Given()), "deterministic")
    assert [(one.options["conv_fprop_algo"], a, b) for one, _, a, b in found] == [
        ("gemm", "OFF", "ON"),
        ("winograd", "OFF", "ON"),
    ]


def test_pairs_differ_in_what_holds_whatever_it_is_spelled(tmp_path: Path) -> None:
    text = "compare: {workload: resnet50}\naxes: {session.deterministic: [0, 1]}\n"
    ((_, _, off, on),) = pairs(read(file(tmp_path, text), Given()), "deterministic")
    assert (off, on) == ("OFF", "ON")
    text = "compare: {workload: resnet50}\ncontext: {deterministic: ON}\naxes: {way: {a: {}, b: {deterministic: ON}}}\n"
    assert pairs(read(file(tmp_path, text), Given()), "deterministic") == []


def test_a_choice_has_a_name(tmp_path: Path) -> None:
    """An empty one stands for torch's own path in results, whose figures it would show as its own."""
    (tmp_path / "mine.yaml").write_text('compare: {workload: resnet50}\naxes: {way: {"": {deterministic: ON}}}\n')
    with pytest.raises(OptionError, match="a choice has no name"):
        read(str(tmp_path / "mine.yaml"), Given())
