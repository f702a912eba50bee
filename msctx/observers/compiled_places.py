"""Where an operator of compiled code comes from: the module and the line of the graph's node, by the comments in inductor's code."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import fx

from msctx.native import core


class Place(NamedTuple):
    module: str = ""
    """Its path in the module that is compiled; "": that itself."""
    line: str = ""


_here = threading.local()
_SOURCES, _KEY = re.compile(r"Source Nodes: \[(.*?)\]"), re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")


def naming(graph: fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Let observers know, while *compiled* runs, of which nodes it was made."""
    nodes = {node.name: Place(module_of(node), line_of(node)) for node in graph.graph.nodes}

    def run(*args: Any) -> Any:
        collector = sys.modules.get("msctx.observers.collector")
        if collector is None or not collector.is_on():
            return compiled(*args)
        before, _here.nodes = getattr(_here, "nodes", None), nodes
        was_compiled = core.load().c.msctx_enter_compiled(1)
        try:
            return compiled(*args)
        finally:
            _here.nodes = before
            core.load().c.msctx_enter_compiled(was_compiled)

    return run


def here() -> Place | None:
    """Of the operator that this thread runs now; ``None`` outside of compiled code, and where inductor has not made it."""
    frame: FrameType | None = sys._getframe(1)
    files = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    nodes: Mapping[str, Place] | None = getattr(_here, "nodes", None)
    while nodes is not None and files is not None and frame is not None:
        if frame.f_code.co_filename in files.linemaps:
            names = _names(frame.f_code.co_filename, frame.f_lineno)
            return next((nodes[name] for name in reversed(names) if name in nodes), None)
        frame = frame.f_back
    return None


@functools.lru_cache(4096)
def _names(file: str, line: int) -> list[str]:
    """Of the nodes that the code in this line computes: a comment above it has them."""
    found = (_SOURCES.search(text) for text in reversed(linecache.getlines(file)[:line]))
    return next((match[1].split(", ") for match in found if match), [])


def module_of(node: fx.Node) -> str:
    """The path of the module that calls it: ``body.1``; "" of the model itself."""
    return next(iter(modules_around(node)), "")


def modules_around(node: fx.Node) -> list[str]:
    """The paths of the modules around a node, the innermost first: of ``L['m']._modules['layers'][0]`` ``layers.0``."""
    names = [_KEY.sub(r".\1", name).split(".")[2:] for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return [".".join(part for part in parts if part not in ("", "_modules", "_orig_mod")) for parts in reversed(names)]


def line_of(node: fx.Node) -> str:
    """The user's line that calls it: ``train.py:12``."""
    places = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    users = [f"{Path(file).name}:{line}" for file, line in places if not file.startswith(ours)]
    return users[-1] if users else ""
