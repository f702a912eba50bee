"""Products of parts beside torch's own path: their errors against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from convs import DIRECTIONS, Conv, Results, conv, in_float64
from torch import Tensor

import msctx

PROBLEMS = [
    conv("3x3", (2, 96, 14, 15), (80, 96, 3, 3), padding=1),
    conv("1x1", (1, 512, 9, 9), (64, 512, 1, 1)),
    conv("strided", (2, 40, 21, 20), (48, 40, 5, 5), stride=2, padding=2),
    conv("few positions", (1, 256, 7, 7), (128, 256, 3, 3), padding=1),
]
DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda t: t,
    "positive": lambda t: t.abs(),
    "half of it zeros": torch.relu,
    "tiny": lambda t: t * 1e-25,
    "exponents spread": lambda t: t * torch.exp2(torch.randint(-10, 10, t.shape, generator=torch.Generator().manual_seed(0))),
}
LEAST = 1e-6
"""What an error may be where torch's is smaller: below eight units in the last place of the largest result."""


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_errors_are_not_larger_than_torchs(problem: Conv, kind: str) -> None:
    """In units of the largest result; torch's in the memory format in which it is less exact."""
    tensors = [DATA[kind](t) for t in problem.tensors()]
    right = in_float64(problem, tensors)._asdict()

    def errors(found: Results) -> dict[str, float]:
        return {d: float((getattr(found, d) - right[d]).abs().max() / right[d].abs().max()) for d in DIRECTIONS}

    last = [t.contiguous(memory_format=torch.channels_last) for t in tensors]
    theirs = [errors(problem.compute(each)) for each in (tensors, last)]
    options = {"conv_fprop_algo": "implicit_precomp_gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
    with msctx.context(**options, fallback="error") as ctx:
        ours = errors(problem.compute(tensors))
    assert {row.direction for row in ctx.choices()} == {*ours}
    for direction, error in ours.items():
        assert error <= max(LEAST, *(found[direction] for found in theirs)), direction
