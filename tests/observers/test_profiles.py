"""profiling_mode: the files of a profile, and a training that goes on whatever happens to them."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile, record_function

import msctx
from msctx import MsctxWarning
from msctx.observers import profiling, steps


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert not torch._C._autograd._profiler_enabled()
    assert profiling.SLOT.read() is None
    assert not steps._listeners


class Training:
    """A step of a small model: a convolution, a matmul, an optimizer."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batch = torch.randn(2, 3, 8, 8)

    def step(self) -> None:
        self.sgd.zero_grad()
        self.model(self.batch).sum().backward()
        self.sgd.step()


def requested(folder: Path, **more: str) -> dict[str, Any]:
    options = {"output": str(folder), "training_trace": "on", "task_trace": "on"} | more
    return {"profiling_mode": True, "profiling_options": json.dumps(options)}


def events(folder: Path) -> list[dict[str, Any]]:
    return [e for path in sorted(folder.glob("*.pt.trace.json")) for e in json.loads(path.read_text())["traceEvents"]]


def names(folder: Path) -> set[str]:
    return {event["name"] for event in events(folder)}


def trained(folder: Path, count: int = 3, **more: str) -> None:
    training = Training()
    with msctx.context(**requested(folder, **more)):
        for _ in range(count):
            training.step()


def test_a_trace_has_steps_and_a_table_has_the_algorithms_that_ran(tmp_path: Path) -> None:
    with msctx.context(**requested(tmp_path), conv_fprop_algo="winograd", matmul_algo="strict"):
        Training().step()
    assert {"ProfilerStep#0", "aten::convolution", "msctx::winograd fprop"} <= names(tmp_path)
    (table,) = tmp_path.glob("msctx_*.operators.txt")
    text = table.read_text()
    assert "msctx::winograd fprop" in text
    assert "[[2, 3, 8, 8]" in text


def test_keys_choose_what_is_recorded(tmp_path: Path) -> None:
    trained(tmp_path / "plain", 1, task_trace="off", training_trace="on")
    assert "ProfilerStep#0" in names(tmp_path / "plain")
    assert not [*(tmp_path / "plain").glob("*.txt")]
    assert not any("Input Dims" in event.get("args", {}) for event in events(tmp_path / "plain"))
    trained(tmp_path / "stacks", 1, training_trace="off", task_trace="l1", aicpu="on")
    assert not any(name.startswith("ProfilerStep") for name in names(tmp_path / "stacks"))
    assert any("test_profiles" in name for name in names(tmp_path / "stacks"))


def test_the_first_steps_of_a_long_scope_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_STEPS", 10)
    training = Training()

    def train() -> None:
        with msctx.context(**requested(tmp_path)), record_function("epoch"):
            for _ in range(15):
                with record_function("iteration"):
                    training.step()

    with pytest.warns(MsctxWarning, match="10 steps are recorded"):
        train()
    assert len([*tmp_path.glob("*.pt.trace.json")]) == 1
    found = names(tmp_path)
    assert {f"ProfilerStep#{step}" for step in range(10)} <= found
    assert "ProfilerStep#10" not in found


def test_an_inner_scope_records_as_if_it_were_alone(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**requested(tmp_path / "outer")):
        training.step()
        with msctx.context(profiling_mode=False):
            torch.sinh(training.batch)
        with msctx.context(**requested(tmp_path / "inner")):
            torch.cosh(training.batch)
        training.step()
    assert "aten::cosh" in names(tmp_path / "inner")
    assert not names(tmp_path / "outer") & {"aten::sinh", "aten::cosh"}


def test_the_end_of_the_program_writes(tmp_path: Path, passes: Callable[[str], str]) -> None:
    passes(f"import torch, msctx; msctx.set_context(**{requested(tmp_path)!r}); torch.ones(2) + 1")
    assert "aten::add" in names(tmp_path)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.warns(MsctxWarning, match="cannot write to .*the program continues") as warned:
        trained(tmp_path / "file" / "below", 3)
    assert len(warned) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_the_oldest_files_of_ours_go_first(tmp_path: Path) -> None:
    old, newer, mine = (
        tmp_path / name for name in (f"msctx_h_1.{1:019d}.steps.csv", f"msctx_h_1.{2:019d}.steps.csv", "big.json")
    )
    for age, path in enumerate((mine, old, newer)):
        with path.open("wb") as file:
            file.truncate(150 * 2**20)
        os.utime(path, (1e9 + age, 1e9 + age))
    trained(tmp_path, 1, storage_limit="200MB")
    assert (mine.exists(), old.exists(), newer.exists()) == (True, False, True)
    assert names(tmp_path)


def test_a_profiler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    with profile() as theirs, pytest.warns(MsctxWarning, match="another profiler of torch runs"):
        trained(tmp_path, 1)
    assert any(event.key == "aten::conv2d" for event in theirs.key_averages())
    assert not [*tmp_path.iterdir()]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.failing, self.head = nn.Linear(2, 1), nn.Sequential(nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with suppress(RuntimeError):
            self.failing(x)
        return self.head(x)


@pytest.mark.parametrize("classes", [True, False, None])
def test_modules_have_ranges_if_their_names_are_set(classes: bool | None, tmp_path: Path) -> None:
    more = {} if classes is None else {"reserve_class_name_in_scope": classes}
    with msctx.context(**requested(tmp_path), **more):
        Net()(torch.ones(2, 3))
    found = sorted((e for e in events(tmp_path) if e["name"].startswith("Default")), key=lambda e: e["ts"])
    with_classes = ["", "/failing-Linear", "/head-Sequential", "/head-Sequential/0-ReLU", "/head-Sequential/1-Linear"]
    without = ["", "/failing", "/head", "/head/0", "/head/1"]
    wanted = {True: with_classes, False: without, None: []}[classes]
    assert [event["name"] for event in found] == [f"Default{name}" for name in wanted]
