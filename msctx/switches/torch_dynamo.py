"""By what Dynamo's guards distinguish compiled code beside torch's own settings.

Code that is compiled under settings that change nothing but how it is compiled would go on running after them, and code from before
would go on inside. Guards look at the dtype of an autocast of every device, also of one that nobody has: it stands for the settings.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

from msctx.graph import report
from msctx.switches import paths
from msctx.switches.base import of

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
SWITCHES = (of("torch.dynamo.apart", _here, scope="thread"),)
