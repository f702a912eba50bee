"""A callback for Lightning, inside a with-block: ``Trainer(callbacks=[MsctxCallback(ctx)])``."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from msctx.context import Context
from msctx.integrations.loss_scaling import LossScaling

if find_spec("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
else:  # the older package, with the same interface
    from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]


class MsctxCallback(Callback):
    """Watches the model, also inside DistributedDataParallel, and scales the loss where options compute in float16.

    Raises:
        ScopeError: training begins outside the with-block of *ctx*.

    Attributes:
        scaling: the :class:`LossScaling` of the last fit.
    """

    def __init__(self, ctx: Context) -> None:
        self.context = ctx
        self.scaling: LossScaling | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.context.watch(pl_module).watch(trainer.model)  # type: ignore[arg-type] # in DistributedDataParallel, maybe
        self.scaling = LossScaling(self.context, pl_module, *trainer.optimizers) if trainer.optimizers else None

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self.scaling is not None:
            self.scaling(loss)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.scaling is not None:
            self.scaling.remove()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")
