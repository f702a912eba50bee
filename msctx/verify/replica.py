"""Reads, in a rank, what must be the same in all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from msctx.observers import collector
from msctx.observers.collector import Row
from msctx.verify.reader import DigestReader
from msctx.verify.rows import GRADIENT, PARAMETER

if TYPE_CHECKING:
    from torch import nn


class ReplicaReader(DigestReader):
    """As :class:`DigestReader`, of parameters when their model is called for the first time, and, where an optimizer steps, of
    parameters, gradients and what the optimizer computes. Buffers are not read: many are each rank's own.
    """

    def __init__(self, ended: Callable[[], object]) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._models: list[nn.Module] = []
        self._is_stepping = False
        super().__init__(ended)
        register_optimizer_step_pre_hook(self._before_step)

    @property
    def asked(self) -> Mapping[str, int]:
        return super().asked if self._is_stepping else {}

    def take(self, rows: list[Row]) -> None:
        super().take([row for row in rows if row["direction"] == "optimizer"])

    def meet(self, model: nn.Module) -> None:
        from torch.nn.parallel import DistributedDataParallel

        model = model.module if isinstance(model, DistributedDataParallel) else model
        self._models.append(model)
        for name, parameter in model.named_parameters():
            self.add_value(PARAMETER, "forward", name, parameter)

    def _before_step(self, *_: Any) -> None:
        collector.flush()
        for model in self._models:
            for name, parameter in model.named_parameters():
                self.add_value(PARAMETER, "optimizer", name, parameter)
                self.add_value(GRADIENT, "optimizer", name, parameter.grad)
        self._is_stepping = True
        collector.refresh()

    def end_step(self) -> None:
        if not self._is_stepping:  # the program says when a step ends
            self._before_step()
        self._is_stepping = False
        super().end_step()

    def save(self, name: str, folder: Path) -> Path:
        """Write a parameter or a gradient, ``gradient:head.weight``, to a file."""
        what, _, path = name.partition(":")
        parameter = next(p for model in self._models for one, p in model.named_parameters() if one == path)
        tensor: torch.Tensor | None = parameter.grad if what == GRADIENT else parameter
        file = folder / "tensor.npy"
        if tensor is not None:
            values = tensor.detach().cpu()
            np.save(file, (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy())
        return file
