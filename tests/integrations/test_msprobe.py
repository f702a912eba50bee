"""Dumps in msProbe's layout, read by msProbe's own tools."""

import csv
import json
import os
import sqlite3
from pathlib import Path

import pytest
import torch
from interpreter import Interpreter
from torch import nn

import msctx

pytest.importorskip("msprobe")
pytestmark = pytest.mark.full

CHANGED = "Aten.addmm.1.forward"
"""The operator with the weight that a test changes."""


def dumped(path: Path, weight: float = 1.0, data: str = "stats") -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), nn.Linear(4, 4))
    with torch.no_grad():
        net[1].weight.fill_(weight)
    session = {"enable_dump": True, "dump_path": str(path), "dump_mode": "all", "dump_data": data}
    with msctx.context(session=session, dump_format="msprobe").watch(net):
        net(torch.ones(2, 4)).sum().backward()
    return path / "step0"


@pytest.fixture(scope="module")
def _interpreter():
    """Has imported what all of its commands do, which takes longer than each."""
    interpreter = Interpreter("import torch, msprobe.msprobe, msprobe.pytorch")
    yield interpreter
    interpreter.close()


@pytest.fixture
def msprobe(_interpreter, passed):

    def run(*words: str | Path) -> None:
        command = ["msprobe", *map(str, words)]
        code = f"import sys; sys.argv = {command!r}; msprobe.msprobe.main()"
        passed(_interpreter.run(code, dict(os.environ), 300))

    return run


@pytest.mark.full
@pytest.mark.parametrize("data", ["stats", "tensor"])
def test_compare(data, tmp_path, msprobe):
    golden, same, other = (
        dumped(tmp_path / name, weight, data) for name, weight in (("golden", 1.0), ("same", 1.0), ("other", 3.0))
    )
    found = {}
    for target in (same, other):
        msprobe("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "compared" / target.parent.name)
        (table,) = (tmp_path / "compared" / target.parent.name).glob("compare_result_rank0_*.csv")
        lines = [*csv.DictReader(table.open())]
        assert {line["NPU Name"] for line in lines} == {line["Bench Name"] for line in lines}
        found[target] = [line["NPU Name"] for line in lines if line["MaxRelativeErr"] not in ("0", "0.0")]
        stack = next(line["NPU_Stack_Info"] for line in lines if line["NPU Name"].startswith(CHANGED))
        assert f"File {__file__}" in stack
    assert found[same] == []
    assert found[other][0].startswith(CHANGED)


@pytest.mark.full
def test_compare_by_sums(tmp_path, msprobe):
    """As under msProbe's ``summary_mode`` md5."""
    common = {"saved_data": "statistic", "statistic_category": ["md5"]}
    for name, weight in (("golden", 1.0), ("same", 1.0), ("other", 3.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"common_dump_settings": {"path": str(tmp_path / name), **common}}))
        with msctx.context(dump_config=tmp_path / f"{name}.json", dump_format="msprobe"):
            torch.full((2, 2), weight, dtype=torch.bfloat16).exp()
    for name, expected in (("same", {"pass"}), ("other", {"error"})):
        place = tmp_path / "compared" / name
        msprobe("compare", "-tp", tmp_path / name / "step0", "-gp", tmp_path / "golden" / "step0", "-o", place)
        (table,) = place.glob("compare_result_rank0_*.csv")
        lines = [*csv.DictReader(table.open())]
        assert {line["Result"].lower() for line in lines if "exp" in line["NPU Name"]} == expected
        assert all(len(line["NPU MD5"]) == 8 for line in lines)


@pytest.mark.full
def test_overflow_check(tmp_path, msprobe):
    msprobe("overflow_check", "-i", dumped(tmp_path / "dump", 3e38), "-o", tmp_path / "checked")
    (report,) = (tmp_path / "checked").glob("anomaly_analyze_*.json")
    (found,) = json.loads(report.read_text())["rank_0"]
    assert found["op_name"] == CHANGED
    assert found["construct_info"] == ["Module.1.Linear.forward.0", CHANGED]
    assert any(line.startswith(f"File {__file__}") for line in found["stack_info"])


@pytest.mark.full
def test_graph_visualize(tmp_path, msprobe):
    msprobe("graph_visualize", "-tp", dumped(tmp_path / "dump") / "rank0", "-o", tmp_path / "graph")
    (file,) = (tmp_path / "graph").glob("*.vis.db")
    database = sqlite3.connect(file)
    parents = dict(database.execute("select node_name, up_node from tb_nodes"))
    database.close()
    assert parents["Aten.sigmoid.0.forward"] == "Module.0.1.Sigmoid.forward.0"
    assert parents["Module.0.1.Sigmoid.forward.0"] == "Module.0.Sequential.forward.0"
    assert parents["Aten.sigmoid_backward.0.backward"] == "Module.0.1.Sigmoid.backward.0"
