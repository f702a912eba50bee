"""Workload files: what is wrong is reported with its place, what is right is read and written the same."""

from __future__ import annotations

import pytest

from msctx.compare.workload import NetworkLayer, Product, Workload, dump, known, parse, read
from msctx.errors import FileError, OptionError
from msctx.native.choices import ConvProblem
from msctx.options.yamlfile import parse as parse_yaml


def parsed(text: str) -> Workload:
    return parse(parse_yaml(text, "mine.yaml", collect=True), "mine")


def layer(text: str) -> NetworkLayer:
    return parsed(f"workload: {{layers: [{{{text}}}]}}").layers[0]


@pytest.mark.parametrize("name", known())
def test_shipped_workloads(name: str) -> None:
    found = read(name)
    assert found.name == name
    assert found.source
    assert parsed(dump(found)) == found
    assert len({one.name for one in found.layers}) == len(found.layers)


OPERATIONS = {"resnet50": 4.1e9, "vgg16": 15.5e9, "convnext_t": 4.5e9, "replknet31b": 15.3e9, "mobilenet_v1": 0.57e9}
"""Multiplications with an addition of one image as the papers have them (He: 3.8e9 without the last layer's stride in the 3x3)."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_shipped_workloads_have_the_published_work(name: str) -> None:
    found = sum(one.operations * one.count for one in read(name).layers) / 2
    assert found == pytest.approx(OPERATIONS[name], rel=0.05)


def test_what_has_a_default_may_be_left_out() -> None:
    found = layer("input: 1x8x16x16, weight: 4x8x3x3")
    assert isinstance(found.problem, ConvProblem)
    assert (found.problem.stride, found.problem.padding, found.count) == ((1, 1), (0, 0), 1)
    assert str(found.problem) == "1x8x16x16 * 4x8x3x3, float32, channels_first"
    assert layer("a: [3, 4], b: [4, 5], count: 2") == NetworkLayer("layer 1", Product((3, 4), (4, 5)), count=2)
    assert layer("a: 3x4, b: 4x5, b_transposed: true") == NetworkLayer("layer 1", Product((3, 4), (4, 5), b_transposed=True))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("input: 1x8x16x16", "weight is missing"),
        ("input: 1x8x0x16, weight: 4x8x3x3", "'1x8x0x16' is no shape"),
        ("input: 1x8x16x16, weight: 4x7x3x3", "does not fit the weight: Invalid channel dimensions"),
        ("input: 1x8x16x16, weight: 4x8x3", "same number of axes"),
        ("input: 1x8x2x2, weight: 4x8x3x3", "Kernel size can't be greater than actual input size"),
        ("input: 1x8x16x16, weight: 4x8x3x3, stride: 0", "stride: 0 is no size"),
        ("input: 1x8x16x16, weight: 4x8x3x3, strid: 2", "did you mean stride?"),
        ("input: 1x8x16x16, weight: 4x8x3x3, dtype: float8", "'float8' is not one of the values"),
        ("input: 1x8x16x16, weight: 4x8x3x3, count: 0", "count: 0 is out of range"),
        ("a: 3x4, b: 5x6", "3x4 @ 5x6 is not a product of matrices"),
        ("a: 3x4, b: 4x6, weight: 3x3", "weight: unknown key"),
        ("name: x", "input is missing"),
        ("input: 1x8x16x16, weight: 4x8x1x3, padding: 0x1, stride: 0x1", "stride: '0x1' is no size"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(OptionError, match=r"mine\.yaml:1:") as caught:
        layer(text)
    assert told in str(caught.value)


def test_what_yaml_takes_for_a_hexadecimal_is_a_size_for_each_axis() -> None:
    found = layer("input: 1x8x16x16, weight: 4x8x1x3, padding: 0x1")
    assert found.problem.padding == (0, 1)  # type: ignore[union-attr]


def test_all_problems_at_once_and_in_their_order() -> None:
    text = "workload:\n  name: w\n  sorce: x\n  layers:\n    - {a: 1x2, b: 3x4}\n    - {input: 1x1}\n"
    with pytest.raises(OptionError) as caught:
        parsed(text)
    lines = [problem.mark.line for problem in caught.value.problems if problem.mark]
    assert lines == sorted(lines)
    assert len(lines) >= 3


def test_names_of_workloads() -> None:
    with pytest.raises(FileError, match="did you mean resnet50"):
        read("resnet5")
    with pytest.raises(FileError, match="No such file"):
        read("nowhere.yaml")
    with pytest.raises(OptionError, match="workload: is missing"):
        parsed("context: {}")
