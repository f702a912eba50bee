"""The user's own model."""

from __future__ import annotations

from pathlib import Path

from msctx.compare.model import load


def test_inputs_in_dictionaries_and_tuples(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("""
import torch
class Two(torch.nn.Module):
    def forward(self, x, *, scale):
        return {"a": x * scale, "b": [x + 1, "text"]}
def make():
    return Two(), {"x": torch.ones(2), "scale": torch.tensor(3.0)}
def pair():
    return torch.nn.Bilinear(2, 3, 4), (torch.ones(1, 2), torch.ones(1, 3))
""")
    first, second = load(f"{tmp_path / 'two.py'}:make").forward()
    assert (first.tolist(), second.tolist()) == ([3, 3], [2, 2])
    assert load(f"{tmp_path / 'two.py'}:pair").forward()[0].shape == (1, 4)
