"""The memory format of convolution weights: other strides, with the same parameters and values.

Some optimizers read parameters, gradients and their own state as flat memory: torch's fused ones and LBFGS, and most of other
libraries. Values whose strides differ would be mixed up there. These step on the strides that were found, as in their state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msctx.memory.changes import Changes, plainly
from msctx.memory.parameter_placement import can_move, memory_of
from msctx.native import watched_models

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of axes of a weight → the memory format with channels last."""
Strides = tuple[int, ...]


@dataclass
class _Laid:
    """Of a weight that has got other strides."""

    shape: torch.Size
    found: Strides
    laid: Strides
    gradient: tuple[torch.Tensor, torch.Tensor] | None = None
    """While an optimizer steps on what was found: the program's gradient, and the copy in its place."""


_hooks: list[Any] = []


class _Format(Changes):
    """``"channels_last"``, ``"contiguous"``, or ``None``: as the program has made them."""

    def change(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, _Laid]]:
        for weight in _weights(model):
            last = LAST[weight.ndim] if self.wanted == "channels_last" else torch.contiguous_format
            one = _Laid(weight.shape, weight.stride(), torch.empty(weight.shape, device="meta", memory_format=last).stride())
            if one.found != one.laid and weight not in self.before:
                _set(weight, one.laid)
                if not _hooks:
                    _hooks[:] = register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)
                yield weight, one

    def put_back(self, part: nn.Parameter, before: _Laid) -> None:
        """A weight to which the program has given other strides keeps these."""
        while _hooks and not self.before:
            _hooks.pop().remove()
        if part.shape == before.shape and part.stride() == before.laid:
            _set(part, before.found)


FORMAT = _Format()


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Those that are all of a block of memory which nobody else holds: others would be untied."""
    for module in model.modules():
        weight = module._parameters.get("weight") if isinstance(module, CONVOLUTIONS) else None
        if weight is not None and can_move(weight) and weight.ndim in LAST:
            yield weight


def _set(weight: torch.Tensor, strides: Strides) -> None:
    """Other strides for a weight, and for a gradient that has the same as it."""
    gradient, before = weight.grad, weight.stride()
    weight.data = _with(strides, weight)
    if gradient is not None and not gradient.requires_grad and can_move(gradient) and gradient.stride() == before:
        gradient.data = _with(strides, gradient)


def _with(strides: Strides, tensor: torch.Tensor) -> torch.Tensor:
    like = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")
    return memory_of(like, tensor.device, pinned=tensor.is_cpu and tensor.is_pinned()).copy_(tensor.data)


# --- optimizers that read flat memory ---------------------------------------------------------------------------------


def _of(optimizer: Optimizer) -> list[tuple[_Laid, nn.Parameter]]:
    """The weights that an optimizer must not see with other strides: none, where it computes by torch's operators alone."""
    by_operators = type(optimizer).__module__.startswith("torch.optim.") and "foreach" in optimizer.defaults
    if by_operators and not any(group.get("fused") for group in optimizer.param_groups):
        return []
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(FORMAT.before[weight], weight) for weight in mine if weight in FORMAT.before]


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    with watched_models.lock, plainly():
        for one, weight in _of(optimizer):
            if weight.stride() == one.laid:
                _set(weight, one.found)
            if weight.grad is not None and weight.grad.stride() != one.found:  # its memory is somebody's, such as a bucket's
                one.gradient = weight.grad, _with(one.found, weight.grad)
                weight.grad = one.gradient[1]


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    with watched_models.lock, plainly():
        for one, weight in _of(optimizer):
            if one.gradient is not None and weight.grad is one.gradient[1]:
                weight.grad = one.gradient[0].copy_(one.gradient[1])
            one.gradient = None
            if weight.stride() == one.found:
                _set(weight, one.laid)
