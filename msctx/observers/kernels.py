"""``op_debug_config`` dump_cce, dump_loc: the code that inductor generates, in ``kernel_meta``.

A file is named by its content, and an existing file stays.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

from msctx.observers import files
from msctx.observers.slots import Slot
from msctx.observers.structured_trace import Handler, name_of
from msctx.options.observation import Kernels

OPTION = "op_debug_config"


class _Here(threading.local):
    graph = ""
    """The stem of the files of the graph that this thread compiled last."""


class Keeper(Handler):
    def __init__(self, settings: Kernels) -> None:
        super().__init__(settings)
        root = Path(settings.path).expanduser() if settings.path else files.work_path() or Path()
        self._folder = root.absolute() / "kernel_meta"
        self._here = _Here()

    def emit(self, record: logging.LogRecord) -> None:
        name, text = name_of(record), getattr(record, "payload", None)
        if not isinstance(text, str):
            return
        if name == "inductor_output_code":
            self._here.graph = f"graph_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            self._put(f"{self._here.graph}.{'cpp' if text.lstrip().startswith('#include') else 'py'}", text)
        elif self.settings.locations and name == "inductor_provenance_tracking_kernel_stack_traces":
            self._put(f"{self._here.graph}_loc.json", text)

    def _put(self, name: str, text: str) -> None:
        if not (path := self._folder / name).exists():
            files.guarded(OPTION, self._folder, lambda: files.write(path, text))


SLOT = Slot(Keeper)
