"""What the tests of kept weights share: weights, what is counted, and the same from a fresh copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as fn

import msctx

WINOGRAD = {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd", "fallback": "error"}
X = torch.randn(2, 6, 9, 10)


def weight(*shape: int) -> Tensor:
    return torch.randn(shape or (5, 6, 3, 3))


def counted(ctx: msctx.Context, direction: str = "fprop") -> tuple[int, int]:
    """How many weights were kept and how many prepared."""
    found = [row for row in ctx.choices() if row.direction == direction]
    return sum(row.weights_kept for row in found), sum(row.weights_prepared for row in found)


def fresh(x: Tensor, w: Tensor) -> Tensor:
    """With a copy of the weight that nobody has seen."""
    return fn.conv2d(x, w.detach().clone())


Change = Callable[[Tensor], object]


def by_dlpack(w: Tensor) -> None:
    torch.from_dlpack(w.__dlpack__())[1, 2, 0, 1] += 1


def by_another_tensor_of_its_storage(w: Tensor) -> None:
    torch.empty(0).set_(w.untyped_storage(), w.storage_offset() + 7, (1,)).add_(1)


CHANGES: dict[str, Change] = {
    "in place": lambda w: w.mul_(1.5),
    "one element": lambda w: w[0, 0, 0, 0].add_(1),
    "the last bit of the last element": lambda w: w.view(-1).view(torch.int32)[-1].bitwise_xor_(1),
    "the sign of a zero": lambda w: w.view(torch.int32)[0, 0, 0, 0].bitwise_xor_(-(2**31)),
    "two that change places": lambda w: w.copy_(w[[1, 0, *range(2, len(w))]]),
    "in place on .data": lambda w: w.data.add_(1),
    "an assignment to .data": lambda w: setattr(w, "data", w.data * 2),
    "a detached alias": lambda w: w.detach().neg_(),
    "NumPy": lambda w: w.numpy()[1].__iadd__(1),
    "DLPack": by_dlpack,
    "set_": lambda w: w.set_(torch.randn_like(w)),
    "another tensor of its storage": by_another_tensor_of_its_storage,
    "a storage of another size": lambda w: (w.untyped_storage().resize_(0), w.untyped_storage().resize_(w.nbytes), w.normal_()),
    "resize_": lambda w: w.resize_(7, 6, 3, 3).normal_(),
    "values that are spread far": lambda w: w.mul_(torch.logspace(-9, 9, w.numel()).view_as(w)),
}
"""Ways to change a weight: by name, what does it."""
