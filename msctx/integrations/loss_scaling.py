"""A scaled loss where somebody else calls backward() and step(): hooks on tensors, none of which changes what ``.grad`` means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from msctx.errors import ScopeError
from msctx.native.precision_in_modules_and_optimizers import SCALED

if TYPE_CHECKING:
    from msctx.context import Context


class LossScaling:
    """Scales the gradients of a training loop that is not yours, exactly where ``ctx.grad_scaler()`` would be enabled.

    The gradient that leaves the loss is multiplied by the scale; parameters divide theirs by it before it is accumulated. So
    ``.grad`` holds true gradients at all times: clipping, accumulation and several losses need nothing. After each backward pass the
    gradients are looked at; the next step of an optimizer that has an Inf or NaN among them is left out (its gradients become
    ``None``), and the scale goes down. The arithmetic of the scale is that of ``torch.amp.GradScaler``.

    The gradients of tensors that are neither parameters of *module* nor of an optimizer stay scaled. An optimizer that steps inside
    backward() is not protected.

    Args:
        ctx: the context under which the training runs.
        module: the model; parameters that join it later, or begin to require gradients, are found when a loss is scaled.
        optimizers: those that update it; wrappers with an attribute ``optimizer`` may be given.
        options: of ``ctx.grad_scaler()``, such as ``init_scale``.

    Raises:
        TypeError: no optimizer is given, or something else in its place.
        ScopeError: *ctx* is not open.
        ValueError: a parameter that requires gradients is in float16. Scaling cannot help it: its true gradient would vanish.
    """

    def __init__(self, ctx: Context, module: nn.Module, *optimizers: Optimizer, **options: Any) -> None:
        if not optimizers:
            raise TypeError("LossScaling needs the optimizers that update the model: LossScaling(ctx, model, optimizer)")
        if not ctx.is_open:
            raise ScopeError("the context of LossScaling is not open: train inside its with-block")
        self.scaler = ctx.grad_scaler(**options)
        self._module, self._optimizers = module, [*map(_innermost, optimizers)]
        self._parameters: dict[Tensor, RemovableHandle] = {}
        self._steps: list[RemovableHandle] = []
        self._inverse: Tensor | None = None  # while a backward pass goes through a scaled loss
        self._found: dict[Optimizer, dict[Any, Tensor]] = {}
        if self.scaler.is_enabled():
            self._hook_parameters()
            self._steps += [optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers]

    def __enter__(self) -> LossScaling:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __call__(self, loss: Tensor) -> Tensor:
        """The same loss, whose gradient will be scaled; a second call changes nothing.

        Raises:
            ValueError: a parameter that requires gradients is in float16.
        """
        if self._steps and loss.requires_grad and self._scale not in (loss._backward_hooks or {}).values():
            self._inverse = None  # of a backward pass that raised
            self._hook_parameters()
            loss.register_hook(self._scale)
        return loss

    def remove(self) -> None:
        """Take every hook off again."""
        for handle in (*self._parameters.values(), *self._steps):
            handle.remove()
        self._parameters.clear()
        self._steps.clear()
        self._found.clear()

    def _hook_parameters(self) -> None:
        of_optimizers = [("of an optimizer", p) for o in self._optimizers for group in o.param_groups for p in group["params"]]
        new = {
            p: n for n, p in (*of_optimizers, *self._module.named_parameters()) if p.requires_grad and p not in self._parameters
        }
        for parameter, name in new.items():
            if parameter.dtype is torch.float16:
                raise ValueError(
                    f"parameter {name} is in float16: its gradients would vanish however the loss is scaled. Keep parameters in "
                    "float32 (model.float()); the precision_mode computes in float16 by itself."
                )
        self._parameters |= {parameter: parameter.register_hook(self._unscale) for parameter in new}

    # In-place operators throughout: a precision policy, which is in force in backward() too, never changes those.

    def _scale(self, gradient: Tensor) -> Tensor | None:
        """What leaves the loss."""
        if not self._steps:  # removed between this loss and its backward pass
            return None
        scaler = self.scaler
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(gradient.device)
        assert scaler._scale is not None
        if self._inverse is None:
            self._inverse = scaler._scale.reciprocal()
            _at_the_end(lambda: _at_the_end(self._look))  # twice: after what others, such as DDP, have queued meanwhile
        return gradient.clone().mul_(scaler._scale.to(gradient.device))

    def _unscale(self, gradient: Tensor) -> Tensor | None:
        """What a parameter is about to accumulate; of a loss that was not scaled, too."""
        return None if self._inverse is None else gradient.clone().mul_(self._inverse.to(gradient))

    def _look(self) -> None:
        """A backward pass has ended: here nobody has clipped an Inf away yet."""
        self._inverse = None
        for optimizer in self._optimizers:
            if found := self.scaler._check_inf_per_device(optimizer):
                self._found[optimizer] = found
        self.scaler._per_optimizer_states.clear()  # each optimizer has its own step, and update()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure") or next(iter(args[1:]), None)  # args[0] is the optimizer itself
        if closure is None:
            self._leave_out_overflow(optimizer)
            return None

        def checked() -> Any:  # the gradients are computed in there
            value = closure()
            self._leave_out_overflow(optimizer)
            return value

        return (args[0], checked), {name: value for name, value in kwargs.items() if name != "closure"}

    def _leave_out_overflow(self, optimizer: Optimizer) -> None:
        if (found := self._found.pop(optimizer, None)) is None:  # no backward pass of scaling(loss), of which a warning tells
            return
        SCALED.add(optimizer)
        overflowed = self.scaler.count(found)
        self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        self.scaler.update()
        if overflowed:
            optimizer.zero_grad(set_to_none=True)


def _innermost(optimizer: Any) -> Optimizer:
    """What the wrappers of frameworks hold."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"LossScaling takes torch.optim.Optimizer, not {type(optimizer).__name__}")
    return optimizer


def _at_the_end(function: Any) -> None:
    """Call a function when the backward pass that is under way has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(function)
