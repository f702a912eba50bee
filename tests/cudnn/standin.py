"""Convolutions of a device that is not the CPU, run by a stand-in for cuDNN: the real hook, policy and descriptors, without CUDA.

For an interpreter of its own that has the device far (see fake_device.py).
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_device
import torch

from msctx.context import Context
from msctx.native import core, counter_lifetimes, policy_and_choices
from msctx.native.policy_and_choices import Choice
from msctx.native.policy_and_choices import rows as rows_of
from msctx.options.algorithm_policy import ConvPolicy

FOLDER = Path(__file__).parent
FAR = "far"
_torchs_own = torch.library.Library("aten", "IMPL")


def start() -> ctypes.CDLL:
    """Put the hook on far's convolutions, whose own path is the CPU's; returns the stand-in."""
    fake_device.register()
    _torchs_own.impl("cudnn_convolution", _direct, "PrivateUse1")
    _torchs_own.impl("cudnn_convolution_relu", _fused, "PrivateUse1")
    _torchs_own.impl("cudnn_convolution_transpose", _transposed, "PrivateUse1")
    _torchs_own.impl("convolution", _convolution, "PrivateUse1")
    _torchs_own.impl("convolution_backward", _backward, "PrivateUse1")
    paths = [str(fake_device.library(FOLDER / name)) for name in ("cudnn_standin.cpp", "torch_standin.cpp")]
    library, _ = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths)
    library.standin_log.restype = ctypes.c_char_p
    core.CUDA = (*paths, "PrivateUse1")
    return library


own_calls: list[str] = []
"""What torch's own path was requested."""


def _convolution(x: Any, w: Any, b: Any, *rest: Any) -> Any:
    own_calls.append("forward")
    return torch.convolution(x.cpu(), w.cpu(), None if b is None else b.cpu(), *rest).to(FAR)


def _backward(g: Any, x: Any, w: Any, *rest: Any) -> Any:
    own_calls.append("backward")
    found = torch.ops.aten.convolution_backward(g.cpu(), x.cpu(), w.cpu(), *rest)
    return tuple(None if one is None else one.to(FAR) for one in found)


def _fused(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    own_calls.append("fused")
    return torch.conv2d(x.cpu(), w.cpu(), None if b is None else b.cpu(), stride, padding, dilation, groups).relu().to(FAR)


def _direct(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: bool) -> Any:
    own_calls.append("direct")
    return torch.conv2d(x.cpu(), w.cpu(), None, stride, padding, dilation, groups).to(FAR)


def _transposed(x: Any, w: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *_: bool) -> Any:
    own_calls.append("transposed")
    return torch.conv_transpose2d(x.cpu(), w.cpu(), None, stride, padding, output_padding, groups, dilation).to(FAR)


def ask(**fields: Any) -> None:
    """Have a policy in force, of these fields and no others."""
    policy_and_choices.write("cuda", ConvPolicy(**fields) if fields else None)


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


def refused(compute: Callable[[], object]) -> str:
    """The error of what must not be computed."""
    try:
        compute()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was computed")


def since() -> Context:
    """For :func:`rows`: what is counted from now on."""
    counted = Context()
    counter_lifetimes.begin(counted)
    return counted


def rows(counted: Context | None = None) -> list[Choice]:
    """The choices of this process, or those that were counted since."""
    return list(rows_of() if counted is None else counted.choices())


__all__ = ["FAR", "ask", "check", "compute", "log", "on_far", "own_calls", "refused", "rows", "since", "start"]
