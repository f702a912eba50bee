"""export_compile_stat, op_debug_config, debug_dir: what is kept of compilations, where and when; and how kernels are built."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import msctx
from msctx import MsctxWarning
from msctx.observers import compile_trace
from msctx.observers.compile_trace import LOGGER
from msctx.options.switch_values import Kernels

RESULT = "fusion_result.json"


@pytest.fixture(autouse=True)
def nobody_listens_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ASCEND_WORK_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    before = {name: counters[name].copy() for name in ("inductor", "inductor_pattern_matcher_per_pattern")}, [*LOGGER.handlers]
    yield
    counters.update(before[0])
    added = [one for one in LOGGER.handlers if one not in before[1]]  # pytest, torch and jit add theirs
    assert not [one for one in added if type(one).__module__ == compile_trace.__name__]
    assert compile_trace.FUSIONS_SLOT.read() is compile_trace.KERNELS_SLOT.read() is None


def compiles(**passes: int) -> None:
    """As inductor does: it counts, and Dynamo reports the end."""
    counters["inductor"].update(passes)
    LOGGER.handle(logging.makeLogRecord({"levelno": logging.DEBUG, "metadata": {"compilation_metrics": {}}}))


def times(count: int) -> dict[str, str]:
    return {"effect_times": str(count), "match_times": str(count)}


def graphs(path: Path) -> list[dict[str, dict[str, str]]]:
    return [graph["graph_fusion"] for graph in json.loads(path.read_text()).values()]


def test_it_is_written_at_the_end_or_at_once_or_never(tmp_path: Path) -> None:
    for mode, inside, after in ((0, False, False), (1, False, True), (2, True, True)):
        with msctx.context(export_compile_stat=mode):
            compiles(fuse_attention=2, extern_calls=1, mkldnn_nodes=4, fxgraph_cache_hit=1)
            assert (tmp_path / RESULT).exists() is inside
        assert (tmp_path / RESULT).exists() is after
        if after:
            found = json.loads((tmp_path / RESULT).read_text())
            assert found == {"session_and_graph_id_0_0": {"graph_fusion": {"fuse_attention": times(2)}}}
            (tmp_path / RESULT).unlink()
    with suppress(ZeroDivisionError), msctx.context(export_compile_stat=1):
        compiles(fuse_attention=1)
        raise ZeroDivisionError
    assert not [*tmp_path.iterdir()]


def test_patterns_by_name_and_the_rest_of_their_sum(tmp_path: Path) -> None:
    counters["inductor"]["fuse_attention"] = 5
    with msctx.context(export_compile_stat=2):
        counters["inductor_pattern_matcher_per_pattern"]["addmm"] += 2
        compiles(pattern_matcher_count=3)
        compiles()
        compiles(pattern_matcher_count=1)
    assert graphs(tmp_path / RESULT) == [{"addmm": times(2), "pattern_matcher": times(1)}, {}, {"pattern_matcher": times(1)}]


def test_no_file_is_overwritten_and_none_is_made_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / RESULT).write_text("mine")
    with msctx.context(export_compile_stat=1):
        pass
    assert [*tmp_path.iterdir()] == [tmp_path / RESULT]
    with msctx.context(export_compile_stat=2):
        compiles(fuse_attention=1)
        compiles(fuse_attention=1)
    assert (tmp_path / RESULT).read_text() == "mine"
    (other,) = (path for path in tmp_path.iterdir() if path.name != RESULT)
    assert len(graphs(other)) == 2
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path / "work"))
    with msctx.context(export_compile_stat=2):
        compiles(fuse_attention=1)
    assert (tmp_path / "work" / "FE" / str(os.getpid()) / RESULT).exists()
    monkeypatch.setenv("ASCEND_WORK_PATH", str(other))
    with msctx.context(export_compile_stat=2), pytest.warns(MsctxWarning, match="export_compile_stat"):
        compiles(fuse_attention=1)


@pytest.mark.full
def test_each_compilation_is_a_graph_also_after_a_reset_or_without_a_pass(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(torch._dynamo.reset)
    fused, alone = torch.compile(lambda x, w, b: (x @ w) + b), torch.compile(lambda x: x + 1)
    ones = torch.ones(5, 5)
    with msctx.context(export_compile_stat=2), torch._inductor.config.patch(fx_graph_cache=False):
        for _ in range(2):
            torch._dynamo.reset()
            fused(ones, ones, ones)
        alone(ones)
        found = [sum(int(one["effect_times"]) for one in graph.values()) for graph in graphs(tmp_path / RESULT)]
    assert found == [1, 1, 0]


# --- kernels ----------------------------------------------------------------------------------------------------------


def config(folder: Path, *words: str) -> str:
    path = folder / "op_debug.cfg"
    path.write_text(f"op_debug_config={','.join(words)}\n")
    return str(path)


def report(payload: str, **metadata: Any) -> None:
    found = metadata or {"inductor_output_code": {}}
    LOGGER.handle(logging.makeLogRecord({"levelno": logging.DEBUG, "metadata": found, "payload": payload}))


def kept(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("kernel_meta/*")}


def test_code_and_its_places_are_kept_once(tmp_path: Path) -> None:
    compile_trace.KERNELS_SLOT.write(Kernels(str(tmp_path), locations=True))
    for _ in range(2):
        report("x = 1")
        report('{"kernel:1": []}', artifact={"name": "inductor_provenance_tracking_kernel_stack_traces"})
        report("#include <vector>")
    compile_trace.KERNELS_SLOT.load(None)
    report("x = 2")
    found = kept(tmp_path)
    (code,) = (name for name in found if name.endswith(".py"))
    assert found.pop(code) == "x = 1"
    assert found.pop(code.replace(".py", "_loc.json")) == '{"kernel:1": []}'
    assert [*found.values()] == ["#include <vector>"]


def test_an_inner_context_has_its_own_folder_or_none(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with msctx.context(op_debug_config=config(tmp_path, "dump_cce"), debug_dir=str(outer)):
        with msctx.context(debug_dir=str(inner)):
            report("x = 1")
        with msctx.context(op_debug_config=config(tmp_path, "ccec_g")):
            report("x = 2")
        report("x = 3")
    assert [*kept(inner).values()] == ["x = 1"]
    assert [*kept(outer).values()] == ["x = 3"]


@pytest.mark.full
def test_kernels_are_built_as_requested_inside_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from torch._inductor import cpp_builder

    commands: list[str] = []
    command_of = cpp_builder.CppBuilder.get_command_line
    monkeypatch.setattr(
        cpp_builder.CppBuilder, "get_command_line", lambda self: (commands.append(command_of(self)), commands[-1])[1]
    )
    request.addfinalizer(torch._dynamo.reset)

    @torch.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + 1

    def built() -> tuple[set[str], int]:
        commands.clear()
        before = counters["stats"]["unique_graphs"]
        f(torch.ones(7))
        flags = {"-O0", "-O3", "-g"} & {flag for command in commands for flag in command.split()}
        return flags, counters["stats"]["unique_graphs"] - before

    assert built() == ({"-O3"}, 1)
    with msctx.context(op_debug_config=config(tmp_path, "ccec_O0", "dump_loc"), debug_dir=str(tmp_path)):
        assert built() == ({"-O0", "-g"}, 1)
        assert built() == (set(), 0)
    with msctx.context(op_debug_config=config(tmp_path, "ccec_g")):
        assert built() == ({"-O3", "-g"}, 1)
    assert built() == (set(), 0)
    (traces,) = (json.loads(text) for name, text in kept(tmp_path).items() if name.endswith("_loc.json"))
    assert all(__file__ in trace for found in traces.values() for trace in found)
