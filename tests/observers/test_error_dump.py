"""enable_exception_dump: what went into an operator that raised is in a file that torch.load reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import MsctxWarning

pytestmark = pytest.mark.filterwarnings("ignore:aten..")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def saved(folder: Path) -> dict[str, Any]:
    """The one file that there is."""
    (path,) = folder.rglob("*.pt")
    found: dict[str, Any] = torch.load(path)
    path.unlink()
    return found


def fails(level: int = 1) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2))
    ctx = msctx.context(session={"enable_exception_dump": level}).watch(net)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), ctx:
        net(torch.ones(1, 4))


def test_the_file_has_the_arguments_and_the_traceback(here: Path) -> None:
    with pytest.warns(MsctxWarning, match=r"aten::addmm raised; its inputs and arguments are in .*\.pt: torch.load reads them"):
        fails()
    found = saved(here)
    assert (found["operator"], found["module"], found["direction"]) == ("aten::addmm", "1", "forward")
    assert [one["argument"] for one in found["inputs"]] == ["self", "mat1", "mat2"]
    assert found["arguments"]["mat1"].shape == (1, 3)
    assert found["arguments"]["alpha"] == 1
    assert "net(torch.ones(1, 4))" in found["traceback"]
    assert "msctx/observers" not in found["traceback"]
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.ops.aten.addmm(**found["arguments"])


@pytest.mark.parametrize(
    ("level", "variables", "place"),
    [
        (1, {}, "extra-info"),
        (2, {}, "extra-info/data-dump/0"),
        (2, {"ASCEND_WORK_PATH": "work"}, "work/extra-info/data-dump/0"),
        (2, {"ASCEND_WORK_PATH": "work", "NPU_COLLECT_PATH": "collected"}, "collected/extra-info"),
    ],
)
def test_places(level: int, variables: dict[str, str], place: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(here / value))
    fails(level)
    assert [*here.glob(f"{place}/addmm.1.*.pt")]


def test_level_1_names_what_the_operator_writes_to_and_a_tensor_without_saved_values_is_described(here: Path) -> None:
    for level, outputs in ((1, ["out"]), (2, None)):
        with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": level}):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3), out=torch.full((2, 2), 7.0))
        found = saved(here)
        assert torch.equal(found["arguments"]["out"], torch.full((2, 2), 7.0))
        assert found.get("outputs") == outputs
    for given, kind in ((torch.ones(2, 3, device="meta"), "meta"), (torch.ones(2, 3).to_sparse(), "sparse")):
        with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
            torch.mm(given, torch.ones(2, 3, device=given.device))
        found = saved(here)
        assert found["arguments"][found["inputs"][0]["argument"]] is None
        assert (found["inputs"][0]["unread"], found["inputs"][0]["shape"]) == (kind, "2x3")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_values_of_every_dtype(dtype: torch.dtype, here: Path) -> None:
    given = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        torch.cat([given, torch.ones(2, 2)])
    found = saved(here)["arguments"]["tensors"][0]
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), given.view(torch.uint8))


def test_what_is_written_and_how_often(here: Path) -> None:
    """The innermost that raised; an operator that only calls others where none of these did; not without end."""
    with msctx.context(session={"enable_exception_dump": 1}):
        torch.ones(1) + 1
    fails(0)
    assert not [*here.iterdir()]
    with msctx.context(session={"enable_exception_dump": 1}):
        with pytest.raises(RuntimeError, match="subscript"):
            torch.einsum("ij,jkl->ik", torch.ones(2, 3), torch.ones(3, 2))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))
        assert {path.name.partition(".")[0] for path in here.glob("extra-info/*.pt")} == {"einsum", "mm"}
        for _ in range(50):
            with pytest.raises(RuntimeError):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert len([*here.glob("extra-info/*.pt")]) == 20


def test_where_a_check_of_the_result_raises_what_went_into_the_operator_is_saved(here: Path) -> None:
    matrix = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).neg()
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        torch.linalg.inv(matrix)
    found = saved(here)
    assert found["operator"] == "aten::linalg_inv"
    assert torch.equal(found["arguments"]["A"], matrix)


def test_an_algorithm_of_ours_that_lacks_memory_is_named(here: Path) -> None:
    x, weight = torch.randn(8, 64, 64, 64), torch.randn(64, 64, 3, 3)
    with (
        msctx.context(max_device_memory="60MB", session={"enable_exception_dump": 1}, conv_fprop_algo="fft"),
        pytest.raises(RuntimeError, match="tried to allocate"),
    ):
        torch.conv2d(x, weight, padding=1)
    found = saved(here)
    assert (found["operator"], found["algorithm"]) == ("aten::convolution", "fft")
