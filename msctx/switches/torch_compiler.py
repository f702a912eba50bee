"""Switches of torch.compile: what is compiled, what it keeps on disk, what it checks and logs about its own work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch._logging._internal import log_registry

from msctx.graph import calls, gradients
from msctx.imports import when_imported
from msctx.native import cache_tag
from msctx.switches.base import Switch, of, reading, writing
from msctx.torch_config import NOTHING, Forced, by_variable

# --- torch.compile's stance: mode=PYNATIVE_MODE -----------------------------------------------------------------------

_FRAMES = "torch._dynamo.eval_frame"
_waiting: list[Callable[[], None]] = []
"""What gives up waiting for Dynamo, which takes a second to load."""


def _is_eager() -> bool:
    frames = sys.modules.get(_FRAMES)
    return bool(_waiting) if frames is None else frames._stance.stance == "force_eager"


def _force_eager(on: bool) -> None:
    """False leaves a stance of the program's own."""
    while _waiting:
        _waiting.pop()()
    if (frames := sys.modules.get(_FRAMES)) is None:
        if on:
            _waiting.append(when_imported(_FRAMES, lambda: _force_eager(True)))
    elif on != _is_eager():
        frames._set_stance(calls.Eager() if on else frames.DynamoStance())


def _stance() -> Any:
    frames = sys.modules.get(_FRAMES)
    return _is_eager() if frames is None else frames._stance


def _put_stance(found: Any) -> None:
    if isinstance(found, bool):
        _force_eager(found)  # also where Dynamo has been loaded since
    else:
        sys.modules[_FRAMES]._set_stance(found)


# --- what is kept on disk, and logged ---------------------------------------------------------------------------------

_CACHE = "msctx.graph.cache"


class _Job(Forced):
    def holds(self, value: str) -> bool:
        """Any will do: with one, torch keeps what it has learnt about shapes."""
        return (self.forced is NOTHING and self.read() is not None) or super().holds(value)


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

    return Switch(name, read, write, satisfied=lambda levels: read() == each(levels))


_DYNAMO, _FUNCTORCH = "torch._dynamo.config", "torch._functorch.config"
SWITCHES = (
    Switch("graph.compilation", lambda: calls.compilation, partial(setattr, calls, "compilation")),
    Switch("graph.modules", calls.are_compiled, calls.compile_modules, state=(calls.found, calls.put_back)),
    Switch("graph.grad_for_scalar", lambda: gradients.for_scalars, partial(setattr, gradients, "for_scalars")),
    Switch("torch.dynamo.force_eager", _is_eager, _force_eager, state=(_stance, _put_stance)),
    of("torch.dynamo.skip_nnmodule_hook_guards", Forced(_DYNAMO, "skip_nnmodule_hook_guards", lambda: True)),
    of("torch.dynamo.verbose", Forced(_DYNAMO, "verbose", by_variable("TORCHDYNAMO_VERBOSE"))),
    of("torch.functorch.debug_assert", Forced(_FUNCTORCH, "debug_assert", lambda: False)),
    of(
        "torch.functorch.enable_autograd_cache",
        Forced(_FUNCTORCH, "enable_autograd_cache", by_variable("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")),
    ),
    Switch(
        "torch.compiler.cache",
        reading(f"{_CACHE}:SLOT.read"),
        writing(f"{_CACHE}:SLOT.write"),
        state=(reading(f"{_CACHE}:SLOT.save"), writing(f"{_CACHE}:SLOT.load")),
        satisfied=lambda wanted: bool(import_module(_CACHE).serves(wanted)),
        blocked=lambda wanted: str(import_module(_CACHE).obstacle(wanted)),
    ),
    of("torch.compiler.force_disable_caches", cache_tag.DISABLING),
    of("torch.compiler.job_id", _Job("torch.compiler.config", "job_id", lambda: None)),
    _logs("torch.logs.dynamo"),
    _logs("torch.logs.aot"),
    _logs("torch.logs.inductor"),
)
