"""Options for the training of an Accelerator: ``with MsctxHook(accelerator, deterministic="ON"):``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

import msctx
from msctx.amp import lowers_to_float16
from msctx.context import Context
from msctx.effects.precision_mode import POLICY
from msctx.effects.session import LOW_PRECISION
from msctx.integrations import report
from msctx.integrations.scaling import LossScaling, innermost
from msctx.integrations.wrappers import data_parallel_around

SCALE_FILE = "msctx_loss_scale.bin"
"""What ``accelerator.save_state`` puts beside its own files, where the loss is scaled."""
SCALED = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU")
"""Ways to distribute under which each parameter has its gradient whole."""

Method = Callable[..., Any]


class MsctxHook:
    """Holds options inside a with-block, in which an Accelerator trains.

    There ``accelerator.prepare`` also gives models, with the DistributedDataParallel around them, to ``ctx.watch``;
    ``accelerator.backward`` scales the loss where options compute in float16; ``accelerator.log`` adds memory peaks; and at the end
    of the training, or of the block, the trackers get a summary (peaks, choices, overflows). A step whose gradients overflowed is
    left out: ``accelerator.optimizer_step_was_skipped`` is true then, and prepared schedulers wait. ``save_state`` and
    ``load_state`` include the scale of the loss; ``GradScalerKwargs`` of the Accelerator apply to it. What was prepared before the
    block counts, too.

    Accelerate calls nobody at these places, so the block replaces the methods of this one Accelerator, and puts them back at its end.

    Args:
        accelerator: what trains in the block.
        context: a context; or a preset, as for :func:`msctx.context`.
        options: options by name. Unless a with-block around this one holds the context, it is entered and left here.

    Raises:
        OptionError: with every problem at once; nothing was changed.
        TypeError: options beside a context.
        ValueError: at entry. The Accelerator has a ``mixed_precision`` of its own beside an option that decides the precision, has
            two of these hooks, or shards parameters whose gradients in float16 would have to be scaled.

    Attributes:
        context: for ``context.choices()`` and ``context.precisions()`` afterwards.
        scaling: the :class:`LossScaling`, once an optimizer was prepared.
    """

    def __init__(
        self, accelerator: Accelerator, context: Context | str | PathLike[str] | None = None, /, **options: Any
    ) -> None:
        if isinstance(context, Context) and options:
            raise TypeError(f"MsctxHook takes a context or options, not both: give {', '.join(options)} to msctx.context()")
        self.context = context if isinstance(context, Context) else msctx.context(context, **options)
        self.scaling: LossScaling | None = None
        self._accelerator = accelerator
        self._models, self._optimizers = nn.ModuleList(), list[AcceleratedOptimizer]()
        self._held, self._hooks = ExitStack(), ExitStack()
        """What ends with the block, and what with the prepared models and optimizers."""
        self._scales = self._reported = False
        self._step: int | None = None
        self._overflows = 0
        """Of all optimizers, after the last step of one."""

    def __enter__(self) -> MsctxHook:
        _check(self._accelerator, self.context)
        self._scales = _scales(self._accelerator, self.context)
        self.scaling, self._reported, self._step = None, False, None
        with ExitStack() as held:
            if not self.context.is_open:
                held.enter_context(self.context)
            held.callback(_hooked.discard, self._accelerator)
            _hooked.add(self._accelerator)
            held.callback(self._forget)
            for name in ("prepare", "prepare_model", "prepare_optimizer", "backward", "log", "end_training", "free_memory"):
                method = getattr(self, f"_{name}", self._prepare)
                held.enter_context(_replaced(self._accelerator, name, partial(method, getattr(self._accelerator, name))))
            held.callback(self._accelerator.register_save_state_pre_hook(self._save_scale).remove)
            held.callback(self._accelerator.register_load_state_pre_hook(self._load_scale).remove)
            self._take()
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        try:
            if error is None:
                self._report()
        except BaseException as own:
            self._held.__exit__(type(own), own, own.__traceback__)
            raise
        self._held.__exit__(kind, error, trace)

    def _take(self) -> None:
        """What the Accelerator has prepared since."""
        for model in self._accelerator._models:
            if model not in self._models:
                for one in (model, *data_parallel_around(model)):
                    self.context.watch(one)
                self._models.append(model)
        for optimizer in self._accelerator._optimizers:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                if self._scales:
                    self._scale_with(optimizer)

    def _scale_with(self, optimizer: AcceleratedOptimizer) -> None:
        if self.scaling is None:
            handler = self._accelerator.scaler_handler
            self.scaling = LossScaling(self.context, self._models, optimizer, **(handler.to_kwargs() if handler else {}))
            self._overflows = self.scaling.scaler.overflow_steps
            self._hooks.callback(self.scaling.remove)
        else:
            self.scaling.add(optimizer)
        scaler = self.scaling.scaler

        def after(*_: Any) -> None:  # schedulers ask whether the step was left out
            optimizer._is_overflow = scaler.overflow_steps > self._overflows
            self._overflows = scaler.overflow_steps

        self._hooks.callback(setattr, optimizer, "_is_overflow", False)
        self._hooks.callback(innermost(optimizer).register_step_post_hook(after).remove)

    def _forget(self) -> None:
        self._hooks.close()
        self._models, self._optimizers = nn.ModuleList(), []

    def _report(self) -> None:
        """The summary goes to the trackers before they end, once."""
        if not self._reported and (found := report.summary(self.context, self.scaling)):
            self._accelerator.log(found, step=self._step)
        self._reported = True

    def _save_scale(self, models: Any, weights: Any, folder: str) -> None:
        if self.scaling is not None:
            self._accelerator.save(self.scaling.scaler.state_dict(), Path(folder, SCALE_FILE))

    def _load_scale(self, models: Any, folder: str) -> None:
        if self.scaling is not None and (file := Path(folder, SCALE_FILE)).exists():
            self.scaling.scaler.load_state_dict(torch.load(file, weights_only=True))

    # In the place of the Accelerator's methods, each of which is given first.

    def _prepare(self, prepare: Method, *args: Any, **kwargs: Any) -> Any:
        result = prepare(*args, **kwargs)
        self._take()
        return result

    def _backward(self, backward: Method, loss: Tensor, **kwargs: Any) -> None:
        if self.scaling is not None:
            self.scaling(loss)
        backward(loss, **kwargs)

    def _log(self, log: Method, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> None:
        self._step = self._step if step is None else step
        log({**values, **report.peaks()}, step, *args, **kwargs)

    def _end_training(self, end_training: Method) -> None:
        self._report()
        end_training()

    def _free_memory(self, free_memory: Method, *objects: Any) -> Any:
        self._forget()
        self.scaling = None
        return free_memory(*objects)


_hooked = WeakSet[Accelerator]()


@contextmanager
def _replaced(accelerator: Accelerator, name: str, function: Method) -> Iterator[None]:
    own = vars(accelerator)
    before = {name: own[name]} if name in own else {}
    own[name] = function
    try:
        yield
    finally:
        del own[name]
        own.update(before)


def _scales(accelerator: Accelerator, context: Context) -> bool:
    handler = accelerator.scaler_handler
    wanted = handler is None or handler.enabled
    return wanted and lowers_to_float16(context.plan.assignments, accelerator.device.type)


def _check(accelerator: Accelerator, context: Context) -> None:
    if accelerator in _hooked:
        raise ValueError("an Accelerator takes one MsctxHook at a time: give it all options")
    kind = accelerator.device.type if accelerator.device.type in POLICY else "ascend"
    deciding = {POLICY[kind], LOW_PRECISION[kind]}
    asked = [f"{row.spelling}={row.value}" for row in context.plan.rows if not deciding.isdisjoint(row.assignments)]
    if asked and accelerator.mixed_precision != "no":
        raise ValueError(
            f"Accelerate's mixed_precision={accelerator.mixed_precision} and {', '.join(dict.fromkeys(asked))} both decide in which "
            'dtype operators compute: leave one out (mixed_precision="no" for Accelerator or `accelerate launch`, or no such option)'
        )
    sharded = accelerator.distributed_type.name not in SCALED or getattr(accelerator, "parallelism_config", None)
    if sharded and _scales(accelerator, context):
        raise ValueError(
            f"{', '.join(dict.fromkeys(asked))} computes in float16, whose gradients MsctxHook scales in one process or under "
            f"DistributedDataParallel alone, not under {accelerator.distributed_type.name}: ask for bfloat16, as "
            'precision_mode="allow_mix_precision_bf16" does'
        )
