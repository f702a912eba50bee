"""A callback for Hugging Face's Trainer, inside a with-block: ``Trainer(..., callbacks=[MsctxCallback(ctx)])``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from torch import Tensor, distributed, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from msctx.context import Context
from msctx.integrations.loss_scaling import LossScaling


class MsctxCallback(TrainerCallback):
    """Watches the model, also inside DistributedDataParallel, and scales the loss where options compute in float16.

    A forward hook finds the loss in the model's output. Where the Trainer computes the loss itself (label smoothing,
    ``compute_loss_func``), call ``callback.scaling(loss)`` in your ``compute_loss``; a warning reports it.

    Raises:
        ScopeError: training begins outside the with-block of *ctx*.

    Attributes:
        scaling: the :class:`LossScaling` of the last training.
    """

    def __init__(self, ctx: Context) -> None:
        self.context = ctx
        self.scaling: LossScaling | None = None
        self._hook: RemovableHandle | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._remove()  # of a training that raised
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self.scaling = LossScaling(self.context, model, optimizer)
        for one in (model, *_data_parallel_around(model)):
            self.context.watch(one)
        if self.scaling.scaler.is_enabled():
            self._hook = model.register_forward_hook(self._scale)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
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


def _data_parallel_around(model: nn.Module) -> Iterator[nn.Module]:
    """The DistributedDataParallel into which the Trainer has put *model*: callbacks see the model inside alone."""
    if distributed.is_available() and distributed.is_initialized():
        for found in gc.get_objects():
            if issubclass(type(found), nn.parallel.DistributedDataParallel) and found.module is model:
                yield found
