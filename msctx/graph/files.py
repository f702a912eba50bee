"""``save_graphs``: the graphs of torch.compile in files, under MindSpore's names: ``00_bootstrap_0000.ir`` and so on.

PyTorch reports each graph to the logger of its structured trace, as the text of ``GraphModule.print_readable``.
"""

from __future__ import annotations

import logging
import re
from itertools import count
from pathlib import Path
from typing import Any

from torch import fx
from torch.fx.passes.graph_drawer import FxGraphDrawer

from msctx import notices
from msctx.native import distributed
from msctx.observers import files
from msctx.observers.compile_trace import Handler, name_of
from msctx.observers.slots import Slot
from msctx.options.policies import GraphFiles

OPTION = "save_graphs"
_GRAPHS = {
    "dynamo_output_graph": (1, "00_bootstrap"),
    "after_pre_grad_graph": (1, "01_type_inference"),
    "aot_joint_graph": (1, "03_auto_monad"),
    "aot_forward_graph": (1, "16_validate"),
    "aot_backward_graph": (1, "16_validate"),
    "aot_inference_graph": (1, "16_validate"),
    "before_post_grad_graph": (2, "17_task_emit"),
    "inductor_post_grad_graph": (2, "graph_build"),
    "inductor_output_code": (2, "output_code"),
}
"""PyTorch's name of a graph → the level that writes it, and MindSpore's name of the stage."""
_SERIAL = re.compile(r".*_(\d{4,})\.(?:ir|dot|py|cpp)")


class Writer(Handler):
    """Writes graphs while it is a handler of the structured trace; errors become warnings, and the program goes on."""

    def __init__(self, settings: GraphFiles) -> None:
        super().__init__(settings)
        self._root = Path(settings.path).expanduser().absolute()
        self._counted: Path | None = None

    @property
    def folder(self) -> Path:
        """A process may join a process group after the context began."""
        rank = distributed.known_rank()
        return self._root if rank is None else self._root / f"rank_{rank}"

    def emit(self, record: logging.LogRecord) -> None:
        name, text = name_of(record), getattr(record, "payload", None)
        level, stage = _GRAPHS.get(name, (4, ""))
        if isinstance(text, str) and level <= self.settings.level:
            found: Any = vars(record)["metadata"]
            compiled = f"{found.get('frame_id', '?')}/{found.get('frame_compile_id', '?')}"
            suffix = "ir" if stage != "output_code" else "cpp" if text.lstrip().startswith("#include") else "py"
            self._put(stage, suffix, f"{'//' if suffix == 'cpp' else '#'} compile_id: {compiled}, graph: {name}\n{text}")

    def draw(self, graph: fx.GraphModule) -> None:
        try:
            text = FxGraphDrawer(graph, "bootstrap").get_dot_graph().to_string()
        except Exception as error:  # without pydot, or a value that it cannot describe
            notices.warn(f"{OPTION}: a graph is not drawn: {error}")
        else:
            self._put("00_bootstrap", "dot", text)

    def _put(self, stage: str, suffix: str, text: str) -> None:
        def put() -> None:
            if self._counted != self.folder:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                there = [int(found[1]) for path in self.folder.iterdir() if (found := _SERIAL.fullmatch(path.name))]
                self._counted, self._serial = self.folder, count(max(there, default=-1) + 1)
            files.write(self.folder / f"{stage}_{next(self._serial):04d}.{suffix}", text)

        files.guarded(OPTION, self.folder, put)


SLOT = Slot(Writer)


def draw(graph: fx.GraphModule) -> None:
    """Draw a graph that graph mode is about to compile."""
    if SLOT.on is not None and SLOT.on.settings.level >= 3:
        SLOT.on.draw(graph)


def obstacle(settings: GraphFiles | None) -> str:
    """Why the folder cannot be made, or ``""``."""
    try:
        if settings is not None:
            (folder := Writer(settings).folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{OPTION}: cannot write to {folder} ({error.strerror or error}): no graph is saved"
    return ""
