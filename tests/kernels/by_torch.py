"""Convolutions and their gradients by torch, in float64: what the reference is checked against."""

from typing import Any

import torch
from cases import Case
from checks import Array, Tensors
from torch.nn import functional

from kernels import BACKWARD_WEIGHT, FORWARD, widen

CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)


def by_torch(op: int, case: Case, given: Tensors) -> Array:
    """The result of *op* for x, w and y as they are stored."""
    x, w, y = (torch.from_numpy(widen(t)) for t in given)
    x.requires_grad_(), w.requires_grad_()
    forward: Any = CONVOLUTIONS[len(case.size) - 1]
    result = forward(x, w, None, case.stride, case.padding, case.dilation, case.groups)
    if op == FORWARD:
        return result.detach().numpy()
    wanted = w if op == BACKWARD_WEIGHT else x
    (gradient,) = torch.autograd.grad(result, [wanted], y)
    return gradient.numpy()
