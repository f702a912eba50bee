"""Where paths lead that are opened later: as when they were set, whatever directory the program is in by then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

OF_THE_ENGINE = frozenset(
    {"ge.debugDir", "ge.op_compiler_cache_dir", "ge.exec.dumpPath", "ge.exec.opDebugConfig", "ge.fusionSwitchFile"}
)
OF_THE_TUNER = frozenset({"path", "file"})


Texts = Mapping[str, Any] | None


class Kept:
    """Texts by their keys, as they are wanted and as they are in force: a path that stays the same text stays the same place."""

    def __init__(self, is_path: Callable[[str], bool]) -> None:
        self._is_path = is_path
        self.given: Texts = None
        self.led: Texts = None

    def placed(self, texts: Texts) -> Texts:
        return texts and {key: self._placed(key, text) for key, text in texts.items()}

    def _placed(self, key: str, text: Any) -> Any:
        if not text or not self._is_path(key):
            return text
        is_same = (self.given or {}).get(key) == text
        return self.led[key] if self.led and is_same else os.path.abspath(os.path.expandvars(os.path.expanduser(text)))

    def read(self) -> Any:
        return self.led and dict(self.led)

    def holds(self, texts: Any) -> bool:
        return self.placed(texts) == self.led

    def write(self, texts: Any) -> None:
        self.given, self.led = texts, self.placed(texts)

    def save(self) -> Any:
        return self.given, self.led

    def load(self, found: Any) -> None:
        self.given, self.led = found
