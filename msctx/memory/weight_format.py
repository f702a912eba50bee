"""The memory format of convolution weights in watched models: other strides, with the same parameters and values.

Some optimizers read parameters, gradients and their own state as flat memory: torch's fused ones and LBFGS, and most of other
libraries. Values whose strides differ would be mixed up there. These step on the strides that were found, which their state has, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msctx.errors import SwitchError
from msctx.memory.parameters import can_move, memory_of, plainly
from msctx.native import watched

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of axes of a weight → the memory format with channels last."""
Strides = tuple[int, ...]


class _Laid:
    """A weight that has got other strides."""

    def __init__(self, weight: nn.Parameter, strides: Strides) -> None:
        self.number = number = id(weight)
        self.weight = weakref.ref(weight, lambda _: _laid.pop(number, None))
        self.shape, self.found, self.laid = weight.shape, weight.stride(), strides
        self.gradient: tuple[torch.Tensor, torch.Tensor] | None = None
        """While an optimizer steps on what was found: the program's gradient, and the copy in its place."""


_format: str | None = None
_laid: dict[int, _Laid] = {}
"""id of a weight → what it had; none is forgotten before it is put back or gone."""
_hooks: list[Any] = []


def read() -> str | None:
    """``"channels_last"``, ``"contiguous"``, or ``None``: as the program has made them."""
    return _format


def write(wanted: str | None) -> None:
    """Lay the weights of all watched models so, those watched later too; ``None`` puts back the strides that were found.

    Whatever fails, the format is ``None`` then.
    """
    global _format
    with watched.lock:
        if wanted == _format and (wanted is not None or not _laid):
            return
        _format = None
        _put_back([*_laid.values()])
        _format = wanted
        try:
            for model in watched.models():
                _lay(model)
        except BaseException:
            _format = None
            _put_back([*_laid.values()])
            raise


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Those that are all of a block of memory which nobody else holds: others would be untied."""
    for module in model.modules():
        weight = module._parameters.get("weight") if isinstance(module, CONVOLUTIONS) else None
        if weight is not None and can_move(weight) and weight.ndim in LAST:
            yield weight


def _lay(model: nn.Module) -> None:
    if _format is None:
        return
    with watched.lock, plainly():
        for weight in _weights(model):
            last = LAST[weight.ndim] if _format == "channels_last" else torch.contiguous_format
            wanted = torch.empty(weight.shape, device="meta", memory_format=last).stride()
            if weight.stride() != wanted and id(weight) not in _laid:
                one = _Laid(weight, wanted)
                _set(weight, wanted)
                _laid[one.number] = one
        if _laid and not _hooks:
            _hooks[:] = register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)


def _set(weight: torch.Tensor, strides: Strides) -> None:
    """Other strides for a weight, and for a gradient that has the same as it."""
    gradient, before = weight.grad, weight.stride()
    weight.data = _with(strides, weight)
    if gradient is not None and not gradient.requires_grad and can_move(gradient) and gradient.stride() == before:
        gradient.data = _with(strides, gradient)


def _with(strides: Strides, tensor: torch.Tensor) -> torch.Tensor:
    like = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")
    return memory_of(like, tensor.device, pinned=tensor.is_cpu and tensor.is_pinned()).copy_(tensor.data)


def _put_back(laid: Iterable[_Laid]) -> None:
    """The strides that were found; a weight to which the program has given others keeps these."""
    errors: list[Exception] = []
    for one in laid:
        weight = one.weight()
        try:
            with plainly():
                if weight is not None and weight.shape == one.shape and weight.stride() == one.laid:
                    _set(weight, one.found)
        except (RuntimeError, MemoryError) as error:
            errors.append(error)
        _laid.pop(one.number, None)
    if not _laid:
        while _hooks:
            _hooks.pop().remove()
    if errors:
        raise SwitchError(f"{len(errors)} weights keep their memory format: {errors[0]}") from errors[0]


def _lay_back(model: nn.Module) -> None:
    """Nobody watches it now: its weights get their strides back, unless another watched model has them."""
    if _laid:
        with watched.lock:
            others = {id(parameter) for other in watched.models() for parameter in other.parameters()}
            own = {id(parameter) for parameter in model.parameters()} - others
            _put_back([_laid[number] for number in own if number in _laid])


watched.listen(_lay, _lay_back)

# --- optimizers that read flat memory ---------------------------------------------------------------------------------


def _of(optimizer: Optimizer) -> list[tuple[_Laid, nn.Parameter]]:
    """The weights that an optimizer must not see with other strides: none, where it computes by torch's operators alone."""
    by_operators = type(optimizer).__module__.startswith("torch.optim.") and "foreach" in optimizer.defaults
    if by_operators and not any(group.get("fused") for group in optimizer.param_groups):
        return []
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(_laid[id(weight)], weight) for weight in mine if id(weight) in _laid]


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    with watched.lock, plainly():
        for one, weight in _of(optimizer):
            if weight.stride() == one.laid:
                _set(weight, one.found)
            if weight.grad is not None and weight.grad.stride() != one.found:  # its memory is somebody's, such as a bucket's
                one.gradient = weight.grad, _with(one.found, weight.grad)
                weight.grad = one.gradient[1]


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    with watched.lock, plainly():
        for one, weight in _of(optimizer):
            if one.gradient is not None and weight.grad is one.gradient[1]:
                weight.grad = one.gradient[0].copy_(one.gradient[1])
            one.gradient = None
            if weight.stride() == one.found:
                _set(weight, one.laid)
