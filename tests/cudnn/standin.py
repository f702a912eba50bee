"""Convolutions of a device that is not the CPU, run by a stand-in for cuDNN: the real hook, policy and descriptors, without CUDA.

For an interpreter of its own that has the device far (see far_device.py).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import far_device
import torch

from msctx.native import core, policy
from msctx.native.choices import Choice, between
from msctx.native.choices import rows as rows_of

SOURCE = Path(__file__).with_name("cudnn_standin.cpp")
FAR = "far"
_torchs_own = torch.library.Library("aten", "IMPL")


def start() -> ctypes.CDLL:
    """Put the hook on far's convolutions, whose own path is the CPU's; returns the stand-in."""
    far_device.register()
    _torchs_own.impl("convolution", _convolution, "PrivateUse1")
    _torchs_own.impl("convolution_backward", _backward, "PrivateUse1")
    path = str(far_device.library(SOURCE))
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.standin_log.restype = ctypes.c_char_p
    core.CUDA = (path, path, "PrivateUse1")
    return library


own_calls: list[str] = []
"""What torch's own path was asked for."""


def _convolution(x: Any, w: Any, b: Any, *rest: Any) -> Any:
    own_calls.append("forward")
    return torch.convolution(x.cpu(), w.cpu(), None if b is None else b.cpu(), *rest).to(FAR)


def _backward(g: Any, x: Any, w: Any, *rest: Any) -> Any:
    own_calls.append("backward")
    found = torch.ops.aten.convolution_backward(g.cpu(), x.cpu(), w.cpu(), *rest)
    return tuple(None if one is None else one.to(FAR) for one in found)


def ask(**fields: Any) -> None:
    """Have a policy in force, of these fields and no others."""
    one = policy.PLACES["cuda"]
    for name, nothing in one.fields.items():
        default = policy.NOTHING[name]
        if nothing != default and name not in fields:
            one.write(name, default)
    for name, value in sorted(fields.items(), key=lambda item: item[0] in policy.ASKING):
        one.write(name, value)


def log(library: ctypes.CDLL) -> list[str]:
    """What the stand-in has run since the last call."""
    return library.standin_log().decode().splitlines()


def compute(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **more: Any) -> list[torch.Tensor]:
    """A convolution and its gradients: of the sum of its squares, by input, weight and bias."""
    leaves = [t.detach().requires_grad_() for t in (x, w, *([] if bias is None else [bias]))]
    transposed = more.pop("transposed", False)
    dims = x.ndim - 2
    function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{dims}d")
    y = function(leaves[0], leaves[1], leaves[2] if bias is not None else None, **more)
    y.square().sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def on_far(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The same on far, with the same strides."""
    found = []
    for tensor in tensors:
        copy = None
        if tensor is not None:
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=FAR)
            copy.copy_(tensor)
        found.append(copy)
    return found


def check(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **more: Any) -> list[torch.Tensor]:
    """Compute on far and hold it against float64; returns what was found."""
    found = compute(*on_far(x, w, bias), **more)
    exact = compute(x.double(), w.double(), None if bias is None else bias.double(), **more)
    bound = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[x.dtype]
    for one, truth in zip(found, exact, strict=True):
        assert one.device.type == FAR
        assert one.dtype == x.dtype
        assert one.shape == truth.shape
        assert not truth.numel() or (one.cpu().double() - truth).abs().max() <= bound * truth.abs().max(), bound
    return found


def rows(before: Any = ()) -> list[Choice]:
    """The choices of this process, or those that were counted since."""
    return list(rows_of(between(before)))


__all__ = ["FAR", "ask", "check", "compute", "log", "on_far", "own_calls", "rows", "start"]
