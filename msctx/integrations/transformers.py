"""A callback for Hugging Face's Trainer, inside a with-block: ``Trainer(..., callbacks=[MsctxCallback(ctx)])``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from msctx.context import Context
from msctx.errors import ScopeError
from msctx.integrations import report
from msctx.integrations.scaling import LossScaling
from msctx.integrations.wrappers import data_parallel_around


class MsctxCallback(TrainerCallback):
    """Names the modules of the model in ``choices()``, scales the loss where options compute in float16, and reports.

    Memory peaks join every row of the Trainer's log; a row at the end of training holds peaks, choices and overflows. They are in
    ``trainer.state.log_history``. The Trainer does not report exceptions to its callbacks, so a with-block around it must hold *ctx*.

    A forward hook finds the loss in the model's output. Where the Trainer computes the loss itself (label smoothing,
    ``compute_loss_func``), call ``callback.scaling(loss)`` in a ``compute_loss`` of your own; a warning reports it.

    Raises:
        TypeError: *ctx* is not a context.
        ScopeError: training begins outside it.

    Attributes:
        scaling: the :class:`LossScaling` of the last training.
    """

    def __init__(self, ctx: Context) -> None:
        if not isinstance(ctx, Context):
            raise TypeError(f"MsctxCallback takes a context, not {ctx!r}: with msctx.context(...) as ctx: MsctxCallback(ctx)")
        self.context = ctx
        self.scaling: LossScaling | None = None
        self._hook: RemovableHandle | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._remove()  # of a training that raised
        if not self.context.is_open:
            raise ScopeError("the context of MsctxCallback is not open: train inside its with-block")
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        for one in (model, *data_parallel_around(model)):
            self.context.watch(one)
        self.scaling = LossScaling(self.context, model, optimizer)
        if self.scaling.scaler.is_enabled():
            self._hook = model.register_forward_hook(self._scale)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for row in (kwargs["logs"], state.log_history[-1]):  # the history has a copy
            row.update(report.peaks())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        found: dict[str, float] = {**report.summary(self.context, self.scaling), "step": state.global_step}
        state.log_history.append(found)
        self._remove()

    def _remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self.scaling is not None:
            self.scaling.remove()

    def _scale(self, model: nn.Module, inputs: Any, output: Any) -> None:
        loss = output.get("loss") if hasattr(output, "get") else output[0] if isinstance(output, tuple) else output
        if self.scaling is not None and model.training and isinstance(loss, Tensor) and not loss.dim():
            self.scaling(loss)
