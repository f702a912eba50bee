"""Workload files: what is wrong is reported with its place, what is right is read and written the same."""

from __future__ import annotations

import pytest

from msctx.compare.workload import NetworkLayer, Product, Workload, dump, parse, read
from msctx.errors import OptionError
from msctx.native.choices import ConvProblem
from msctx.options.yamlfile import parse as parse_yaml
from msctx.shipped import shipped


def parsed(text: str) -> Workload:
    return parse(parse_yaml(text, "mine.yaml", collect=True), "mine")


def layer(text: str) -> NetworkLayer:
    return parsed(f"workload: {{layers: [{{{text}}}]}}").layers[0]


@pytest.mark.parametrize("name", shipped("workloads"))
def test_shipped_workloads(name: str) -> None:
    found = read(name)
    assert found.name == name
    assert found.source
    assert parsed(dump(found)) == found
    assert len({one.name for one in found.layers}) == len(found.layers)


def test_what_has_a_default_may_be_left_out() -> None:
    found = layer("input: 1x8x16x16, weight: 4x8x3x3")
    assert isinstance(found.problem, ConvProblem)
    assert (found.problem.stride, found.problem.padding, found.count) == ((1, 1), (0, 0), 1)
    assert str(found.problem) == "1x8x16x16 * 4x8x3x3, float32, channels_first"
    assert layer("a: [3, 4], b: [4, 5], count: 2") == NetworkLayer("layer 1", Product((3, 4), (4, 5)), count=2)
    assert layer("input: 1x8x16x16, weight: 4x8x1x3, padding: 0x1").problem.padding == (0, 1), "no hexadecimal number"
    assert layer("a: 3x4, b: 4x5, b_transposed: true") == NetworkLayer("layer 1", Product((3, 4), (4, 5), b_transposed=True))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("input: 1x8x0x16, weight: 4x8x3x3", "'1x8x0x16' is not allowed"),
        ("input: 1x8x16x16, weight: 4x7x3x3", "does not fit the weight: Invalid channel dimensions"),
        ("input: 1x8x2x2, weight: 4x8x3x3", "Kernel size can't be greater than actual input size"),
        ("input: 1x8x16x16, weight: 4x8x3x3, strid: 2", "did you mean stride?"),
        ("input: 1x8x16x16, weight: 4x8x3x3, dtype: float8", "'float8' is not allowed"),
        ("a: 3x4, b: 5x6", "3x4 @ 5x6 is not a product of matrices"),
        ("a: 3x4, b: 4x6, weight: 3x3", "weight: unknown key"),
        ("input: 1x8x16x16, weight: 4x8x1x3, padding: 0x1, stride: 0x1", "stride: 0x1 does not fit"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(OptionError, match=r"mine\.yaml:1:") as caught:
        layer(text)
    assert told in str(caught.value)
