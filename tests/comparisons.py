"""A small model, small layers and made-up figures for the tests of comparisons."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
from msctx.compare import timed_cases
from msctx.compare.config import Comparison, Given, read
from msctx.compare.layer_workload_file import NetworkLayer, Product, Workload, dump, parse
from msctx.compare.result_and_recommendation import Cell, Row
from msctx.native import build
from msctx.native.policy_and_choices import ConvProblem
from msctx.options.yaml_json_ini import parse as parse_yaml

MODEL = """
import torch
from torch import nn

def make(width=8):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.5),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4),
    ), torch.randn(2, 3, 12, 12)

def nothing():
    return 3

def raising():
    raise ValueError("out of paper")
"""

WORKLOAD = """
workload:
  name: small
  layers:
    - {name: first, input: 1x4x12x12, weight: 8x4x3x3, padding: 1, count: 3}
    - {name: <b>second</b>, input: 1x8x12x12, weight: 8x8x3x3, stride: 2}
    - {name: product, a: 8x16, b: 16x4}
"""
SMALL = "compare: {workload: small.yaml, directions: [fprop], seconds: 0.001}\n"


def model_file(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def needs_core() -> None:
    if why := build.obstacle():
        pytest.skip(why)


def made(tmp_path: Path, text: str, layers: slice | None = None, **given: Any) -> Comparison:
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    (tmp_path / "mine.yaml").write_text(text)
    found = read(str(tmp_path / "mine.yaml"), Given(**given))
    if layers is not None:
        assert found.layers is not None
        found = replace(found, layers=replace(found.layers, layers=found.layers.layers[layers]))
    return found


def cell(point: str, ratio: float | None = None, error: float = 1e-6, **more: Any) -> Cell:
    head = {
        "point": point,
        "requested": {},
        "ran": point.partition("=")[2],
        "error": error,
        "bound": 1e-4,
        "status": "measured",
    }
    if ratio is None:
        return Cell(**{**head, "status": "unable", "reason": "it cannot", **more})
    figures = {"ratio": ratio, "spread": 0.02, "ms": 1.0, "workspace": 0}
    return Cell(**{**head, **figures, **more})


PROBLEMS = {one.name: str(one.problem) for one in parse(parse_yaml(WORKLOAD, ""), "").layers}


def row(name: str, cells: list[Cell], count: int = 1, ms: float = 10.0, direction: str = "fprop", **more: Any) -> Row:
    head = {"name": name, "direction": direction, "problem": PROBLEMS.get(name, ""), "count": count}
    baseline = {"ran": "torch", "ms": ms, "error": 1e-7}
    return Row(**{**head, "baseline": baseline, "control_spread": 0.0, "rounds": 5, "cells": cells, **more})


def of_layers(
    folder: Path, problems: Iterable[ConvProblem | Product], way: str, keys: str = "", context: str = "{}"
) -> Comparison:
    """The comparison of two ways for a network of these layers."""
    named = tuple(NetworkLayer(f"layer{n}", problem) for n, problem in enumerate(problems))
    (folder / "layers.yaml").write_text(dump(Workload("layers", named)))
    text = f"compare: {{workload: layers.yaml{keys}}}\ncontext: {context}\naxes: {{way: {way}}}\n"
    (folder / "mine.yaml").write_text(text)
    return read(str(folder / "mine.yaml"), Given())


def _cases(of: Comparison) -> Iterator[timed_cases.Case]:
    assert of.layers is not None
    for layer in of.layers.layers:
        yield from timed_cases.of_layer(layer, of.keys["directions"], torch.device("cpu"))


def measured(of: Comparison, speeds: Sequence[tuple[float, float]]) -> list[Row]:
    """A row for each layer and direction with the speed of both ways; 0: it has no time."""
    found = []
    for number, case in enumerate(_cases(of)):
        pair = zip("ab", speeds[number % len(speeds)], strict=True)
        cells = [cell(point, speed or None, 1e-7, spread=0.01) for point, speed in pair]
        found.append(row(case.name, cells, case.count, 1.0 + number, case.direction, problem=case.problem))
    return found


def requested_under(of: Comparison, options: dict[str, Any]) -> list[str]:
    """The algorithm that each row of a comparison gets under options, empty: none."""
    found = []
    for case in _cases(of):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", msctx.MsctxWarning)  # rules for the other layers match nothing here
            with msctx.context(**options, fallback="silent") as ctx:
                case.run()
        found.append("".join(row.requested for row in ctx.choices()))
    return found
