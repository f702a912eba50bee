"""Two operators at the same place of two runs."""

from typing import Any

import pytest
import torch

from msctx.verify.child import difference, differing


def ran(operator: str, takes: int, gives: int) -> dict[str, Any]:
    return {
        "operator": operator,
        "overload": "",
        "inputs": [["self", "float32[2]", takes]],
        "outputs": [["", "float32[2]", gives]],
    }


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (ran("a", 0, 1), ran("a", 0, 1), None),
        (ran("a", 0, 1), ran("a", 0, 2), ("operator", [])),
        (ran("a", 0, 1), ran("a", 9, 2), ("input", ["self float32[2]"])),
        (ran("aten::sign", 0, 1), ran("aten::sign", 9, 1), None),  # it hides the difference
        (ran("aten::uniform_", 0, 1), ran("aten::uniform_", 9, 2), ("random", [])),
    ],
)
def test_a_difference_has_a_kind(one: dict[str, Any], other: dict[str, Any], found: Any) -> None:
    assert difference(one, other) == found


def test_by_how_much_tensors_differ() -> None:
    one = torch.tensor([1.0, float("nan"), 3.0])
    assert differing(one, one.clone()) == ""
    assert differing(one, torch.tensor([1.0, float("nan"), 3.5])) == "1 / 3 (33.3%) elements, by 0.5 at index (2,)"
    assert differing(one, torch.tensor([1.0, float("nan"), 3.5]), 0.6) == ""
    assert "shape" in differing(one, one[:2])
