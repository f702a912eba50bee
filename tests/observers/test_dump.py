"""session.enable_dump: which operators and steps are written, in the layouts of both tools; and bad days."""

import csv
import gc
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dumped_programs import dumped, kinds, model
from torch import nn

import msctx
from msctx.errors import MsctxWarning, OptionError


def test_tensors_in_mindspores_layout(tmp_path: Path) -> None:
    net = model()
    before = net[0].weight.detach().clone()
    dumped(tmp_path, net, dump_mode="all")
    place = tmp_path / "rank_0" / "Net" / "0" / "0"
    first = min(place.glob("addmm.addmm-op*.input.2.DefaultFormat.npy"), key=lambda path: int(path.name.split(".")[4]))
    assert np.array_equal(np.load(first), before.T.numpy())
    kind, name, task, stream, time, side, slot, form, end = first.name.split(".")
    assert (kind, task, stream, side, slot, form, end) == ("addmm", "0", "0", "input", "2", "DefaultFormat", "npy")
    assert name.startswith("addmm-op")
    assert len(time) == 16, "microseconds"
    assert {"addmm", "relu", "sum", "mm", "threshold_backward", "add_"} <= kinds(place)
    assert not (tmp_path / ".msctx").exists()


def test_statistics_in_mindspores_layout(tmp_path: Path) -> None:
    gc.collect()  # another test's model may have modules at these paths
    dumped(tmp_path, model(), dump_data="stats", dump_mode="all")
    lines = [*csv.reader((tmp_path / "rank_0" / "Net" / "0" / "0" / "statistic.csv").open())]
    head, rows = lines[0], lines[1:]
    assert ",".join(head[:10]) == "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
    assert {len(row) for row in lines} == {len(head)}
    relu = dict(zip(head, next(row for row in rows if row[0] == "relu" and row[5] == "output"), strict=True))
    hidden = torch.relu(model()[0](torch.ones(1, 4)))
    assert relu["Op Name"].startswith("Default_1-ReLU_relu-op")
    assert relu["Shape"] == "(1,3)"
    assert (relu["Data Size"], relu["Data Type"], relu["Count"]) == ("12", "float32", "3")
    assert float(relu["Max Value"]) == pytest.approx(float(hidden.max()))
    assert float(relu["L2Norm Value"]) == pytest.approx(float(hidden.norm()))
    assert int(relu["Zero Count"]) + int(relu["Positive Zero Count"]) == 3
    assert not [*tmp_path.rglob("*.npy")]


def test_names_without_classes(tmp_path: Path) -> None:
    with msctx.context(reserve_class_name_in_scope=False):
        dumped(tmp_path, model(), dump_data="stats")
    found = [*csv.reader((tmp_path / "rank_0" / "Net" / "0" / "0" / "statistic.csv").open())]
    assert [row[1].partition("relu")[0] for row in found if row[0] == "relu"] == ["Default_1_"]


def test_msprobes_layout(tmp_path: Path) -> None:
    dumped(tmp_path, model(), steps=2, dump_format="msprobe", dump_mode="all")
    for step in (0, 1):
        place = tmp_path / f"step{step}" / "rank0"
        found = json.loads((place / "dump.json").read_text())
        assert (found["task"], found["level"], found["framework"]) == ("tensor", "L1", "pytorch")
        forward, backward = found["data"]["Aten.addmm.0.forward"], found["data"]["Aten.mm.0.backward"]
        assert {*forward} == {"input_args", "input_kwargs", "output"}
        assert {*backward} == {"input", "output"}
        weight = forward["input_args"][2]
        assert (weight["type"], weight["dtype"], weight["shape"]) == ("torch.Tensor", "torch.float32", [4, 3])
        loaded = torch.load(place / "dump_tensor_data" / weight["data_name"])
        assert weight["Max"] == pytest.approx(float(loaded.max()))
        assert weight["Norm"] == pytest.approx(float(loaded.norm()))


class Net(nn.Module):
    """Calls one of its modules twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self.twice = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(self.twice(self.blocks[0](x)))


def test_msprobes_layout_has_the_calls_of_modules_around_each_operator(tmp_path: Path) -> None:
    """And the lines that called it."""
    dumped(tmp_path, Net(), steps=2, dump_format="msprobe", dump_data="stats")
    place = tmp_path / "step1" / "rank0"
    parents = json.loads((place / "construct.json").read_text())
    assert {*json.loads((place / "dump.json").read_text())["data"]} <= {*parents}
    assert parents["Aten.relu.0.forward"] == "Module.blocks.0.1.ReLU.forward.0"
    assert parents["Module.blocks.0.1.ReLU.forward.0"] == "Module.blocks.0.Sequential.forward.0"
    assert parents["Module.blocks.0.Sequential.forward.0"] is None
    assert [parents[f"Aten.addmm.{n}.forward"] for n in (1, 2)] == [f"Module.twice.Linear.forward.{n}" for n in (0, 1)]
    backward = {name: parent for name, parent in parents.items() if name.startswith(("Aten.mm.", "Aten.sum."))}
    assert backward["Aten.mm.0.backward"] == backward["Aten.sum.0.backward"] == "Module.twice.Linear.backward.1"
    assert backward["Aten.mm.2.backward"] == backward["Aten.sum.1.backward"] == "Module.twice.Linear.backward.0"
    assert parents["Module.blocks.0.0.Linear.backward.0"] == "Module.blocks.0.Sequential.backward.0"
    assert (parents["Aten.add_.0.forward"], parents["optimizer"]) == ("optimizer", None)
    stacks = json.loads((tmp_path / "step0" / "rank0" / "stack.json").read_text())
    assert [*stacks] == [str(n) for n in range(len(stacks))], "msProbe's readers look for the first"
    (lines,) = (text for names, text in stacks.values() if "Aten.addmm.1.forward" in names)
    assert [text for names, text in stacks.values() if "Aten.mm.0.backward" in names] == [lines]
    line = f"File {__file__}, line {Net.forward.__code__.co_firstlineno + 1}, in forward, "
    assert f"{line}\n return self.twice(self.twice(self.blocks[0](x)))" in lines
    assert any(line.startswith(f"File {dumped.__code__.co_filename}, line ") for line in lines)
    assert not any("msctx/observers" in line.partition(",")[0] for line in lines), "ours are left out"


def test_msprobes_statistics_have_torchs_rules_for_what_is_not_finite(tmp_path: Path) -> None:
    session = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats", "dump_mode": "input"}
    with msctx.context(session=session, dump_format="msprobe"):
        torch.neg(torch.tensor([1.0, math.inf]))
        torch.exp(torch.tensor([1.0, math.nan]))
        torch.sin(torch.tensor([math.inf, math.inf]))
        torch.cos(torch.ones(0))
    data = json.loads((tmp_path / "step0" / "rank0" / "dump.json").read_text())["data"]
    infinite, nan = data["Aten.neg.0.forward"]["input_args"][0], data["Aten.exp.0.forward"]["input_args"][0]
    assert (infinite["Max"], infinite["Min"], infinite["Mean"], infinite["Norm"]) == (math.inf, 1.0, math.inf, math.inf)
    assert all(math.isnan(nan[key]) for key in ("Max", "Min", "Mean", "Norm"))
    only = data["Aten.sin.0.forward"]["input_args"][0]
    assert (only["Max"], only["Min"]) == (math.inf, math.inf)
    assert data["Aten.cos.0.forward"]["input_args"][0]["Max"] is None


def test_steps_which_a_context_that_is_entered_in_each_counts_on(tmp_path: Path) -> None:
    dumped(tmp_path / "one", model(), steps=8, dump_step="0|2-3|6")
    net = model()
    for _ in range(4):
        dumped(tmp_path / "each", net, dump_step="1|3")
    for name, expected in (("one", {"0", "2", "3", "6"}), ("each", {"1", "3"})):
        assert {path.name for path in (tmp_path / name / "rank_0" / "Net" / "0").iterdir()} == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("relu", {"relu"}),
        ("2", {"addmm", "mm", "sum"}),
        ("2/addmm", {"addmm"}),
        ("name-regex(^2/a.*)", {"addmm"}),
        ("threshold 1", {"relu", "threshold_backward"}),
        ("aten::relu", {"relu"}),
        ("name-regex(^(2/a| b).*)", {"addmm"}),
        ("name-regex((relu|a b)) 2/mm", {"relu", "mm"}),
        ("name-regex([)]) 2/mm name-regex( )", {"mm"}),
        ("name-regex(tial$|^2/a)", {"addmm"}),
        ("Sequential (root)", {"addmm", "mm", "relu", "sum", "threshold_backward"}),
    ],
)
def test_layers(layers: str, expected: set[str], tmp_path: Path) -> None:
    dumped(tmp_path, model(), dump_layer=layers)
    assert kinds(tmp_path) == expected


def test_a_layer_that_nothing_is_called_is_reported_with_near_names(tmp_path: Path) -> None:
    with pytest.warns(MsctxWarning, match="dump_layer: no operator or module that ran is called 'rellu'; did you mean relu\\?"):
        dumped(tmp_path, model(), dump_layer="rellu")
    with pytest.raises(msctx.StrictError, match=r"dump_layer: no .* called 'rellu'"), msctx.context(strict=True):
        dumped(tmp_path, model(), dump_layer="rellu")


def test_an_inner_scope_switches_it_off_and_on(tmp_path: Path) -> None:
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path)}):
        torch.ones(1) + 1
        with msctx.context(session={"enable_dump": False}):
            torch.ones(1).exp()
        torch.ones(1) * 2
    assert kinds(tmp_path) == {"ones", "add", "mul"}


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("layout", ["mindspore", "msprobe"])
def test_a_tensor_that_cannot_be_written_is_named_and_the_dump_goes_on(layout: str, data: str, tmp_path: Path) -> None:
    x = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    options = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": data}

    def run() -> None:
        with msctx.context(dump_format=layout, session=options):
            x.clone()
            torch.ones(3).exp()

    with pytest.warns(MsctxWarning, match="a result of aten::clone, float4_e2m1fn_x2.4., is not written .PyTorch converts"):
        run()
    assert any("exp" in (path.name if data == "tensor" else path.read_text()) for path in tmp_path.rglob("*") if path.is_file())


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.warns(MsctxWarning, match=r"session.enable_dump: .*file \(Not a directory\).*the program continues") as found:
        dumped(tmp_path / "file", model())
    assert len(found) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_relative_folder_is_that_of_the_working_directory_at_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with msctx.context(session={"enable_dump": True, "dump_path": "dumps"}):
            torch.ones(1).exp()
        assert [*(tmp_path / name / "dumps").rglob("*.npy")]


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    mine = tmp_path / "step0" / "rank0" / "dump.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / ".msctx").mkdir()
    dumped(tmp_path, model(), dump_format="msprobe")
    assert mine.read_text() == "mine"
    assert (tmp_path / ".msctx").exists()
    (other,) = (tmp_path / "step0").glob("rank0.*/dump.json")
    assert "Aten.addmm.0.forward" in json.loads(other.read_text())["data"]


@pytest.mark.parametrize("layers", ["name-regex([)", "relu name-regex(a{2,1})", "name-regex(a b", "name-regex((a b) relu"])
def test_a_wrong_expression_is_an_error_where_it_stands(layers: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no regular expression"):
        msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path), "dump_layer": layers})


@pytest.mark.parametrize("option", ["enable_dump", "enable_dump_debug"])
@pytest.mark.parametrize("overflows", [False, True])
def test_nothing_of_msctx_stays_in_a_program_whose_options_nobody_leaves(option: str, overflows: bool, tmp_path: Path) -> None:
    program = f"import msctx, torch; msctx.set_context(session={{{option!r}: True, 'dump_path': {str(tmp_path)!r}}})"
    program += "; torch.ones(2) / torch.zeros(2)" * overflows
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert overflows == bool([*tmp_path.iterdir()])
