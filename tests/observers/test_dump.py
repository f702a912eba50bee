"""session.enable_dump: which operators and steps are written, in the layouts of both tools; and bad days."""

from __future__ import annotations

import csv
import gc
import hashlib
import json
import math
import re
import shutil
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import msctx
from msctx.errors import MsctxWarning, OptionError
from msctx.observers import collector, dump_layouts
from msctx.observers.dump import DumpReader


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def dumped(path: Path, net: nn.Module, steps: int = 1, dump_format: str = "mindspore", **options: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session = {"enable_dump": True, "dump_path": str(path), **options}
    with msctx.context(session=session, dump_format=dump_format).watch(net):
        for _ in range(steps):
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()


def kinds(path: Path) -> set[str]:
    return {one.name.partition(".")[0] for one in path.rglob("*.npy")}


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


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_sides(mode: str, tmp_path: Path) -> None:
    dumped(tmp_path, model(), dump_mode=mode)
    found = {path.name.split(".")[5] for path in tmp_path.rglob("*.npy")}
    assert found == ({"input", "output"} if mode == "all" else {mode})


def test_statistics_in_mindspores_layout(tmp_path: Path) -> None:
    dumped(tmp_path, model(), dump_data="stats", dump_mode="all")
    lines = [*csv.reader((tmp_path / "rank_0" / "Net" / "0" / "0" / "statistic.csv").open())]
    head, rows = lines[0], lines[1:]
    assert head[:10] == [
        "Op Type",
        "Op Name",
        "Task ID",
        "Stream ID",
        "Timestamp",
        "IO",
        "Slot",
        "Data Size",
        "Data Type",
        "Shape",
    ]
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


def test_msprobes_layout_has_the_lines_that_called_each_operator(tmp_path: Path) -> None:
    dumped(tmp_path, Net(), dump_format="msprobe", dump_data="stats")
    stacks = json.loads((tmp_path / "step0" / "rank0" / "stack.json").read_text())
    assert [*stacks] == [str(n) for n in range(len(stacks))], "msProbe's readers look for the first"
    (lines,) = (text for names, text in stacks.values() if "Aten.addmm.1.forward" in names)
    (same,) = (text for names, text in stacks.values() if "Aten.mm.0.backward" in names)
    assert same == lines
    code = Net.forward.__code__
    call = f"File {__file__}, line {code.co_firstlineno + 1}, in forward, \n return self.twice(self.twice(self.blocks[0](x)))"
    assert call in lines
    assert any(line.startswith(f"File {__file__}, line {dumped.__code__.co_firstlineno + 5}, in dumped, ") for line in lines)
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


def test_steps(tmp_path: Path) -> None:
    dumped(tmp_path, model(), steps=8, dump_step="0|2-3|6")
    assert {path.name for path in (tmp_path / "rank_0" / "Net" / "0").iterdir()} == {"0", "2", "3", "6"}


def test_a_context_that_is_entered_in_each_step_counts_on(tmp_path: Path) -> None:
    net = model()
    for _ in range(4):
        dumped(tmp_path, net, dump_step="1|3")
    assert {path.name for path in (tmp_path / "rank_0" / "Net" / "0").iterdir()} == {"1", "3"}


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
    ],
)
def test_layers(layers: str, expected: set[str], tmp_path: Path) -> None:
    dumped(tmp_path, model(), dump_layer=layers)
    assert kinds(tmp_path) == expected


class Normed(nn.Module):
    """One of its modules has the name of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.block = nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.block(x))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("norm", {"addmm", "mm", "sum"}),
        ("block/0", {"native_layer_norm", "native_layer_norm_backward"}),
        ("aten::native_layer_norm", {"native_layer_norm"}),
        ("layer_norm", {"native_layer_norm", "native_layer_norm_backward"}),
    ],
)
def test_a_name_of_a_module_is_none_of_types(layers: str, expected: set[str], tmp_path: Path) -> None:
    dumped(tmp_path, Normed(), dump_layer=layers)
    assert kinds(tmp_path) - {"add"} == expected


class Outer(nn.Module):
    """What it calls itself is no module's."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Normed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x).exp()


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("Outer", {"addmm", "native_layer_norm", "exp"}),
        ("Outer (root)", {"addmm", "native_layer_norm", "exp"}),
        (["Outer (root)", "cos"], {"addmm", "native_layer_norm", "exp", "cos"}),
        ("Outer/exp", {"exp"}),
        ("Outer (root)/exp cos", {"exp", "cos"}),
        ("name-regex(^Outer/)", {"exp"}),
    ],
)
def test_a_model_itself_has_the_name_of_its_class(layers: Any, expected: set[str], tmp_path: Path) -> None:
    """It alone, with all that is in it, not another model with the same paths."""
    net, other = Outer(), nn.ModuleDict({"block": Normed()})
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path), "dump_layer": layers}).watch(net) as ctx:
        ctx.watch(other)
        net(torch.ones(1, 4)).cos()
        other["block"](torch.ones(1, 4)).sin()
    assert kinds(tmp_path) == expected
    assert sum(path.name.startswith("addmm") for path in tmp_path.rglob("*.npy")) == ("addmm" in expected)


def test_a_module_wins_over_a_model_of_its_name(tmp_path: Path) -> None:
    net = nn.Sequential()
    net.add_module("Sequential", nn.ReLU())
    net.add_module("other", nn.Tanh())
    for layers, expected in (("Sequential", {"relu"}), ("Sequential (root)", {"relu", "tanh"})):
        options = {"enable_dump": True, "dump_path": str(tmp_path / layers), "dump_layer": layers}
        with msctx.context(session=options).watch(net):
            net(torch.ones(1, 4))
        assert kinds(tmp_path / layers) == expected


def test_a_name_that_is_nearly_that_of_a_model_is_reported_with_it(tmp_path: Path) -> None:
    with pytest.warns(MsctxWarning, match=r"no operator or module is called 'Outr'; did you mean Outer\?"):
        dumped(tmp_path, Outer(), dump_layer="Outr")


def test_what_msprobes_layout_computes_itself_is_not_dumped(tmp_path: Path) -> None:
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path)}, dump_format="msprobe"):
        for _ in range(2):
            torch.ones(2, dtype=torch.bfloat16)
            msctx.step()
    found = [[*json.loads(path.read_text())["data"]] for path in tmp_path.rglob("dump.json")]
    assert found == [["Aten.ones.0.forward"]] * 2


def test_a_layer_that_nothing_is_called_is_reported_with_near_names(tmp_path: Path) -> None:
    with pytest.warns(MsctxWarning, match="dump_layer: no operator or module is called 'rellu'; did you mean relu\\?"):
        dumped(tmp_path, model(), dump_layer="rellu")


def test_a_module_that_does_not_run_is_reported_as_such(tmp_path: Path) -> None:
    net = nn.ModuleDict({"body": nn.ReLU(), "head": nn.Tanh()})
    options = {"enable_dump": True, "dump_path": str(tmp_path), "dump_layer": "head"}
    with pytest.warns(MsctxWarning, match="dump_layer: module 'head' has not run"), msctx.context(session=options).watch(net):
        net["body"](torch.ones(1))


def test_an_inner_scope_switches_it_off_and_on(tmp_path: Path) -> None:
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path)}):
        torch.ones(1) + 1
        with msctx.context(session={"enable_dump": False}):
            torch.ones(1).exp()
        torch.ones(1) * 2
    assert kinds(tmp_path) == {"ones", "add", "mul"}


def test_other_dtypes(tmp_path: Path) -> None:
    tensors = [torch.ones(2, 2).to(d) for d in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.complex64)]
    tensors += [torch.tensor(2.0), torch.ones(0, 3), torch.ones(4, 4).T[::2]]
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path), "dump_mode": "input"}):
        for tensor in tensors:
            tensor.clone()
    files = sorted(tmp_path.rglob("clone.*.npy"), key=lambda path: int(path.name.split("-op")[1].split(".")[0]))
    for tensor, file in zip(tensors, files, strict=True):
        found = np.load(file)
        assert found.shape == tensor.shape
        assert np.array_equal(found, (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy())


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    """It comes back, and the training goes on."""
    place = tmp_path / "dumps"
    with msctx.context(session={"enable_dump": True, "dump_path": str(place)}):
        torch.ones(1) + 1
        shutil.rmtree(place)
        result = torch.ones(1) * 2
    assert float(result) == 2
    assert "mul" in kinds(place)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.warns(MsctxWarning, match=r"session.enable_dump: .*file \(Not a directory\).*the program goes on") as found:
        dumped(tmp_path / "file", model())
    assert len(found) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_both_kinds_at_once_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="enable_dump"):
        msctx.context(session={"enable_dump": True, "enable_dump_debug": True, "dump_path": str(tmp_path)}).__enter__()
    (row,) = msctx.explain({"session.enable_dump": True}).rows
    assert (row.status, row.assignments) == ("refused", {})
    assert "dump_path" in row.reason


def test_in_graph_mode_the_step_that_compiles_is_as_the_others(tmp_path: Path) -> None:
    """What the compiler runs and traces has no names, and takes none from others."""
    import torch._dynamo

    torch._dynamo.reset()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats"}
    with msctx.context(mode="GRAPH_MODE", session=session).watch(net):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 4)).exp().sum().backward()
            optimizer.step()
    found = []
    for step in range(3):
        lines = [*csv.reader((tmp_path / "rank_0" / "Net" / "0" / str(step) / "statistic.csv").open())][1:]
        names = [line[1].rpartition("-op") for line in lines]
        found.append([(name, int(number) - int(names[0][2])) for name, _, number in names])
    assert found[0] == found[1] == found[2]
    assert any("exp" in str(name) for name in found[0])
    torch._dynamo.reset()


def of_file(path: Path, /, **common: Any) -> str:
    path.mkdir(exist_ok=True)
    given = {"common_dump_settings": {"path": str(path / "dumps")} | common, "e2e_dump_settings": {"enable": True}}
    (path / "dump.json").write_text(json.dumps(given))
    return str(path / "dump.json")


def test_mindspores_file(tmp_path: Path) -> None:
    file = of_file(
        tmp_path,
        dump_mode=1,
        net_name="Mine",
        iteration="1|3-4",
        saved_data="full",
        input_output=2,
        kernels=["relu"],
        statistic_category=["max", "l2norm"],
        initial_iteration=1,
    )
    net = model()
    with msctx.context(dump_config=file).watch(net):
        for _ in range(3):
            net(torch.ones(1, 4))
            msctx.step()
    place = tmp_path / "dumps" / "rank_0" / "Mine" / "0"
    assert {path.name for path in place.iterdir()} == {"1", "3"}
    assert kinds(place) == {"relu"}
    lines = [*csv.reader((place / "1" / "statistic.csv").open())]
    assert lines[0][10:] == ["Max Value", "L2Norm Value", ""]
    assert len(lines) == 2


def test_arguments_of_operators_by_mindspores_file(tmp_path: Path) -> None:
    file = Path(of_file(tmp_path, saved_data="statistic"))
    file.write_text(file.read_text().replace('"enable": true', '"enable": true, "save_kernel_args": true'))
    with msctx.context(dump_config=str(file)):
        torch.cat([torch.ones(2, 3), torch.ones(2, 1)], 1).sum(-1, dtype=torch.float64)
        torch.full((2,), math.inf)
    found = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in tmp_path.rglob("*-op*.json")}
    assert found["cat"] == {"dim": "1"}
    assert {name: found["sum"][name] for name in ("dim", "keepdim")} == {"dim": "[-1]", "keepdim": "False"}
    assert (found["full"]["size"], found["full"]["fill_value"], found["full"]["layout"]) == ("[2]", "inf", "None")


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.5, -0.0]),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(2.0, dtype=torch.float16),
        torch.tensor([0x7FC1, 0x3F80, 0x8000], dtype=torch.uint16).view(torch.bfloat16),
        torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn),
        torch.tensor([0x7F, 0xFE, 0xFC, 0x3C], dtype=torch.uint8).view(torch.float8_e5m2),
        torch.tensor([1 + 2j, 3 - 1j]).to(torch.complex32),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.empty(0),
    ],
    ids=lambda x: str(x.dtype),
)
@pytest.mark.parametrize("data", ["statistic", "full"])
def test_md5_is_that_of_the_bytes_of_a_tensor(x: torch.Tensor, data: str, tmp_path: Path) -> None:
    """What is computed for it is no operator of the program. The files beside it have a dtype that NumPy has."""
    file = of_file(tmp_path, saved_data=data, statistic_category=["md5", "max"], input_output=2)
    with msctx.context(dump_config=file):
        x.clone()
        msctx.step()
    (found,) = tmp_path.rglob("statistic.csv")
    head, line = csv.reader(found.open())
    assert head[10:] == ["MD5", "Max Value", ""]
    assert (line[7], line[8]) == (str(x.nbytes), str(x.dtype).removeprefix("torch."))
    assert line[10] == hashlib.md5(bits(x)).hexdigest()
    kept = [np.load(path) for path in tmp_path.rglob("*.npy")]
    values = x.numpy(force=True) if x.dtype not in OTHER else x.to(OTHER[x.dtype]).numpy()
    assert len(kept) == (data == "full")
    assert all(np.array_equal(one, values, equal_nan=x.dtype.is_floating_point) for one in kept)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".npy"}
    assert names == {"dump.json", "statistic.csv"}


OTHER = {
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.complex32: torch.complex64,
}
"""Dtypes that NumPy does not have → those of the files."""


def bits(x: torch.Tensor) -> bytes:
    return x.resolve_conj().contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("data", ["statistic", "full"])
def test_md5_in_msprobes_layout_is_its_own_sum(data: str, tmp_path: Path) -> None:
    """msProbe calls a CRC-32 so."""
    x = torch.tensor([1.0, math.nan]).to(torch.float8_e5m2)
    with msctx.context(dump_config=of_file(tmp_path, saved_data=data, statistic_category=["md5"]), dump_format="msprobe"):
        x.clone()
    place = tmp_path / "dumps" / "step0" / "rank0"
    (found,) = json.loads((place / "dump.json").read_text())["data"]["Aten.clone.0.forward"]["output"]
    assert found["md5"] == f"{zlib.crc32(bits(x)):08x}"
    assert "Max" in found
    loaded = [torch.load(path) for path in place.rglob("*.pt")]
    assert all(torch.equal(one, x.float()) or one.isnan().any() for one in loaded)
    assert len(loaded) == 2 * (data == "full")
    assert not [*tmp_path.rglob("*.npy")]


@pytest.mark.parametrize("given", [{}, {"statistic_category": []}])
def test_statistics_are_mindspores_where_its_file_names_none(given: dict[str, Any], tmp_path: Path) -> None:
    with msctx.context(dump_config=of_file(tmp_path, saved_data="statistic", **given)):
        torch.ones(2).exp()
    (found,) = tmp_path.rglob("statistic.csv")
    assert next(csv.reader(found.open()))[10:] == ["Max Value", "Min Value", "L2Norm Value", ""]


def test_where_mindspores_file_names_no_folder_the_environment_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_DIAGNOSTIC_DATA_PATH", raising=False)
    with pytest.raises(OptionError, match=r"(?s)path: the text is empty.*\$MS_DIAGNOSTIC_DATA_PATH is set"):
        msctx.context(dump_config=of_file(tmp_path, path=""))
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", str(tmp_path / "diagnostics"))
    with msctx.context(dump_config=of_file(tmp_path, path="")):
        torch.ones(2).exp()
    assert "exp" in kinds(tmp_path / "diagnostics" / "debug_dump" / "rank_0")


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "a\\b", "/tmp/x"])
def test_the_folder_of_a_net_stays_inside(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)net_name: .* is no name of a folder.*allowed: the name of a folder, without /"):
        msctx.context(dump_config=of_file(tmp_path, net_name=name))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).exp()


def marked(tmp_path: Path, net: nn.Module) -> set[str]:
    """What is dumped of marked modules."""
    with msctx.context(dump_config=of_file(tmp_path, dump_mode=2, saved_data="statistic")).watch(net):
        net(torch.ones(1, 4)).sum().backward()
    lines = [line for file in tmp_path.rglob("statistic.csv") for line in [*csv.reader(file.open())][1:]]
    return {re.sub(r"-op\d+$", "", line[1].removeprefix("Default_")) for line in lines}


FIRST = {"first-Sequential_0-Linear_addmm", "first-Sequential_0-Linear_mm", "first-Sequential_0-Linear_sum"}
TANH = {"first-Sequential_1-Tanh_tanh", "first-Sequential_1-Tanh_tanh_backward"}


def test_modules_that_are_marked_are_dumped_forward_and_backward(tmp_path: Path) -> None:
    net = Two()
    msctx.set_dump(net.first)
    assert marked(tmp_path / "a", net) == FIRST | TANH
    msctx.mindspore.set_dump(net.first[0], False)
    assert marked(tmp_path / "b", net) == TANH
    msctx.set_dump(net)
    msctx.set_dump(net.first, enabled=False)
    found = marked(tmp_path / "c", net)
    assert {"second-Linear_addmm", "exp", "mul"} <= found
    assert not found & (FIRST | TANH)
    assert "sum" not in found, "the program's own"


def test_a_model_with_the_same_paths_is_not_marked(tmp_path: Path) -> None:
    """In no pass, and not when it is watched in the place of another one."""
    net, other = Two(), Two()
    msctx.set_dump(net.first[0])
    with msctx.context(dump_config=of_file(tmp_path, dump_mode=2, input_output=2)).watch(net) as ctx:
        ctx.watch(other)
        for one in (other, net):
            one(torch.full((1, 4), 2.0)).sum().backward()
        net.second(torch.ones(1, 4)).cos()
    assert sorted(path.name.partition(".")[0] for path in tmp_path.rglob("*.npy")) == ["addmm", "mm", "sum"]
    (found,) = tmp_path.rglob("addmm.*.npy")
    assert np.array_equal(np.load(found), net.first[0](torch.full((1, 4), 2.0)).detach().numpy())


def test_a_model_in_the_place_of_one_that_is_gone_is_not_marked(tmp_path: Path) -> None:
    net = Two()
    msctx.set_dump(net)
    assert marked(tmp_path / "a", net)
    del net
    gc.collect()
    with pytest.warns(MsctxWarning, match="none ran"):
        assert marked(tmp_path / "b", Two()) == set()


def test_where_nothing_is_marked_a_warning_tells_so(tmp_path: Path) -> None:
    with pytest.warns(
        MsctxWarning, match=r"dump_mode 2 dumps modules marked by msctx.set_dump\(module\) in models passed to ctx.watch"
    ):
        assert marked(tmp_path, Two()) == set()


@pytest.mark.parametrize(("target", "enabled"), [(torch.relu, True), ("first", True), (nn.ReLU(), 1)])
def test_what_cannot_be_marked(target: Any, enabled: Any) -> None:
    with pytest.raises(ValueError, match="set_dump"):
        msctx.set_dump(target, enabled)


def test_what_has_no_effect_in_mindspores_file_is_in_the_plan(tmp_path: Path) -> None:
    file = of_file(tmp_path, kernels=["relu"], statistic_category=["md5"], net_name="Net")
    row = next(
        row for row in msctx.explain({"dump_config": file, "dump_format": "msprobe"}).rows if row.option == "dump_config"
    )
    assert "kernels applies only with dump_mode 1" in row.reason
    assert "msProbe's layout has no place for net_name" in row.reason
    assert "of statistic_category it takes only md5" in row.reason
    (row,) = msctx.explain({"dump_config": file}).rows
    assert "statistic_category applies only with saved_data statistic or full" in row.reason


@pytest.mark.parametrize("common", [{"op_debug_mode": 0}, {"op_debug_mode": 3}, {"op_debug_mode": 4}])
def test_the_layout_counts_where_mindspores_file_dumps(common: dict[str, Any], tmp_path: Path) -> None:
    given = {"dump_config": of_file(tmp_path, **common), "dump_format": "msprobe", "quant_dumpable": "1"}
    rows = {row.option: row for row in msctx.explain(given).rows}
    if common["op_debug_mode"] == 0:
        assert rows["dump_format"].status == rows["dump_config"].status == "approximated"
        assert rows["dump_format"].assignments == rows["dump_config"].assignments
        assert rows["dump_format"].assignments["observers.dump"].layout == "msprobe"
        assert rows["quant_dumpable"].status == "honoured"
    else:
        for name in ("dump_format", "quant_dumpable"):
            assert rows[name].status == "inert"
            assert "session.enable_dump=True or dump_config with op_debug_mode 0" in rows[name].reason


@pytest.mark.parametrize(("number", "expected"), [(0, 3), (2, 2)])
def test_how_many_overflows_have_files_by_mindspores_file(number: int, expected: int, tmp_path: Path) -> None:
    file = of_file(tmp_path, op_debug_mode=3, overflow_number=number)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with msctx.context(dump_config=file):
            for run in (torch.log, torch.reciprocal, torch.rsqrt):
                run(torch.zeros(2))
    assert len([one for one in found if "overflow in step" in str(one.message)]) == 3
    assert len([*(tmp_path / "dumps").rglob("Opdebug.*.json")]) == expected


def test_mindspores_file_for_overflow_and_for_errors(tmp_path: Path) -> None:
    with (
        pytest.warns(MsctxWarning, match="overflow in step 0: aten::log"),
        msctx.context(dump_config=of_file(tmp_path, op_debug_mode=3)),
    ):
        (-torch.ones(2)).log()
    assert [*(tmp_path / "dumps").rglob("Opdebug.*.json")]
    ctx = msctx.context(dump_config=of_file(tmp_path, op_debug_mode=4))
    with pytest.warns(MsctxWarning, match="aten::mm raised"), pytest.raises(RuntimeError), ctx:
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert [*(tmp_path / "dumps").glob("mm.*.replay.py")]


def test_a_mistake_in_mindspores_file_has_its_place(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"dump\.json:1:\d+"):
        msctx.context(dump_config=of_file(tmp_path, saved_data="tensors")).__enter__()


@pytest.mark.parametrize("iteration", ["abc", "5-3", "3-3", "1||2", "all|3", "|".join(map(str, range(101)))])
def test_steps_that_are_none_in_mindspores_file(iteration: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"dump\.json:1:\d+.*\n?.*common_dump_settings\.iteration"):
        msctx.context(dump_config=of_file(tmp_path, iteration=iteration)).__enter__()


@pytest.mark.parametrize("iteration", ["all", "0|2-3", 0, "00"])
def test_steps_in_mindspores_file(iteration: str | int, tmp_path: Path) -> None:
    with msctx.context(dump_config=of_file(tmp_path, iteration=iteration, kernels=["name-regex((exp| ))"], dump_mode=1)):
        torch.ones(1).exp()
    assert kinds(tmp_path) == {"exp"}


def test_the_options_of_the_session_win_over_mindspores_file(tmp_path: Path) -> None:
    options = {"dump_config": of_file(tmp_path), "session": {"enable_dump": True, "dump_path": str(tmp_path / "session")}}
    with pytest.warns(MsctxWarning, match="dump_config"), msctx.context(**options):
        torch.ones(1) + 1
    assert (tmp_path / "session").exists()
    assert not (tmp_path / "dumps").exists()


@pytest.mark.parametrize("name", ["session.enable_dump", "enable_dump_debug"])
def test_mindspores_file_wins_over_a_dump_that_is_off_beside_it(name: str, tmp_path: Path) -> None:
    """In any order; the inner scope wins over the one around it."""
    mode = 0 if name == "session.enable_dump" else 3
    switch = "observers.dump" if mode == 0 else "observers.overflow"
    file, off = {"dump_config": of_file(tmp_path, op_debug_mode=mode)}, {name: False}
    for asked in (file | off, off | file):
        plan = msctx.explain(asked)
        assert plan.assignments[switch] is not None
        (row,) = [row for row in plan.rows if row.option == name]
        assert (row.status, row.winner) == ("inert", "dump_config")
    for outer, inner, is_on in ((file, off, False), (off, file, True)):
        with msctx.context(**outer), msctx.context(**inner):
            assert (msctx.state()[switch] is not None) == is_on


def test_two_processes_with_one_folder_keep_their_own(tmp_path: Path, run_python: Any) -> None:
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path)}):
        for _ in range(5):
            torch.ones(2) + 1
        other = f"""
            import torch, msctx
            with msctx.context(session={{"enable_dump": True, "dump_path": {str(tmp_path)!r}}}):
                torch.ones(2) * 3
        """
        assert run_python(other).returncode == 0
    names = [path.name.partition(".")[0] for path in tmp_path.rglob("*.npy")]
    assert (names.count("add"), names.count("mul")) == (5, 1)


def test_another_observers_folder_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = {"enable_dump": True, "dump_path": "d", "enable_exception_dump": 1}
    with pytest.warns(MsctxWarning, match="aten::mm raised"), pytest.raises(RuntimeError), msctx.context(session=session):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert len([*tmp_path.glob("extra-info/mm.*.npy")]) == 2
    assert kinds(tmp_path / "d") == {"ones"}


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


def test_dumps_of_one_moment_have_folders_of_their_own(tmp_path: Path) -> None:
    for mode in ("all", "input", "output", "all"):
        dumped(tmp_path, model(), dump_format="msprobe", dump_mode=mode)
    found = [*(tmp_path / "step0").glob("rank0*/dump.json")]
    assert len(found) >= 3, "the first and the last are one and the same, and go on"


def test_two_scopes_in_one_step_are_one_dump(tmp_path: Path) -> None:
    for operator in (torch.exp, torch.neg):
        with msctx.context(
            session={"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats"}, dump_format="msprobe"
        ):
            operator(torch.ones(1))
    data = json.loads((tmp_path / "step0" / "rank0" / "dump.json").read_text())["data"]
    assert {"Aten.exp.0.forward", "Aten.neg.0.forward"} <= {*data}


def run_and_raise(x: torch.Tensor) -> None:
    for _ in range(15):
        x.exp()
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
    collector.flush()


def test_a_step_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_layouts, "MOST", 20)
    session = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats"}
    with msctx.context(session=session, dump_format="msprobe"):
        reader = collector.reader("observers.dump")
        assert isinstance(reader, DumpReader)
        layout = reader._layout
        assert isinstance(layout, dump_layouts.MsProbe)
        x, told = torch.ones(1, 3, requires_grad=True), "session.enable_dump: one step has more than 20 operators"
        with pytest.warns(MsctxWarning, match=told) as found:
            run_and_raise(x)
        assert len(found) == 1
        assert len(layout._origins._met) == 20 > len(layout._data), "also those that have raised"
        msctx.step()
        x.exp()
    data = json.loads((tmp_path / "step1" / "rank0" / "dump.json").read_text())["data"]
    assert [*data] == ["Aten.exp.0.forward"]


@pytest.mark.parametrize("layers", ["name-regex([)", "relu name-regex(a{2,1})", "name-regex(a b", "name-regex((a b) relu"])
def test_a_wrong_expression_is_an_error_where_it_stands(layers: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no regular expression"):
        msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path), "dump_layer": layers})


@pytest.mark.parametrize("layout", ["mindspore", "msprobe"])
@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_full_disk(layout: str, data: str, tmp_path: Path, run_python: Any) -> None:
    done = run_python(f"""
        import resource, torch, msctx
        net = torch.nn.Linear(100, 100)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        session = {{"enable_dump": True, "dump_path": {str(tmp_path)!r}, "dump_mode": "all", "dump_data": {data!r}}}
        torch.ones(1).sum().item()
        with msctx.context(session=session, dump_format={layout!r}):
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
            for _ in range(3):
                net(torch.ones(100, 100)).sum().backward()
                optimizer.step()
        print("goes on")
    """)
    assert done.stdout.strip() == "goes on", done.stderr
    assert done.stderr.count("File too large") == 1, done.stderr
    for table in tmp_path.rglob("statistic.csv"):
        assert table.read_text().endswith("\n"), "whole lines"
