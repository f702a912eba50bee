"""save_graphs: the files of each level, where they are, and that saving changes nothing."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_programs import Net, image
from torch._inductor import config as inductor
from torch._inductor.utils import run_and_get_code

import msctx
from msctx.errors import MsctxWarning
from msctx.observers.compile_trace import LOGGER

NUMBERED = re.compile(r"(?P<stem>\w+)_(?P<serial>\d{4})\.(?P<suffix>\w+)")
FIRST = ["00_bootstrap", "01_type_inference", "03_auto_monad", "16_validate", "16_validate"]
AOT = [FIRST[0], *FIRST[2:]]


def train(backend: str = "inductor") -> torch.Tensor:
    torch.manual_seed(0)
    result: torch.Tensor = torch.compile(Net(), backend=backend)(image())
    result.sum().backward()
    return result.detach()


def stems(folder: Path, suffix: str = "ir") -> list[str]:
    found = [m for path in folder.iterdir() if (m := NUMBERED.fullmatch(path.name)) and m["suffix"] == suffix]
    return [m["stem"] for m in sorted(found, key=lambda m: int(m["serial"]))]


def test_no_level_and_eager_code_leave_no_file(tmp_path: Path) -> None:
    with msctx.context(save_graphs=0, save_graphs_path=str(tmp_path)):
        train("aot_eager")
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        Net()(image()).sum().backward()
    assert [*tmp_path.iterdir()] == []


def test_level_1_has_the_graphs_of_dynamo_and_aotautograd(tmp_path: Path) -> None:
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        train()
    assert stems(tmp_path) == FIRST
    text = (tmp_path / "00_bootstrap_0000.ir").read_text(encoding="utf-8")
    assert text.startswith("# compile_id: 0/0, graph: dynamo_output_graph\n")
    assert "torch.conv2d(" in text
    assert "aot_backward_graph" in (tmp_path / "16_validate_0004.ir").read_text(encoding="utf-8")


def test_level_2_has_inductors_graphs_and_its_code_too(tmp_path: Path) -> None:
    with msctx.context(save_graphs=2, save_graphs_path=str(tmp_path)):
        train()
    assert stems(tmp_path) == [*FIRST, *("17_task_emit", "graph_build") * 2]
    codes = [*tmp_path.glob("output_code_*.py")]
    assert len(codes) == 2
    for code in codes:
        compile(code.read_text(encoding="utf-8"), "output_code", "exec")


def test_level_3_has_inductors_trace_folder_and_drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydot")
    monkeypatch.chdir(tmp_path)
    with msctx.context(mode="GRAPH_MODE", save_graphs=3, save_graphs_path="."):
        monkeypatch.chdir("/")  # the folder is meant from where the block began
        Net()(image()).sum().backward()
    assert stems(tmp_path, "dot") == ["00_bootstrap"]
    (drawing,) = tmp_path.glob("*.dot")
    assert "digraph" in drawing.read_text(encoding="utf-8")
    folders = [*(tmp_path / "torchinductor").iterdir()]
    assert [(folder / "ir_post_fusion.txt").exists() for folder in folders] == [True, True]


@pytest.mark.parametrize(("backend", "found"), [("eager", AOT[:1]), ("aot_eager", AOT)])
def test_other_back_ends(backend: str, found: list[str], tmp_path: Path) -> None:
    with msctx.context(save_graphs=2, save_graphs_path=str(tmp_path)):
        train(backend)
    assert stems(tmp_path) == found


@pytest.mark.full
def test_the_same_code_is_generated(tmp_path: Path) -> None:
    net = Net()

    def code() -> list[str]:
        torch._dynamo.reset()
        with inductor.patch(fx_graph_cache=False):
            _, found = run_and_get_code(lambda: torch.compile(net)(image()).sum().backward())
        return [one.partition("\n")[2] for one in found]  # the first line has a number that counts up

    plain = code()
    with msctx.context(save_graphs=3, save_graphs_path=str(tmp_path)):
        assert code() == plain
    assert len(plain) == 2


def test_nested_contexts_restore_the_handlers_of_the_trace(tmp_path: Path) -> None:
    handlers = LOGGER.handlers
    before = [*handlers]
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path / "outer")):
        outer = [*handlers]
        with msctx.context(save_graphs=0):
            train("aot_eager")
        with msctx.context(save_graphs_path=str(tmp_path / "inner")):
            train("aot_eager")
        assert {*handlers} == {*outer}
    assert handlers == before
    assert stems(tmp_path / "outer") == []
    assert stems(tmp_path / "inner") == AOT


def test_code_that_was_compiled_before_is_compiled_again(tmp_path: Path) -> None:
    compiled = torch.compile(Net(), backend="aot_eager")
    compiled(image())
    with msctx.context(save_graphs=1, save_graphs_path=str(tmp_path)):
        for _ in range(2):
            compiled(image())
    compiled(image())
    assert stems(tmp_path) == AOT


def test_a_rank_has_its_own_folder_and_existing_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "graphs" / "rank_1" / "graph_build_0011.ir"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with msctx.context(save_graphs=1, save_graphs_path="graphs"):
        monkeypatch.chdir("/")
        train("eager")
    assert mine.read_text() == "mine"
    assert (mine.parent / "00_bootstrap_0012.ir").exists()


def test_ranks_have_equal_plans_and_separate_folders_for_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"save_graphs": 3, "save_graphs_path": "~/graphs"}
    monkeypatch.setenv("HOME", str(tmp_path))
    digests = set()
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with msctx.context(**options) as ctx:
            digests |= {msctx.explain(**options).digest, ctx.plan.digest}
            assert inductor.trace.debug_dir == str(tmp_path / "graphs" / f"rank_{rank}")
    assert len(digests) == 1


def test_a_folder_that_cannot_be_made_is_reported_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options: dict[str, Any] = {"save_graphs": 1, "save_graphs_path": str(tmp_path / "file" / "graphs")}
    told = pytest.warns(MsctxWarning, match=r"save_graphs: cannot write to .*file.* \(.*\): no graph is saved")
    with told as found, msctx.context(**options):
        train("eager")
    assert len(found) == 1
    with pytest.raises(msctx.StrictError, match="cannot write to"), msctx.context(**options, strict=True):
        pass
