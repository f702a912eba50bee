"""Why code is not compiled, or not as a whole: graph breaks as Dynamo reports them, in parts, and what the compiler raised."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msctx.errors import named
from msctx.notices import warn

if TYPE_CHECKING:
    from torch import fx

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
    where = re.match(r"Graph break in user code at (.+:\d+)", text)
    user = re.split(r"\n(?:from user code:|User code traceback:)", trace or text)
    lines = _LINE.findall(user[1].split("\nTraceback (most recent call last):")[0]) if len(user) > 1 else []
    theirs = [line for line in lines if not line[0].startswith(_not_theirs())]
    given = [where.group(1)] if where else []
    is_theirs = bool(given) and not given[0].startswith(_not_theirs())
    found = given if is_theirs else [":".join(line) for line in theirs[-1:]] or given or [":".join(line) for line in lines[-1:]]
    return Break(found[0] if found else "unknown place", reason, hints)


def _reason(body: str, context: str) -> str:
    """The explanation; where it is empty, what it is about; where a list follows, its first entry."""
    explained = re.search(r"(?:Graph Break Reason: )?(.*)\n\s*Explanation: (.*)(?:\n\s*- (.*))?", body)
    if explained is None:
        return _first(body)
    title, sentence, entry = (found.strip() for found in explained.groups(default=""))
    if sentence and not sentence.endswith(":"):
        return sentence
    if sentence:
        return ": ".join(filter(None, (title, entry))) or sentence
    return re.sub(r" at 0x[0-9a-f]+", "", _first(context)) if context.strip() else title or "no reason given"


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
    text = f"{where}: the compiler raised {named(error).splitlines()[0]}"
    warn(f"mode=GRAPH_MODE: {text}. This part runs eagerly; jit_syntax_level='STRICT' makes it an error.")
