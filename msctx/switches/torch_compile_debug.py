"""Switches of what torch.compile checks and logs about its own work."""

from __future__ import annotations

import logging
import os

from torch._logging._internal import log_registry

from msctx.switches.base import Switch
from msctx.switches.forced import Forced, forced_switch


def _logs(name: str) -> Switch:
    """The levels of torch's loggers; ``torch._logging.set_logs`` would forget the levels that the program has set."""
    loggers = [logging.getLogger(one) for one in log_registry.log_alias_to_log_qnames[name.removeprefix("torch.logs.")]]

    def read() -> list[int]:
        return [logger.level for logger in loggers]

    def each(levels: int | list[int]) -> list[int]:
        return [levels] * len(loggers) if isinstance(levels, int) else levels

    def write(levels: int | list[int]) -> None:
        for logger, level in zip(loggers, each(levels), strict=True):
            logger.setLevel(level)

    return Switch(name=name, read=read, write=write, satisfied=lambda levels: read() == each(levels))


SWITCHES = (
    forced_switch(
        "torch.dynamo.verbose",
        Forced("torch._dynamo.config", "verbose", lambda: os.environ.get("TORCHDYNAMO_VERBOSE", "0") == "1"),
    ),
    forced_switch("torch.functorch.debug_assert", Forced("torch._functorch.config", "debug_assert", lambda: False)),
    _logs("torch.logs.dynamo"),
    _logs("torch.logs.aot"),
    _logs("torch.logs.inductor"),
)
