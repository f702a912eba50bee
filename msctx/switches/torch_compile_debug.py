"""Switches of what torch.compile checks and logs about its own work."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from torch._logging._internal import log_registry

from msctx.switches.base import Switch
from msctx.switches.forced import Forced


def _forced(name: str, value: Forced) -> Switch:
    return Switch(name=name, read=value.read, write=value.write, save=value.save, load=value.load, satisfied=value.holds)


class _Levels:
    """Of the loggers that torch has under one name. ``torch._logging.set_logs`` would forget all that a program has asked for, and
    does nothing where TORCH_LOGS is set."""

    def __init__(self, alias: str) -> None:
        self._loggers = [logging.getLogger(name) for name in log_registry.log_alias_to_log_qnames[alias]]

    def read(self) -> list[int]:
        return [logger.level for logger in self._loggers]

    def write(self, levels: int | Sequence[int]) -> None:
        for logger, level in zip(self._loggers, self._each(levels), strict=True):
            logger.setLevel(level)

    def holds(self, levels: int | Sequence[int]) -> bool:
        return self.read() == self._each(levels)

    def _each(self, levels: int | Sequence[int]) -> list[int]:
        return [levels] * len(self._loggers) if isinstance(levels, int) else [*levels]


def _logs(name: str) -> Switch:
    levels = _Levels(name.removeprefix("torch.logs."))
    return Switch(name=name, read=levels.read, write=levels.write, satisfied=levels.holds)


SWITCHES = (
    _forced(
        "torch.dynamo.verbose",
        Forced("torch._dynamo.config", "verbose", lambda: os.environ.get("TORCHDYNAMO_VERBOSE", "0") == "1"),
    ),
    _forced("torch.functorch.debug_assert", Forced("torch._functorch.config", "debug_assert", lambda: False)),
    _logs("torch.logs.dynamo"),
    _logs("torch.logs.aot"),
    _logs("torch.logs.inductor"),
)
