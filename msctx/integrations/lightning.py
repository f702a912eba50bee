"""A callback for Lightning, ``Trainer(callbacks=[MsctxCallback(deterministic="ON")])``, and the same as a plugin."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from os import PathLike
from typing import Any

from torch import Tensor, nn

import msctx
from msctx.context import Context
from msctx.integrations import report
from msctx.integrations.scaling import LossScaling

if find_spec("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins import Precision
else:  # the older package, with the same interface
    from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]
    from pytorch_lightning.plugins import Precision  # type: ignore[assignment]


class MsctxCallback(Callback):
    """Holds options while a Trainer fits, validates, tests or predicts.

    It names the modules of the model in ``choices()`` (``ctx.watch``), scales the loss where options compute in float16, logs memory
    peaks after each training epoch, and at the end of training sends a summary (peaks, choices, overflows) to the trainer's loggers.

    Args:
        context: a context; or a preset, as for :func:`msctx.context`.
        options: options by name. Unless a with-block around the Trainer holds the context, the callback enters it in ``setup`` and
            leaves it in ``teardown``, also after an exception.

    Raises:
        OptionError: with every problem at once; nothing was changed.
        TypeError: options beside a context.
        ValueError: the Trainer has two of these callbacks.

    Attributes:
        context: for ``context.choices()`` and ``context.precisions()`` afterwards.
        scaling: the :class:`LossScaling` of the last fit.
    """

    def __init__(self, context: Context | str | PathLike[str] | None = None, /, **options: Any) -> None:
        if isinstance(context, Context) and options:
            raise TypeError(f"MsctxCallback takes a context or options, not both: give {', '.join(options)} to msctx.context()")
        self.context = context if isinstance(context, Context) else msctx.context(context, **options)
        self.scaling: LossScaling | None = None
        self._entered = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if sum(isinstance(callback, MsctxCallback) for callback in trainer.callbacks) > 1:  # type: ignore[attr-defined]
            raise ValueError("a Trainer takes one MsctxCallback or MsctxPrecision: give it all options")
        self.begin()
        self.context.watch(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.end(exception)

    def begin(self) -> None:
        """Enter the context, unless somebody has."""
        if not self.context.is_open:
            self.context.__enter__()
            self._entered = True

    def end(self, error: BaseException | None = None) -> None:
        """Leave it, if it was entered here; nothing hooks the model any more."""
        if self.scaling is not None:
            self.scaling.remove()
        if self._entered:
            self._entered = False
            self.context.__exit__(type(error) if error else None, error, None)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.model, nn.Module):
            self.context.watch(trainer.model)  # by now the strategy may have put it into DistributedDataParallel
        self.scaling = LossScaling(self.context, pl_module, *trainer.optimizers) if trainer.optimizers else None

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self.scaling is not None:
            self.scaling(loss)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log_dict(report.peaks())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(report.summary(self.context, self.scaling), step=trainer.global_step)


class MsctxPrecision(Precision):
    """The same as a plugin, which stands where ``Trainer(precision=...)`` does: Lightning refuses both at once.

    It takes what :class:`MsctxCallback` takes, and leaves the rest to one. Two things differ. The options hold from
    ``configure_model`` on, which comes after ``setup``. And checkpoints hold the scale of the loss: a training that is resumed goes
    on with it. Strategies with a precision plugin of their own (FSDP, DeepSpeed) refuse this one: give them the callback.

    Attributes:
        callback: with ``context`` and ``scaling``.
    """

    def __init__(self, context: Context | str | PathLike[str] | None = None, /, **options: Any) -> None:
        self.callback = MsctxCallback(context, **options)

    def module_init_context(self) -> AbstractContextManager[None]:
        self.callback.begin()
        return nullcontext()

    def convert_module(self, module: LightningModule) -> LightningModule:  # type: ignore[override]
        trainer: Any = module.trainer
        if self.callback not in trainer.callbacks:  # the first place in which a plugin sees its trainer
            trainer.callbacks.insert(0, self.callback)
            self.callback.setup(trainer, module, str(trainer.state.fn))
        return module

    def teardown(self) -> None:
        self.callback.end(sys.exc_info()[1])

    def state_dict(self) -> dict[str, Any]:
        scaling = self.callback.scaling
        return {} if scaling is None else scaling.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.callback.scaling is not None:
            self.callback.scaling.scaler.load_state_dict(state_dict)
