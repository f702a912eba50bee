"""What goes to CANN's graph engine with what torchair, torch_npu's compiler of graphs, sends by itself.

The engine is initialised once in a process, with the first graph that is compiled; torchair raises at later ones that come with other
options. Options of a graph go with each graph; the engine looks for one there first.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from msctx.imports import when_imported
from msctx.switches.accelerator import npu
from msctx.switches.base import OF_THE_ENGINE, OF_THE_TUNER, Kept, of

CONVERTER = "torchair._ge_concrete_graph.fx2ge_converter"
ENGINE = "torchair.core._backend"
Options = Mapping[str, str]
ALLOW_HF32, AS_SWITCHED = "ge.exec.allow_hf32", "-"
"""A digit for convolutions and one for products, or the sign for torch_npu's switch as it is then."""
DUMPS = (
    *("ge.exec.enableDump", "ge.exec.dumpPath", "ge.exec.dumpMode", "ge.exec.dumpStep", "ge.exec.dumpLayer"),
    *("ge.exec.dumpData", "ge.quant_dumpable"),
)
"""Options of a graph that torchair writes to a file; among those of the engine they would hold for the whole process."""


class _Kept(Kept):
    """Options as they are wanted: torchair requests them when it compiles graphs, which is later."""

    def write(self, texts: Any) -> None:
        super().write(texts)
        if not _waiting:
            _waiting.append(when_imported(CONVERTER, _into_torchair))


class _Engine(_Kept):
    def read(self) -> dict[str, str] | None:
        return dict((self.led if _initialised() is None else _Sent.engine) or {}) or None

    def holds(self, texts: Any) -> bool:
        """Whether the engine has these; others that it has beside them stay."""
        there, wanted = _initialised(), dict(self.placed(texts) or {})
        if there is None:
            return self.read() == (wanted or None)
        return all(there.get(key) == value for key, value in wanted.items())

    def blocked(self, texts: Any) -> str:
        there, wanted = _initialised(), self.placed(texts) or {}
        if there is None or self.holds(texts):
            return ""
        differing = next(key for key, value in wanted.items() if there.get(key) != value)
        return (
            f"{differing}={wanted[differing]} comes too late: torchair has initialised the graph engine with its first graph, "
            f"with {differing}={there.get(differing, 'unset')}; start with `msctx run`, or enter the context before that graph"
        )


_waiting: list[Callable[[], None]] = []
"""Torchair asks here as soon as it is imported; it goes on asking, and gets nothing where nothing is wanted."""
_engine = _Engine(OF_THE_ENGINE.__contains__)
_graph, _tuner = _Kept(OF_THE_ENGINE.__contains__), _Kept(OF_THE_TUNER.__contains__)


class _Sent:
    engine: dict[str, str] = {}
    """What of the engine's options was ours when it was initialised."""
    hf32: dict[str, str] = {}
    """What goes with each graph from then on where the engine took HF32 from switches that we had set."""
    dumped: dict[str, str] = {}
    """The settings of the graphs in torchair's list of those that CANN dumps; none: they are the program's own."""
    own: Any = None
    """The program's own list, while there is another one."""


def _initialised() -> dict[str, str] | None:
    """What the engine was initialised with; ``None``: it was not."""
    found = getattr(sys.modules.get(ENGINE), "_GLOBAL_COMPILE_OPTION", None)
    return None if found is None else dict(found)


def _into_torchair() -> None:
    converter: Any = sys.modules[CONVERTER]
    graphs, taken = converter.GeConcreteGraph, converter._get_ge_dump_options
    make, normal = graphs.__init__, graphs._normalize_ge_option

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if _tuner.led is not None and self.config.aoe_config.aoe_mode.value is None:
            self._config = _tuning(self.config, _tuner.led)

    graphs.__init__ = made
    graphs._normalize_ge_option = lambda self: _merged(*normal(self))
    converter._get_ge_dump_options = lambda engine: taken(engine) | _dumps()


def _merged(graph: dict[str, str], engine: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours = {key: value for key, value in (_graph.led or {}).items() if key not in DUMPS}
    if _initialised() is None:
        _Sent.engine = dict(_engine.led or {})
        _Sent.hf32 = {ALLOW_HF32: AS_SWITCHED * 2} if ALLOW_HF32 in ours else {}
    graph = graph | _Sent.hf32 | ours
    if AS_SWITCHED in (digits := graph.get(ALLOW_HF32, "")):
        there = [str(int(switch.allow_hf32)) for switch in (npu().conv, npu().matmul)]
        graph[ALLOW_HF32] = "".join(n if d == AS_SWITCHED else d for d, n in zip(digits, there, strict=True))
    return graph, engine | _Sent.engine


def _dumps() -> dict[str, str]:
    """What is to be dumped of the graph that is about to be compiled. torchair's list has one path and one mode, those of its first
    graph: each settings have their own, and so have the graphs that the program has dumped itself."""
    found = {key: value for key, value in (_graph.led or {}).items() if key in DUMPS}
    if found != _Sent.dumped:
        converter: Any = sys.modules[CONVERTER]
        if not _Sent.dumped:
            _Sent.own = converter.g_cached_dump_root
        converter.g_cached_dump_root = None if found else _Sent.own
        _Sent.dumped = found
    if found:
        os.makedirs(found["ge.exec.dumpPath"], exist_ok=True)
    return found


def _tuning(config: Any, tuner: Options) -> Any:
    """A configuration of its own for this graph: the program's is not changed."""
    made = copy.deepcopy(config)
    made.aoe_config.aoe_mode = tuner["mode"]
    made.aoe_config.work_path = tuner["path"]
    if tuner["file"]:
        made.aoe_config.aoe_config_file = tuner["file"]
    return made


SWITCHES = (
    of("torch.npu.engine_options", _engine, restore="it is read only before the first graph that torchair compiles"),
    of("torch.npu.graph_options", _graph),
    of("torch.npu.graph_tuner", _tuner),
)
