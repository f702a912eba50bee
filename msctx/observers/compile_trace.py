"""PyTorch's structured trace, a logger that gets each graph, generated code and the end of each compilation; and its readers.

``op_debug_config`` dump_cce and dump_loc keep the code that inductor generates, ``export_compile_stat`` counts its fusions,
``save_graphs`` writes graphs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.native import core, ranks_and_process_group
from msctx.observers import slots_and_files as files
from msctx.observers.slots_and_files import Slot
from msctx.options.switch_values import GraphFiles, Kernels

if TYPE_CHECKING:
    from torch import fx

LOGGER = logging.getLogger("torch.__trace")


class Handler(logging.Handler):
    """Gets what a switch keeps of it: texts, each by the name of an artifact, else by the first key of its metadata."""

    def __init__(self, settings: Any) -> None:
        super().__init__(logging.DEBUG)
        self.settings = settings

    def begin(self) -> None:
        LOGGER.addHandler(self)

    def end(self) -> None:
        LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        found: dict[str, Any] = getattr(record, "metadata", {})
        if isinstance(text := getattr(record, "payload", None), str):
            self.keep(str((found.get("artifact") or {}).get("name") or next(iter(found), "")), text, found)

    def keep(self, name: str, text: str, metadata: dict[str, Any]) -> None:
        raise NotImplementedError


# --- threads that compile ---------------------------------------------------------------------------------------------

PHASES = ("entire_frame_compile", "entire_backward_compile")


class _Listener(logging.Handler):
    """Tells the library in which threads torch.compile compiles, while it collects: what runs there is no operator of the program.

    PyTorch's callbacks (torch._dynamo.callback) reach only the thread that compiles first, and torch._dynamo.reset() drops them.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.is_wanted = False
        self._before: dict[int, list[int]] = {}
        """Thread that compiles → whether the library looked away when each compilation, one inside the other, began."""

    def turn(self, on: bool) -> None:
        """It stays until the threads that compile have ended that."""
        assert self.lock is not None
        with self.lock:
            self.is_wanted = on
            (LOGGER.addHandler if on or self._before else LOGGER.removeHandler)(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = getattr(record, "payload", None)
        if not isinstance(text, str) or '"entire_' not in text or "chromium_event" not in vars(record)["metadata"]:
            return
        event, here = json.loads(text), threading.get_ident()
        if event["name"] in PHASES and event["ph"] == "B":
            self._before.setdefault(here, []).append(core.load().c.msctx_look_away(1))
        elif event["name"] in PHASES and here in self._before:
            core.load().c.msctx_look_away(self._before[here].pop())
            if not self._before[here]:
                del self._before[here]
                self.turn(self.is_wanted)


LISTENER = _Listener()


# --- generated code ---------------------------------------------------------------------------------------------------

KERNELS = "op_debug_config"


class Keeper(Handler):
    """Files in ``kernel_meta``: each is named by its content, and an existing file stays."""

    def __init__(self, settings: Kernels) -> None:
        super().__init__(settings)
        root = Path(settings.path).expanduser() if settings.path else files.work_path() or Path()
        self._folder = root.absolute() / "kernel_meta"
        self._graphs: dict[int, str] = {}
        """Thread → the stem of the files of the graph that it compiled last."""

    def keep(self, name: str, text: str, metadata: dict[str, Any]) -> None:
        here = threading.get_ident()
        if name == "inductor_output_code":
            graph = self._graphs[here] = f"graph_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            self._put(f"{graph}.{'cpp' if text.lstrip().startswith('#include') else 'py'}", text)
        elif self.settings.locations and name == "inductor_provenance_tracking_kernel_stack_traces":
            self._put(f"{self._graphs.get(here)}_loc.json", text)

    def _put(self, name: str, text: str) -> None:
        if not (path := self._folder / name).exists():
            files.guarded(KERNELS, self._folder, lambda: files.write(path, text))


KERNELS_SLOT = Slot(Keeper)


# --- fusions ----------------------------------------------------------------------------------------------------------

FUSIONS = "export_compile_stat"
AT_END, AT_ONCE = 1, 2
_NO_PASS = (
    *("extern_calls", "flop_count", "pattern_matcher_count", "rescheduled_mem"),
    *("fxgraph_", "async_compile", "select_algorithm", "cudagraph", "generated_module_", "benchmarking", "triton_", "overlap_"),
)
"""The names of inductor's other counters begin so."""


def _counted() -> Counter[str]:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    passes, patterns = counters.get("inductor", {}), counters.get("inductor_pattern_matcher_per_pattern", {})
    found = Counter({n: c for n, c in passes.items() if not n.startswith(_NO_PASS) and not n.endswith("_nodes")}) + Counter(
        patterns
    )
    found["pattern_matcher"] = passes.get("pattern_matcher_count", 0) - sum(patterns.values())  # a cache has only their sum
    return found


class Recording(Handler):
    """Counts what is compiled while a context is open, in CANN's ``fusion_result.json``."""

    def __init__(self, mode: int) -> None:
        super().__init__(mode)
        self._graphs: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
        self._path: Path | None = None
        self._process, self._error = os.getpid(), files.last_error()

    def begin(self) -> None:
        """For the first time, or again after an inner context."""
        self._seen = _counted()
        super().begin()

    def end(self) -> None:
        self._count()
        super().end()
        if self.settings == AT_END and files.last_error() is self._error:
            self._write()

    def emit(self, record: logging.LogRecord) -> None:
        if "compilation_metrics" in getattr(record, "metadata", {}):
            self._count(is_compiled=True)
            if self.settings == AT_ONCE:
                self._write()

    def _count(self, is_compiled: bool = False) -> None:
        before, self._seen = self._seen, _counted()
        more = {name: count - before[name] if count >= before[name] else count for name, count in sorted(self._seen.items())}
        found = {name: {"effect_times": str(c), "match_times": str(c)} for name, c in more.items() if c > 0}
        if found or is_compiled:
            self._graphs[f"session_and_graph_id_0_{len(self._graphs)}"] = {"graph_fusion": found}

    def _write(self) -> None:
        if self._graphs and self._process == os.getpid():  # a forked child has its parent's
            work = files.work_path()
            folder = Path.cwd() if work is None else work / "FE" / str(os.getpid())
            files.guarded(FUSIONS, folder, lambda: self._write_to(folder))

    def _write_to(self, folder: Path) -> None:
        if self._path is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = files.reserve(folder / "fusion_result.json")
        files.write_json(self._path, self._graphs)


FUSIONS_SLOT = Slot(Recording)


# --- graphs, under MindSpore's names: ``00_bootstrap_0000.ir`` and so on ------------------------------------------------

GRAPHS = "save_graphs"
_STAGES = {
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

    @property
    def folder(self) -> Path:
        """A process may join a process group after the context began."""
        rank = ranks_and_process_group.known_rank()
        return self._root if rank is None else self._root / f"rank_{rank}"

    def keep(self, name: str, text: str, metadata: dict[str, Any]) -> None:
        level, stage = _STAGES.get(name, (4, ""))
        if level <= self.settings.level:
            compiled = f"{metadata.get('frame_id', '?')}/{metadata.get('frame_compile_id', '?')}"
            suffix = "ir" if stage != "output_code" else "cpp" if text.lstrip().startswith("#include") else "py"
            self._put(stage, suffix, f"{'//' if suffix == 'cpp' else '#'} compile_id: {compiled}, graph: {name}\n{text}")

    def draw(self, graph: fx.GraphModule) -> None:
        from torch.fx.passes.graph_drawer import FxGraphDrawer  # it takes pydot

        try:
            text = FxGraphDrawer(graph, "bootstrap").get_dot_graph().to_string()
        except Exception as error:  # without pydot, or a value that it cannot describe
            notices.warn(f"{GRAPHS}: a graph is not drawn: {error}")
        else:
            self._put("00_bootstrap", "dot", text)

    def _put(self, stage: str, suffix: str, text: str) -> None:
        def put() -> None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            there = [int(found[1]) for path in self.folder.iterdir() if (found := _SERIAL.fullmatch(path.name))]
            files.write(self.folder / f"{stage}_{max(there, default=-1) + 1:04d}.{suffix}", text)

        files.guarded(GRAPHS, self.folder, put)


GRAPHS_SLOT = Slot(Writer)


def is_kept() -> bool:
    """Whether anything of what is compiled is written to files or counted."""
    return any(slot.on is not None for slot in (KERNELS_SLOT, FUSIONS_SLOT, GRAPHS_SLOT))


def draw(graph: fx.GraphModule) -> None:
    """Draw a graph that graph mode is about to compile."""
    if GRAPHS_SLOT.on is not None and GRAPHS_SLOT.on.settings.level >= 3:
        GRAPHS_SLOT.on.draw(graph)


def obstacle(settings: GraphFiles | None) -> str:
    """Why the folder cannot be made, or ``""``."""
    try:
        if settings is not None:
            (folder := Writer(settings).folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"{GRAPHS}: cannot write to {folder} ({error.strerror or error}): no graph is saved"
    return ""
