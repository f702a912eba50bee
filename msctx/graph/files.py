"""The files of ``save_graphs``, with MindSpore's names: ``00_bootstrap_0000.ir`` and so on.

The numbers at the end go over ``.ir`` and ``.dot`` together, in the order in which the graphs were made. A folder that has files
already keeps them: the numbers go on where they end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import fx

from msctx import locks, notices
from msctx.errors import named
from msctx.graph.drawing import dot_text
from msctx.graph.ir import ir_text
from msctx.observers import files
from msctx.options.observation import GraphFiles

OPTION = "save_graphs"
_SERIAL = re.compile(r".*_(\d{4,})\.(?:ir|dot)")
_BUILT = re.compile(r"graph_build_(\d+)_\d{4,}\.ir")


class Writer:
    """What it raises becomes a warning: a program that compiles goes on."""

    def __init__(self, settings: GraphFiles, before: Writer | None = None) -> None:
        self.settings = settings
        # one that goes on stays where it is: the program may have changed its directory
        own = Path(settings.path).expanduser().absolute()
        self._root: Path = before._root if before and before.settings.path == settings.path else own
        self._lock = locks.plain()
        self._counted: Path | None = None
        self._serial = self._built = 0

    @property
    def folder(self) -> Path:
        """As late as possible: a process may become one of several while it runs."""
        return self._root / f"rank_{files.rank()}" if files.is_one_of_several() else self._root

    def obstacle(self) -> str:
        """Why nothing can be written, or ``""``: then the folder is there."""
        try:
            self._make()
        except OSError as error:
            return f"{OPTION}: cannot write to {self.folder} ({error.strerror or error}): no graph is saved"
        return ""

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _safely(self, work: Callable[[], object]) -> None:
        try:
            files.guarded(OPTION, self.folder, work)
        except Warning:  # as an error
            raise
        except Exception as error:  # whatever the graph is
            text = f"{OPTION}: a graph cannot be written ({named(error)}); the program goes on"
            notices.warn(OPTION, text, text)

    def graph(self, stem: str, gm: fx.GraphModule, name: str, *, classes: bool, attrs: Mapping[str, object]) -> None:
        """*name*: of the entry in the file."""

        def work() -> None:
            self._put(stem, "ir", ir_text(gm, name, classes=classes, attrs=attrs))
            if self.settings.level >= 3:
                self._put(stem, "dot", dot_text(gm, name, classes=classes))

        self._safely(work)

    def number(self) -> int:
        """Of the next graph that is built."""
        with self._lock:
            self._count()
            self._built += 1
            return self._built - 1

    def text(self, name: str, suffix: str, read: Callable[[], str]) -> None:
        """A file that is not one of the numbered ones; there may be one of this name, which stays."""

        def work() -> None:
            path = files.reserve(self._made() / f"{name}.{suffix}")
            files.write(path, read())

        self._safely(work)

    def _made(self) -> Path:
        self._make()
        return self.folder

    def _put(self, stem: str, suffix: str, text: str) -> None:
        with self._lock:
            folder = self._count()
            while True:
                path = folder / f"{stem}_{self._serial:04d}.{suffix}"
                self._serial += 1
                try:
                    return files.create(path, functools.partial(_fill, text))
                except FileExistsError:  # another process writes here, too
                    if not path.exists():
                        raise

    def _count(self) -> Path:
        """The folder, where the numbers go on from those that are there."""
        folder = self.folder
        if folder != self._counted:
            names = [path.name for path in folder.glob("*")]
            self._serial = max((int(m[1]) + 1 for name in names if (m := _SERIAL.fullmatch(name))), default=0)
            self._built = max((int(m[1]) + 1 for name in names if (m := _BUILT.fullmatch(name))), default=0)
            self._counted = folder
        return folder


def _fill(text: str, part: Path) -> None:
    part.write_text(text, encoding="utf-8")
