"""Depthwise problems of odd sizes, their tensors, and what float64 makes of them."""

from typing import Any

import numpy as np
import torch
from emulated import GARBAGE, Emulation

from msctx.native.cuda.depthwise import OPS, DepthwiseProblem

DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYOUTS = ("nchw", "channels_last")
TARGET = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
ROUNDING = {"float32": 0.0, "float64": 0.0, "float16": 2**-11, "bfloat16": 2**-8}
"""Of a result that is narrower than its sum."""
BOUNDS = {"float32": 2e-6, "float64": 4e-15, "float16": 2**-11 + 2e-6, "bfloat16": 2**-8 + 2e-6}
"""Of \\|error\\| / max\\|result\\|: half a unit of the dtype where that is a narrow one, and what the sums lose."""

CASES: dict[str, tuple[Any, ...]] = {
    "3x3": (2, 5, 2, (9, 8), (3, 3), (1, 1), (1, 1)),
    "3x3, stride 2": (2, 3, 1, (10, 7), (3, 3), (2, 2), (1, 1)),
    "3x3, stride 2, phases": (1, 2, 3, (7, 9), (3, 3), (2, 2), (2, 0)),
    "5x5": (1, 33, 1, (6, 11), (5, 5), (1, 1), (2, 3)),
    "5x5, stride 2": (3, 2, 2, (13, 8), (5, 5), (2, 2), (3, 1)),
    "7x7": (2, 3, 2, (8, 13), (7, 7), (1, 1), (3, 2)),
    "7x7, no padding": (1, 2, 1, (7, 7), (7, 7)),
    "1x1": (3, 7, 2, (5, 3), (1, 1)),
    "1x1, stride 3": (1, 4, 1, (8, 7), (1, 1), (3, 2), (1, 0)),
    "not square": (2, 3, 2, (9, 12), (2, 3), (1, 3), (2, 4), (2, 1)),
    "dilation 2, stride 2": (1, 3, 1, (11, 10), (3, 3), (2, 2), (2, 3), (2, 2)),
    "dilation 4, stride 6": (1, 2, 2, (21, 20), (4, 3), (6, 6), (5, 1), (4, 9)),
    "1-D": (2, 5, 2, (1, 37), (1, 5), (1, 2), (0, 2)),
    "31x31": (1, 2, 1, (20, 33), (31, 31), (1, 1), (15, 15)),
    "several chunks": (3, 2, 1, (40, 51), (3, 3), (1, 1), (1, 1)),
    "rows that no window reaches": (1, 2, 1, (10, 11), (3, 3), (4, 5)),
}
"""n, c, multiplier, extent, window, stride, padding, dilation."""


def problem(case: str, dtype: str, layout: str) -> DepthwiseProblem:
    return DepthwiseProblem(dtype, layout, *CASES[case])


def shapes(p: DepthwiseProblem) -> dict[str, tuple[int, ...]]:
    return {"x": (p.n, p.c, *p.extent), "w": (p.k, 1, *p.window), "y": (p.n, p.k, *p.out)}


def tensors(p: DepthwiseProblem, seed: int = 0) -> dict[str, torch.Tensor]:
    """Normal x and w, and as y its gradient; in the dtype of the problem, channels first."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes(p).items()}
    return {name: tensor.to(getattr(torch, p.dtype)) for name, tensor in made.items()}


def truth(p: DepthwiseProblem, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each op makes of the values given, in float64 by torch on the CPU."""
    x, w, y = (given[name].double().clone() for name in "xwy")
    x.requires_grad_()
    w.requires_grad_()
    found = torch.nn.functional.conv2d(x, w, None, p.stride, p.pad, p.dilation, p.c)
    assert tuple(found.shape) == tuple(y.shape)
    gradients = torch.autograd.grad(found, (x, w), y)
    return {"fprop": found.detach(), "dgrad": gradients[0], "wgrad": gradients[1]}


def stored(tensor: torch.Tensor, is_last: bool) -> np.ndarray[Any, Any]:
    """Its bits as they lie in memory."""
    tensor = (tensor.permute(0, 2, 3, 1) if is_last else tensor).contiguous()
    found = tensor.view(torch.int16).numpy().view(np.uint16) if tensor.element_size() == 2 else tensor.numpy()
    return found.copy()


def run(emulation: Emulation, p: DepthwiseProblem, op: str, given: dict[str, torch.Tensor], **how: bool) -> torch.Tensor:
    """The result of *op*, channels first. What it does not write is garbage."""
    assert op in OPS
    target = TARGET[op]
    is_last = {name: p.layout == "channels_last" and name != "w" for name in "xwy"}
    arrays = {name: stored(given[name], is_last[name]) for name in "xwy"}
    arrays[target].view(np.uint8)[...] = GARBAGE
    emulation.run(p, op, arrays, **how)
    array = arrays[target]
    found = torch.from_numpy(array.view(np.int16)) if array.dtype == np.uint16 else torch.from_numpy(array)
    found = found.view(getattr(torch, p.dtype))
    return found.permute(0, 3, 1, 2) if is_last[target] else found


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """|error| / max|result|."""
    assert found.shape == right.shape
    return float((found.double() - right).abs().max() / right.abs().max())


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()
