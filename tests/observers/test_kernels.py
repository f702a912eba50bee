"""op_debug_config, debug_dir: what is kept of generated kernels, and how they are built."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._logging._internal import trace_log

import msctx
from msctx import MsctxWarning
from msctx.observers import kernels
from msctx.options.observation import Kernels

GENERATED = """
import torch
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*'], r'''void kernel() {}''')
triton_poi_1 = async_compile.triton('triton_poi_1', '''def kernel(): ...''', device_str='cuda')
async_compile.wait(globals())
"""
TRACES = {
    "cpp_fused_add_0:1": ['  File "/a b.py", line 3, in f\n    x + 1\n    ^\n  File "c.py", line 9, in g\n    y\n'],
    "mm:2": [],
}


@pytest.fixture(autouse=True)
def _nobody_listens_afterwards(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ASCEND_WORK_PATH", raising=False)
    before = [*trace_log.handlers]
    yield
    assert [h for h in trace_log.handlers if h not in before] == []
    assert kernels.read() is None


def config(folder: Path, *words: str) -> str:
    path = folder / "op_debug.cfg"
    path.write_text(f"op_debug_config={','.join(words)}\n")
    return str(path)


def report(metadata: dict[str, Any], payload: str) -> None:
    trace_log.handle(logging.makeLogRecord({"levelno": logging.DEBUG, "metadata": metadata, "payload": payload}))


def kept(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("kernel_meta/*")}


def test_sources_and_their_places_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_command", lambda: "g++ -g")
    kernels.write(Kernels(str(tmp_path), locations=True))
    for _ in range(2):  # the same again: the same files
        report({"inductor_output_code": {}}, GENERATED)
        report({"artifact": {"name": "inductor_provenance_tracking_kernel_stack_traces"}}, json.dumps(TRACES))
    kernels.load(None)
    report({"inductor_output_code": {}}, "x = 1")
    found = kept(tmp_path)
    assert sorted(re.sub("_[0-9a-f]{12}", "", name) for name in found) == [
        "cpp_fused_add_0.cpp",
        "cpp_fused_add_0.json",
        "cpp_fused_add_0_loc.json",
        "graph.py",
        "triton_poi_1.json",
        "triton_poi_1.py",
    ]
    (cpp,) = (name for name in found if name.endswith(".cpp"))
    assert found[cpp] == "void kernel() {}"
    described = json.loads(found[cpp.replace(".cpp", ".json")])
    assert (described["kernel"], described["command"]) == ("cpp_fused_add_0", "g++ -g")
    assert found[described["graph"]] == GENERATED
    (places,) = json.loads(found[cpp.replace(".cpp", "_loc.json")])
    assert places["lines"] == [
        {"file": "/a b.py", "line": 3, "function": "f", "code": "x + 1"},
        {"file": "c.py", "line": 9, "function": "g", "code": "y"},
    ]


def test_what_is_not_python_is_kept_whole(tmp_path: Path) -> None:
    kernels.write(Kernels(str(tmp_path)))
    report({"inductor_output_code": {}}, "#include <vector>")
    report({"inductor_output_code": {}, "else": 1}, "")
    kernels.load(None)
    assert "#include <vector>" in kept(tmp_path).values()


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "kernel_meta").write_text("in the way")
    kernels.write(Kernels(str(tmp_path)))
    with pytest.warns(MsctxWarning, match="op_debug_config.*kernel_meta"):
        report({"inductor_output_code": {}}, "x = 1")
    report({"inductor_output_code": {}}, "x = 2")
    kernels.load(None)
    assert (tmp_path / "kernel_meta").read_text() == "in the way"


def test_the_option_wins_over_the_variable_and_that_over_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, variable, path in (("", "", ""), ("work", "work", ""), ("asked", "work", "asked")):
        monkeypatch.setenv("ASCEND_WORK_PATH", variable)
        kernels.write(Kernels(path))
        report({"inductor_output_code": {}}, "x = 1")
        kernels.load(None)
        assert [*(tmp_path / place / "kernel_meta").iterdir()]


def test_a_folder_stays_where_it_is_under_other_settings_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its path is the same text: the program has changed its directory meanwhile."""
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    kernels.write(Kernels("kept"))
    monkeypatch.chdir(tmp_path / "second")
    kernels.write(Kernels("kept", locations=True))
    report({"inductor_output_code": {}}, "x = 1")
    assert "x = 1" in kept(tmp_path / "first" / "kept").values()
    kernels.load(None)
    kernels.write(Kernels("kept"))
    report({"inductor_output_code": {}}, "x = 2")
    kernels.load(None)
    assert [*kept(tmp_path / "second" / "kept").values()] == ["x = 2"]


def test_the_scope_around_goes_on_after_the_one_inside(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    path = config(tmp_path, "dump_cce")
    with msctx.context(op_debug_config=path, debug_dir=str(outer)):
        with msctx.context(debug_dir=str(inner)):
            report({"inductor_output_code": {}}, "x = 1")
        with msctx.context(op_debug_config=config(tmp_path, "ccec_g")):
            report({"inductor_output_code": {}}, "x = 2")
        report({"inductor_output_code": {}}, "x = 3")
    assert [*kept(inner).values()] == ["x = 1"]
    assert [*kept(outer).values()] == ["x = 3"]


@pytest.mark.full
def test_kernels_are_built_as_asked_inside_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from torch._dynamo.utils import counters
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
    found = kept(tmp_path)
    (described,) = (
        json.loads(text) for name, text in found.items() if name.endswith(".json") and not name.endswith("_loc.json")
    )
    assert " -O0 " in described["command"]
    (places,) = (json.loads(text) for name, text in found.items() if name.endswith("_loc.json"))
    assert {line["file"] for place in places for line in place["lines"]} == {__file__}


@pytest.mark.full
def test_an_index_out_of_bounds_is_an_error_also_where_the_program_has_it_unchecked(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from torch._inductor import config as inductor

    request.addfinalizer(torch._dynamo.reset)
    f: Callable[..., torch.Tensor] = torch.compile(lambda x, i: x[i] + 1, options={"assert_indirect_indexing": False})
    with (
        msctx.context(op_debug_config=config(tmp_path, "oom")),
        pytest.raises((RuntimeError, IndexError), match="index out of bounds"),
    ):
        f(torch.ones(4), torch.tensor([7]))
    assert inductor.assert_indirect_indexing is True
    assert inductor.debug_index_asserts is False
