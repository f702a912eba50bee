"""export_compile_stat: when fusion_result.json is written, where, and what is in it."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import msctx
from msctx import MsctxWarning
from msctx.observers import compile_trace
from msctx.observers.compile_trace import LOGGER

RESULT = "fusion_result.json"


@pytest.fixture(autouse=True)
def _counted_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ASCEND_WORK_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    kept = {name: counters[name].copy() for name in ("inductor", "inductor_pattern_matcher_per_pattern")}
    yield
    counters.update(kept)
    assert not [one for one in LOGGER.handlers if type(one).__module__ == compile_trace.__name__], (
        "pytest, torch and jit add theirs"
    )
    assert compile_trace.FUSIONS_SLOT.read() is None


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


def test_an_inner_context_counts_apart(tmp_path: Path) -> None:
    with msctx.context(export_compile_stat=1):
        compiles(b2b_gemm=1)
        with msctx.context(export_compile_stat=0):
            compiles(fuse_attention=1)
        compiles(b2b_gemm=2)
    assert graphs(tmp_path / RESULT) == [{"b2b_gemm": times(1)}, {"b2b_gemm": times(2)}]


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
