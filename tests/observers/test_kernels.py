"""op_debug_config, debug_dir: what is kept of generated kernels, and how they are built."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
from msctx.observers import compile_trace
from msctx.observers.compile_trace import LOGGER
from msctx.options.policies import Kernels


@pytest.fixture(autouse=True)
def _nobody_listens_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ASCEND_WORK_PATH", raising=False)
    before = [*LOGGER.handlers]
    yield
    assert [h for h in LOGGER.handlers if h not in before] == []
    assert compile_trace.KERNELS_SLOT.read() is None


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
    (traces,) = (json.loads(text) for name, text in kept(tmp_path).items() if name.endswith("_loc.json"))
    assert all(__file__ in trace for found in traces.values() for trace in found)
