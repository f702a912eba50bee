"""A small model and small layers for the tests of comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

from msctx.native import build

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


def model_file(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def needs_core() -> None:
    if why := build.obstacle():
        pytest.skip(why)
