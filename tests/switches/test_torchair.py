"""What torchair is given beside its own options, with a stand-in for the two of its modules that are requested."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from msctx.switches import SWITCHES, torch_npu

ENGINE, GRAPH, TUNER = (SWITCHES[f"torch.npu.{name}"] for name in ("engine_options", "graph_options", "graph_tuner"))


class Graph:
    """As torchair has it: the engine is initialised by the first."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.sent = self._normalize_ge_option()
        backend = sys.modules[torch_npu.ENGINE]
        if backend._GLOBAL_COMPILE_OPTION is None:
            backend._GLOBAL_COMPILE_OPTION = self.sent[1]
        there = backend._GLOBAL_COMPILE_OPTION
        if any(there.get(key) != value for key, value in self.sent[1].items()):
            raise ValueError("Unsupport twice initialtion")

    @property
    def config(self) -> Any:
        return self._config

    def _normalize_ge_option(self) -> tuple[dict[str, str], dict[str, str]]:
        return {"ge.exec.atomicCleanPolicy": "1"}, {"ge.opSelectImplmode": "high_precision"}


def config() -> Any:
    return SimpleNamespace(
        aoe_config=SimpleNamespace(aoe_mode=SimpleNamespace(value=None), work_path="./", aoe_config_file=None)
    )


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    kind = type("GeConcreteGraph", (Graph,), {})
    converter = {"GeConcreteGraph": kind, "_get_ge_dump_options": dict, "g_cached_dump_root": None}
    for name, content in ((torch_npu.CONVERTER, converter), (torch_npu.ENGINE, {"_GLOBAL_COMPILE_OPTION": None})):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for kept in (torch_npu._engine, torch_npu._graph, torch_npu._tuner):
        monkeypatch.setattr(kept, "given", None)
        monkeypatch.setattr(kept, "led", None)
    for name in ("engine", "hf32", "dumped"):
        monkeypatch.setattr(torch_npu._Sent, name, {})
    monkeypatch.setattr(torch_npu._Sent, "own", None)
    torch_npu._into_torchair()
    return kind


def test_options_go_with_each_graph_while_they_are_wanted(graph: type[Graph]) -> None:
    GRAPH.set({"ge.exec.atomicCleanPolicy": "0", "ge.new": "x"})
    assert graph(config()).sent[0] == {"ge.exec.atomicCleanPolicy": "0", "ge.new": "x"}
    GRAPH.set(None)
    assert graph(config()).sent[0] == {"ge.exec.atomicCleanPolicy": "1"}


def test_the_engine_keeps_what_it_was_initialised_with(graph: type[Graph]) -> None:
    ENGINE.set({"ge.opSelectImplmode": "high_performance", "ge.new": "x"})
    assert ENGINE.blocked is not None
    assert ENGINE.blocked({"ge.new": "y"}) == "", "nothing has been compiled"
    first = graph(config()).sent[1]
    assert first == {"ge.opSelectImplmode": "high_performance", "ge.new": "x"}
    assert ENGINE.read() == first
    late = ENGINE.blocked({"ge.new": "y"})
    assert "ge.new=y comes too late" in late
    assert "with ge.new=x" in late
    assert ENGINE.blocked({"ge.new": "x"}) == "", "it has that already"
    ENGINE.set(None)
    assert graph(config()).sent[1] == first, "another text would have torchair raise"


def test_a_graph_that_is_tuned_has_a_configuration_of_its_own(graph: type[Graph]) -> None:
    TUNER.set({"mode": "2", "path": "/kept", "file": ""})
    given = config()
    made = graph(given).config.aoe_config
    assert (made.aoe_mode, made.work_path, made.aoe_config_file) == ("2", "/kept", None)
    assert given.aoe_config.aoe_mode.value is None
    TUNER.set(None)
    assert graph(given).config is given
