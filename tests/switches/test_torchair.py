"""What torchair is given beside its own options, with a stand-in for the two of its modules that are asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from msctx.switches import SWITCHES, torchair

ENGINE, GRAPH, TUNER = (SWITCHES[f"torch.npu.{name}"] for name in ("engine_options", "graph_options", "graph_tuner"))


class Graph:
    """As torchair has it: the engine is initialised by the first."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.sent = self._normalize_ge_option()
        backend = sys.modules[torchair.ENGINE]
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


def taken_from(engine: dict[str, str]) -> dict[str, str]:
    """As torchair takes what is to be dumped of a graph, which by then may only be a program's own."""
    return {key: engine.pop(key) for key in torchair.DUMPS if key in engine}


def config() -> Any:
    return SimpleNamespace(
        aoe_config=SimpleNamespace(aoe_mode=SimpleNamespace(value=None), work_path="./", aoe_config_file=None)
    )


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    kind = type("GeConcreteGraph", (Graph,), {})
    converter = {"GeConcreteGraph": kind, "_get_ge_dump_options": taken_from, "g_cached_dump_root": None}
    for name, content in ((torchair.CONVERTER, converter), (torchair.ENGINE, {"_GLOBAL_COMPILE_OPTION": None})):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torchair, "_waiting", [])
    for kept in (torchair._engine, torchair._graph, torchair._tuner):
        monkeypatch.setattr(kept, "given", None)
        monkeypatch.setattr(kept, "led", None)
    for name in ("engine", "hf32", "dumped"):
        monkeypatch.setattr(torchair._Sent, name, {})
    monkeypatch.setattr(torchair._Sent, "own", None)
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


def test_an_engine_that_others_initialised_is_left_alone(graph: type[Graph]) -> None:
    graph(config())
    assert ENGINE.blocked is not None
    assert "with ge.new=unset" in ENGINE.blocked({"ge.new": "x"})
    GRAPH.set({"ge.new": "x"})
    assert graph(config()).sent[1] == {"ge.opSelectImplmode": "high_precision"}


def test_dumps_go_with_a_graph_and_not_to_the_engine(graph: type[Graph], tmp_path: Any) -> None:
    graph(config())
    converter: Any = sys.modules[torchair.CONVERTER]
    for place in ("first", "second"):
        dumps = {"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path / place)}
        GRAPH.set(dumps | {"ge.new": "x"})
        options, engine = graph(config()).sent
        assert options == {"ge.exec.atomicCleanPolicy": "1", "ge.new": "x"}
        assert engine == {"ge.opSelectImplmode": "high_precision"}
        converter.g_cached_dump_root = "that of other settings"
        for _ in range(2):
            assert converter._get_ge_dump_options({"ge.exec.dumpMode": "all"}) == dumps | {"ge.exec.dumpMode": "all"}
            assert converter.g_cached_dump_root is None
        converter.g_cached_dump_root = "its own"
        converter._get_ge_dump_options({})
        assert converter.g_cached_dump_root == "its own", "graphs under the same settings share a list"
        assert (tmp_path / place).is_dir()
    GRAPH.set(None)
    assert converter._get_ge_dump_options({}) == {}


def test_graphs_that_a_program_dumps_itself_keep_their_list(graph: type[Graph], tmp_path: Path) -> None:
    GRAPH.set(None)
    graph(config())
    converter: Any = sys.modules[torchair.CONVERTER]
    own = converter.g_cached_dump_root = {"dump": {"dump_path": "own"}}
    own_options = {"ge.exec.dumpPath": "own"}
    assert converter._get_ge_dump_options(dict(own_options)) == own_options
    assert converter.g_cached_dump_root is own
    for place in ("first", "second"):
        GRAPH.set({"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path / place)})
        converter._get_ge_dump_options({})
        assert converter.g_cached_dump_root is None
        converter.g_cached_dump_root = "that of the context"
    GRAPH.set(None)
    assert converter._get_ge_dump_options(dict(own_options)) == own_options
    assert converter.g_cached_dump_root is own


def test_a_graph_that_is_tuned_has_a_configuration_of_its_own(graph: type[Graph]) -> None:
    TUNER.set({"mode": "2", "path": "/kept", "file": ""})
    given = config()
    made = graph(given).config.aoe_config
    assert (made.aoe_mode, made.work_path, made.aoe_config_file) == ("2", "/kept", None)
    assert given.aoe_config.aoe_mode.value is None
    TUNER.set(None)
    assert graph(given).config is given


def test_paths_lead_where_they_did_when_they_were_set(
    graph: type[Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    ours = {"ge.op_compiler_cache_dir": "kernels", "ge.new": "kernels"}
    GRAPH.set(ours)
    TUNER.set({"mode": "2", "path": "./", "file": "aoe.json"})
    ENGINE.set({"ge.fusionSwitchFile": "a.json"})
    monkeypatch.chdir(second)
    made = graph(config())
    assert made.sent[0]["ge.op_compiler_cache_dir"] == str(first / "kernels")
    assert made.sent[0]["ge.new"] == "kernels", "what is no path stays as it is"
    assert made.sent[1]["ge.fusionSwitchFile"] == str(first / "a.json")
    assert (made.config.aoe_config.work_path, made.config.aoe_config.aoe_config_file) == (str(first), str(first / "aoe.json"))
    assert GRAPH.is_satisfied(ours), "a scope inside writes it no second time"
    GRAPH.set(ours | {"ge.new": "x"})
    assert graph(config()).sent[0]["ge.op_compiler_cache_dir"] == str(first / "kernels"), "nor with more beside it"
    GRAPH.set(ours)
    assert ENGINE.is_satisfied({"ge.fusionSwitchFile": "a.json"})
    found = GRAPH.take()
    GRAPH.set({"ge.op_compiler_cache_dir": "others"})
    assert graph(config()).sent[0]["ge.op_compiler_cache_dir"] == str(second / "others")
    GRAPH.put_back(found)
    assert graph(config()).sent[0]["ge.op_compiler_cache_dir"] == str(first / "kernels")
    assert GRAPH.is_satisfied(ours)
