"""What was compiled, and why not all of it: the rows of graphs(), graph breaks, and exceptions that come out of compiled code.

The rows come from torch's structured trace, which its own tools read, too.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from types import CodeType
from typing import TYPE_CHECKING, Any

from msctx.deferred_interrupts import uninterrupted
from msctx.errors import GraphError, MsctxError, named, text_of
from msctx.import_hooks import when_imported
from msctx.native import counter_lifetimes
from msctx.notices import warn
from msctx.observers.compile_trace import LOGGER
from msctx.tables import Row, Rows

if TYPE_CHECKING:
    from torch import fx, nn

# --- graph breaks, and what the compiler raised -----------------------------------------------------------------------

_LINK = "For more details about this graph break"
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break.

    Attributes:
        where: ``file:line`` of the program.
        reason: what Dynamo cannot capture.
        hints: what to change.
    """

    where: str
    reason: str
    hints: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


def parse(text: str) -> Break:
    """What Dynamo writes of a graph break, or the text of its error (``torch._dynamo.exc.Unsupported``)."""
    body, _, trace = text.partition("Developer debug context:")
    reason = _reason(body, trace.partition(_LINK)[0])
    hints = tuple(hint.strip() for hint in re.findall(r"Hint: (.*)", body) if "report an issue to PyTorch" not in hint)
    user = re.split(r"\n(?:from user code:|User code traceback:)", trace or text)
    lines = _LINE.findall(user[1].split("\nTraceback (most recent call last):")[0]) if len(user) > 1 else []
    places = [*re.findall(r"\AGraph break in user code at (.+:\d+)", text), *(":".join(line) for line in reversed(lines))]
    theirs = (place for place in places if not place.startswith(_not_theirs()))
    return Break(next(theirs, places[0] if places else "unknown place"), reason, hints)


def _reason(body: str, context: str) -> str:
    """The explanation; where it is empty, the title and what it is about; where a list follows, its first entry."""
    explained = re.search(r"(?:Graph Break Reason: )?(.*)\n\s*Explanation: (.*)(?:\n\s*- (.*))?", body)
    if explained is None:
        return _first(body)
    title, sentence, entry = (found.strip() for found in explained.groups(default=""))
    if sentence and not sentence.endswith(":"):
        return sentence
    detail = entry or (re.sub(r" at 0x[0-9a-f]+", "", _first(context)) if context.strip() else "")
    return ": ".join(filter(None, (title, detail))) or sentence or "no reason given"


def _not_theirs() -> tuple[str, str]:
    """Where torch's modules and these lie, which are not the program."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or "torch"
    return os.path.join(os.path.dirname(torch), ""), os.path.join(os.path.dirname(__file__), "")


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def not_compiled(graph: fx.GraphModule, error: Exception) -> None:
    """Warn that a part runs eagerly, since the compiler has failed; with the program's line of the first node that has one."""
    lines = (_LINE.findall(node.stack_trace or "") for node in graph.graph.nodes)
    where = next((":".join(found[-1]) for found in lines if found), "a graph")
    reason = f"the compiler raised {named(error).splitlines()[0]}. This part runs eagerly"
    warn(f"mode=GRAPH_MODE: {where}: {reason}; jit_syntax_level='STRICT' makes it an error.")


# --- exceptions that come out of compiled code otherwise than out of eager code, or do not name the option -------------

NOTHING_RAN = (
    "precompile_only=True compiles what is called and runs nothing. So the call returned None, and the program cannot use that"
    ". To compile a loss as well, put it into one module, or one function of msctx.jit, with the model; or end the program after "
    "the first call."
)
ONCE_ONLY = (
    "mode=GRAPH_MODE: compiled code has first derivatives only, and a second one was requested (create_graph=True). Where you need "
    "it, call the model inside msctx.context(mode='PYNATIVE_MODE'); the rest may stay compiled."
)
RAISES = {"Observed exception", "TypeError when making fake tensor call", "Tensor device mismatch"}
"""What Dynamo calls code that raises in eager mode, too, most often."""


def explained(error: BaseException | None, get: Callable[[str], Any]) -> MsctxError | None:
    """What an exception means that leaves a scope or a run, where an option is why; *get* has the options' values."""
    if not isinstance(error, Exception) or isinstance(error, MsctxError):
        return None
    if "not currently support double backward" in text_of(error):
        return GraphError(ONCE_ONLY)
    return GraphError(NOTHING_RAN) if "NoneType" in text_of(error) and get("precompile_only") else None


def is_of_capture(error: Exception) -> bool:
    """Whether Dynamo raised while it captured, and nothing of the program had run: no frame lies between ours and Dynamo's."""
    from torch._dynamo.exc import BackendCompilerFailed

    if isinstance(error, MsctxError | Warning | BackendCompilerFailed):
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    inner = (code for code in codes if not _is_ours(code) and os.path.basename(code.co_filename) != "eval_frame.py")
    return next((code.co_filename.endswith(os.path.join("_dynamo", "convert_frame.py")) for code in inner), False)


def _is_ours(code: CodeType) -> bool:
    """Not those that Dynamo captures: they have names of the program."""
    return os.path.dirname(code.co_filename) == os.path.dirname(__file__) and code.co_name.startswith("_")


# --- rows ---------------------------------------------------------------------------------------------------------------

KEPT = 4096


@dataclass(slots=True, eq=False)
class Way:
    """What the row of a graph says of the way it runs, once that is known."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


def way() -> Way:
    """That of the piece of code that is being compiled."""
    from torch._guards import CompileContext

    number, found = CompileContext.current_compile_id(), Way()
    if number is not None:
        _ways[f"{number.frame_id}/{number.frame_compile_id}"] = found
    return found


_ways: dict[str, Way] = {}


@dataclass(frozen=True, slots=True)
class Graph(Row):
    """One piece of code that was compiled.

    Attributes:
        id: torch's own, as its logs have it: the piece, and which of its variants.
        function: what it is: a class of modules, or a function; after a graph break ``… resumed``.
        where: ``file:line`` of the program.
        operators: how many nodes were captured; 0: none, it runs eagerly.
        breaks: why the graph ends before the function does.
        recompiled: what an earlier variant requires and this call did not have, ``""``: it is the first.
        seconds: what compiling took, and its backward pass.
        cache: ``"hit"``, ``"miss"``, ``"bypass"`` of torch's caches on disk; ``""``: they were not requested.
        settings: under which options it was compiled that are in the code.
        failed: why it runs eagerly.
        way: where PyTorch's own ways of it were measured, too: which one runs, and how much faster it is.
    """

    id: str
    function: str
    where: str
    operators: int
    breaks: tuple[Break, ...]
    recompiled: str
    seconds: float
    cache: str
    settings: str
    failed: str
    way: str


class Graphs(Rows[Graph]):
    """Rows of what was compiled, in the order in which that ended. Prints as a table."""

    EMPTY = "nothing has been compiled"
    ROW = Graph

    @property
    def breaks(self) -> tuple[Break, ...]:
        """All graph breaks, each once."""
        return tuple(dict.fromkeys(one for row in self for one in row.breaks))

    @property
    def recompiled(self) -> Graphs:
        """The rows of what had been compiled before, for other inputs."""
        return Graphs(row for row in self if row.recompiled)

    def _table(self) -> tuple[list[str], Iterator[list[Any]]]:
        from rich.text import Text

        shown: set[Break] = set()  # what is to be changed is listed once

        def cells(row: Graph) -> list[Any]:
            what = Text(row.function)
            reasons = [*map(str, row.breaks), row.recompiled and f"recompiled: {row.recompiled}", row.failed, str(row.way)]
            hints = [f"  {hint}" for one in row.breaks if one not in shown for hint in one.hints]
            shown.update(row.breaks)
            what.append("".join(f"\n  {text}" for text in [*filter(None, reasons), *hints]), "dim")
            return [row.id, what, row.where, str(row.operators), f"{row.seconds:.2f}", row.cache, row.settings]

        return ["id", "compiled", "where", "operators", "seconds", "cache", "settings"], map(cells, self)


BREAK, RECOMPILED = "dynamo_graph_break_reason", "recompile_reasons"
"""Names of artifacts in the trace."""


class _Listener(logging.Handler):
    """Reads torch's structured trace; torch makes it only while somebody listens."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rows = deque[Graph](maxlen=KEPT)
        self._begun: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        """Of a piece of code that is compiled, the names and texts of its artifacts."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._read(record)
        except Exception as error:  # another torch's trace: the program goes on
            warn(f"graphs() is not complete: this torch writes another trace ({error!r})")

    def _read(self, record: logging.LogRecord) -> None:
        found: dict[str, Any] = getattr(record, "metadata", {})
        if "frame_id" not in found:
            return
        key = f"{found['frame_id']}/{found['frame_compile_id']}"
        if (artifact := found.get("artifact")) is not None:
            text = getattr(record, "payload", None) if artifact["name"] in (BREAK, RECOMPILED) else None
            self._begun[key].append((artifact["name"], text or ""))
        elif (metrics := found.get("compilation_metrics")) is not None:
            row = _row(key, metrics, self._begun.pop(key, []))
            for rows in (self.rows, *(one.rows for one in [*_listening] if isinstance(one, Tally))):
                rows.append(row)
            for call in ENDED:
                call()


def _row(key: str, metrics: dict[str, Any], artifacts: list[tuple[str, str]]) -> Graph:
    function, where = str(metrics.get("co_name") or "backward"), f"{metrics.get('co_filename')}:{metrics.get('co_firstlineno')}"
    if resumed := re.fullmatch(r"torch_dynamo_resume_in_(.+)_at_\d+", function):
        function = f"{resumed.group(1)} resumed"
    else:
        where = _places.get(function, where)
    caches = {name.rpartition("_")[2] for name, _ in artifacts if "cache_" in name}
    reasons = [reason for name, text in artifacts if name == RECOMPILED for reason in re.findall(r'\d+/\d+: ([^"\n]+)', text)]
    failed = str(metrics.get("fail_reason") or "").strip()
    return Graph(
        id=key,
        function=function,
        where=where,
        operators=int(metrics.get("graph_op_count") or 0),
        breaks=tuple(dict.fromkeys(parse(text) for name, text in artifacts if name == BREAK)),
        recompiled="; ".join(dict.fromkeys(map(_guard, reasons))),
        seconds=float(metrics.get("entire_frame_compile_time_s") or 0),
        cache=next((word for word in ("miss", "bypass", "hit") if word in caches), ""),
        settings=_settings(),
        failed=failed.splitlines()[0] if failed else "",
        way=_ways.pop(key, ""),  # type: ignore[arg-type]  # a text once it is told
    )


def _guard(text: str) -> str:
    """Without the line of torch's own that has the guard."""
    if "BACKEND_MATCH" in text:
        return "other options of graph mode, another forward of a class of modules, or other global hooks"
    return re.split(r"  +#|\\n", text)[0].strip()


def _settings() -> str:
    import torch.compiler.config

    found = ["deterministic"] if torch.are_deterministic_algorithms_enabled() else []
    found += [
        f"autocast {torch.get_autocast_dtype(device)}".replace("torch.", "")
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    return ", ".join([*found, *filter(None, [torch.compiler.config.cache_key_tag])])


LISTENER = _Listener()
ENDED: list[Callable[[], None]] = []
"""What is called in the thread that has compiled something."""
_places: dict[str, str] = {}
"""Name of a class of modules in the rows → where its forward is."""


def name(of: type[nn.Module]) -> str:
    """A name for it that no class of another place has."""
    code = getattr(inspect.unwrap(of.forward), "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
    names = (f"{of.__qualname__}{f' ({number})' * (number > 1)}" for number in count(1))
    found = next(one for one in names if _places.get(one, where) == where)
    _places[found] = where
    return found


_listening: set[object] = set()
"""What the trace is read for: open contexts, options below all of them, or functions of :func:`msctx.jit`, which stay."""
_lock = threading.Lock()


def listen(who: object, on: bool) -> None:
    if (who in _listening) != on:
        with uninterrupted(), _lock:
            (_listening.add if on else _listening.discard)(who)
            (LOGGER.addHandler if _listening else LOGGER.removeHandler)(LISTENER)


class Tally:
    """What was compiled while a context was open."""

    def __init__(self, context: Any) -> None:
        self.rows = deque[Graph](maxlen=KEPT)

    def begin(self) -> None:
        listen(self, True)

    def end(self) -> list[str]:
        listen(self, False)
        return []

    def graphs(self) -> Graphs:
        return told(self.rows)


def of_process() -> Graphs:
    return told(LISTENER.rows)


def told(rows: deque[Graph]) -> Graphs:
    """As they are now."""
    return Graphs(replace(row, way=str(row.way)) for row in rows.copy())  # other threads may compile


_compilers: list[str] = []


def _dynamo_came() -> None:
    _compilers.append("torch._dynamo")
    counter_lifetimes.note(Tally)


counter_lifetimes.SOURCES[Tally] = _compilers
when_imported("torch._dynamo", _dynamo_came)
