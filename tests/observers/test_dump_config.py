"""dump_config: MindSpore's file for dumps, and set_dump, which it requests."""

import csv
import hashlib
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dumped_programs import kinds, model
from torch import nn

import msctx
from msctx.errors import MsctxWarning


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


def test_kernels_by_types_of_mindspore_and_cann_and_statistics_that_are_mindspores(tmp_path: Path) -> None:
    with msctx.context(dump_config=of_file(tmp_path, dump_mode=1, net_name="Net", kernels=["Conv2D", "MatMul"])):
        torch.nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2)).relu()
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert kinds(tmp_path / "dumps" / "rank_0" / "Net" / "0") == {"convolution", "mm"}
    for number, given in enumerate(({}, {"statistic_category": []})):  # where its file names none
        with msctx.context(dump_config=of_file(tmp_path / str(number), saved_data="statistic", **given)):
            torch.ones(2).exp()
        (found,) = (tmp_path / str(number)).rglob("statistic.csv")
        assert next(csv.reader(found.open()))[10:] == ["Max Value", "Min Value", "L2Norm Value", ""]


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
def test_md5_is_that_of_the_values_in_the_file(x: torch.Tensor, data: str, tmp_path: Path) -> None:
    """What is computed for it is no operator of the program. The file has a dtype that NumPy has."""
    file = of_file(tmp_path, saved_data=data, statistic_category=["md5", "max"], input_output=2)
    with msctx.context(dump_config=file):
        x.clone()
        msctx.step()
    (found,) = tmp_path.rglob("statistic.csv")
    head, line = csv.reader(found.open())
    assert head[10:] == ["MD5", "Max Value", ""]
    assert (line[7], line[8]) == (str(x.nbytes), str(x.dtype).removeprefix("torch."))
    kept = [np.load(path) for path in tmp_path.rglob("*.npy")]
    values = x.numpy(force=True) if x.dtype not in OTHER else x.to(OTHER[x.dtype]).numpy()
    assert line[10] == hashlib.md5(values.tobytes()).hexdigest()
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


def test_where_nothing_is_marked_a_warning_tells_so_and_what_cannot_be_marked_is_an_error(tmp_path: Path) -> None:
    told = r"dump_config: no module that msctx.set_dump\(module\) marks ran in a model passed to ctx.watch"
    with pytest.warns(MsctxWarning, match=told):
        assert marked(tmp_path, Two()) == set()
    for target, enabled in ((torch.relu, True), ("first", True), (nn.ReLU(), 1)):
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
    with pytest.raises(msctx.StrictError, match="kernels applies only"), msctx.context(strict=True, dump_config=file):
        pass
    with pytest.warns(MsctxWarning, match="kernels applies only"), msctx.context(dump_config=file):
        pass
    (row,) = msctx.explain({"dump_config": of_file(tmp_path, op_debug_mode=3, support_device=[3], file_format="bin")}).rows
    assert row.idle
    assert "ignored: support_device, file_format" in row.reason


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


def test_the_options_of_the_session_win_over_mindspores_file(tmp_path: Path) -> None:
    options = {"dump_config": of_file(tmp_path), "session": {"enable_dump": True, "dump_path": str(tmp_path / "session")}}
    with pytest.warns(MsctxWarning, match="dump_config"), msctx.context(**options):
        torch.ones(1) + 1
    assert (tmp_path / "session").exists()
    assert not (tmp_path / "dumps").exists()
    plan = msctx.explain({"dump_config": of_file(tmp_path, op_debug_mode=4), "exception_dump": "1"})
    assert [row.winner for row in plan.rows] == ["exception_dump", ""]
