"""Where paths lead that are opened later: as when they were set, whatever directory the program is in by then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

OF_THE_ENGINE = frozenset(
    {"ge.debugDir", "ge.op_compiler_cache_dir", "ge.exec.dumpPath", "ge.exec.opDebugConfig", "ge.fusionSwitchFile"}
)
OF_THE_TUNER = frozenset({"path", "file"})


def place(path: str) -> str:
    """Where a path leads now."""
    return os.path.abspath(os.path.expandvars(os.path.expanduser(path)))


class Kept:
    """Texts by their keys, as they are wanted and as they are in force: a path that stays the same text stays the same place."""

    def __init__(self, is_path: Callable[[str], bool]) -> None:
        self._is_path = is_path
        self.given: Mapping[str, str] | None = None
        self.led: Mapping[str, str] | None = None

    def placed(self, texts: Mapping[str, str] | None) -> Mapping[str, str] | None:
        return texts and {key: self._placed(key, text) for key, text in texts.items()}

    def _placed(self, key: str, text: str) -> str:
        if not text or not self._is_path(key):
            return text
        return self.led[key] if self.led and (self.given or {}).get(key) == text else place(text)

    def write(self, texts: Mapping[str, str] | None) -> None:
        self.led = self.placed(texts)
        self.given = texts

    def save(self) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
        return self.given, self.led

    def load(self, found: tuple[Mapping[str, str] | None, Mapping[str, str] | None]) -> None:
        self.given, self.led = found
