"""Switches of torch.compile: what is compiled, what it keeps on disk, what it checks and logs about its own work."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch._logging._internal import log_registry

from msctx.graph import calls, report
from msctx.imports import when_imported
from msctx.native import cache_tag
from msctx.switches import paths
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


# --- by what guards distinguish compiled code beside torch's own settings -------------------------------------------------
# Code that is compiled under settings that change nothing but how it is compiled would go on running after them, and code
# from before would go on inside. Guards look at the dtype of an autocast of every device, also of one that nobody has: it stands
# for the settings.

Content = tuple[str, ...]
_DEVICE = "mtia"
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_numbers: dict[Content, int] = {}
"""Content → which dtype stands for it. After as many contents as there are dtypes, two share one."""
compiled: set[Content] = set()
"""The contents under which this process has compiled anything."""


PATHS = {"debug_dir", "save_graphs_path", *paths.OF_THE_ENGINE, *(f"tuner.{key}" for key in paths.OF_THE_TUNER)}
"""The keys of words that name a place: the same text under another directory is another content."""


def _key(word: str) -> str:
    return word.partition("=")[0]


def _texts(words: Iterable[str] | None) -> dict[str, str] | None:
    """Word, such as ``debug_dir=kernels``, → what follows its key."""
    return {word: word.partition("=")[2] for word in words} if words is not None else None


class _Words(threading.local, paths.Kept):
    def __init__(self) -> None:
        super().__init__(lambda word: _key(word) in PATHS)

    @property
    def content(self) -> Content | None:
        return tuple(f"{_key(word)}={text}" if text else word for word, text in self.led.items()) if self.led else None

    def read(self) -> list[str] | None:
        return None if self.content is None else [*self.content]

    def holds(self, words: Iterable[str] | None) -> bool:
        return super().holds(_texts(words))

    def write(self, words: Iterable[str] | None) -> None:
        super().write(_texts(words))
        content = self.content
        if torch.mtia.is_available():  # its autocast means something
            return
        torch.set_autocast_enabled(_DEVICE, content is not None)
        if content is not None:
            torch.set_autocast_dtype(_DEVICE, _DTYPES[_numbers.setdefault(content, len(_numbers)) % len(_DTYPES)])

    def save(self) -> Any:
        return super().save(), torch.get_autocast_dtype(_DEVICE), torch.is_autocast_enabled(_DEVICE)

    def load(self, found: Any) -> None:
        words, dtype, enabled = found
        super().load(words)
        torch.set_autocast_dtype(_DEVICE, dtype)
        torch.set_autocast_enabled(_DEVICE, enabled)


_here = _Words()


def _note() -> None:
    if (content := _here.content) is not None:
        compiled.add(content)


report.ENDED.append(_note)


_DYNAMO, _FUNCTORCH = "torch._dynamo.config", "torch._functorch.config"
SWITCHES = (
    Switch("graph.compilation", lambda: calls.compilation, partial(setattr, calls, "compilation")),
    Switch("graph.modules", calls.are_compiled, calls.compile_modules, state=(calls.found, calls.put_back)),
    Switch("graph.grad_for_scalar", lambda: calls.for_scalars, partial(setattr, calls, "for_scalars")),
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
    of("torch.dynamo.apart", _here, scope="thread"),
    _logs("torch.logs.dynamo"),
    _logs("torch.logs.aot"),
    _logs("torch.logs.inductor"),
)
