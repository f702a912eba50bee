"""profiling_mode: what the files of a profile hold, and that training goes on whatever happens to them."""

from __future__ import annotations

import csv
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _C, nn
from torch.autograd.profiler import profile as class_of_profiles
from torch.autograd.profiler import record_function as class_of_ranges
from torch.profiler import profile, record_function

import msctx
from msctx import MsctxWarning, ScopeError
from msctx.observers import profiling, steps

ENTER, EXIT, PREPARE = class_of_ranges.__enter__, class_of_ranges.__exit__, class_of_profiles._prepare_trace


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert not _C._autograd._profiler_enabled()
    assert profiling.read() is None
    assert (class_of_ranges.__enter__, class_of_ranges.__exit__) == (ENTER, EXIT)
    assert class_of_profiles._prepare_trace is PREPARE
    assert not steps._listeners


class Training:
    """A step of a small model: a convolution, a product, an optimizer."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batch = torch.randn(2, 3, 8, 8)

    def step(self) -> None:
        self.sgd.zero_grad()
        self.model(self.batch).sum().backward()
        self.sgd.step()


def asked(folder: Path, **more: str) -> dict[str, Any]:
    options = {"output": str(folder), "training_trace": "on", "task_trace": "on"} | more
    return {"profiling_mode": True, "profiling_options": json.dumps(options)}


def events(folder: Path) -> list[dict[str, Any]]:
    return [e for path in sorted(folder.glob("*.pt.trace.json")) for e in json.loads(path.read_text())["traceEvents"]]


def names(folder: Path) -> set[str]:
    return {event["name"] for event in events(folder)}


def table(folder: Path, name: str = "steps.csv") -> list[dict[str, str]]:
    return [row for path in sorted(folder.glob(f"*.{name}")) for row in csv.DictReader(path.open(newline=""))]


def trained(folder: Path, count: int = 3, **more: str) -> Training:
    training = Training()
    with msctx.context(**asked(folder, **more)):
        for _ in range(count):
            training.step()
    return training


# --- what the files hold ----------------------------------------------------------------------------------------------


def test_each_step_has_its_phases(tmp_path: Path) -> None:
    trained(tmp_path)
    rows = table(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    for row in rows:
        parts = [float(row[f"{phase}_ms"]) for phase in ("forward", "backward", "optimizer")]
        assert all(part > 0 for part in parts)
        assert sum(parts) <= float(row["total_ms"]) + 0.01
        assert row["data_ms"] == "", "there is no data loader"
    found = events(tmp_path)
    assert {"ProfilerStep#0", "ProfilerStep#2", "forward", "backward", "optimizer"} <= names(tmp_path)
    (first,) = [e for e in found if e["name"] == "ProfilerStep#0"]
    inside = [e for e in found if e["name"] == "aten::conv2d" and first["ts"] <= e["ts"] < first["ts"] + first["dur"]]
    assert len(inside) == 1
    assert not any(name.startswith("msctx.step") for name in names(tmp_path))


def test_operators_name_the_algorithms_that_ran(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path), conv_fprop_algo="winograd", conv_wgrad_algo="algo_1", matmul_algo="strict") as ctx:
        training.step()
    rows = table(tmp_path, "operators.csv")
    ran = {(row["operator"], row["algorithm"]) for row in rows if row["algorithm"]}
    assert {("aten::convolution", "winograd fprop"), ("aten::convolution_backward", "algo_1 wgrad")} <= ran
    assert ("aten::addmm", "strict matmul") in ran
    assert {name.partition(" ")[0] for _, name in ran} == {row.ran for row in ctx.choices()}
    (conv,) = [row for row in rows if row["operator"] == "aten::convolution"]
    assert conv["shapes"] == "[2,3,8,8] [4,3,3,3] [4]"
    (text,) = tmp_path.glob("*.steps.txt")
    assert "winograd fprop" in text.read_text()


def test_several_algorithms_for_one_shape_are_all_named(tmp_path: Path) -> None:
    x, w = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)
    with msctx.context(**asked(tmp_path)):
        for algorithm in ("winograd", "gemm", "gemm"):
            with msctx.context(conv_fprop_algo=algorithm):
                torch.conv2d(x, w)
    (row,) = [row for row in table(tmp_path, "operators.csv") if row["algorithm"]]
    assert (row["algorithm"], row["calls"]) == ("winograd fprop x1; gemm fprop x2", "3")


def test_data_loading_has_a_column(tmp_path: Path) -> None:
    training = Training()
    loader = torch.utils.data.DataLoader(torch.randn(6, 3, 8, 8), batch_size=2)
    with msctx.context(**asked(tmp_path)):
        for training.batch in loader:
            training.step()
    assert all(float(row["data_ms"]) > 0 for row in table(tmp_path))


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path)):
        for _ in range(3):
            training.model(training.batch).sum().backward()
        training.sgd.step()
    (row,) = table(tmp_path)
    assert row["step"] == "0"
    assert len([e for e in events(tmp_path) if e["name"] == "backward"]) == 3


def test_without_an_optimizer_the_program_marks_steps(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path)), torch.no_grad():
        for _ in range(2):
            training.model(training.batch)
            msctx.step()
    rows = table(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1"]
    assert all(float(row["forward_ms"]) > 0 and not row["backward_ms"] for row in rows)


def test_points_bound_forward_and_backward(tmp_path: Path) -> None:
    trained(tmp_path, 1, fp_point="aten::relu", bp_point="ReluBackward0")
    by_name = {e["name"]: e for e in events(tmp_path) if e.get("ph") == "X"}
    assert by_name["forward"]["ts"] == by_name["aten::relu"]["ts"]
    end = by_name["ReluBackward0"]["ts"] + by_name["ReluBackward0"]["dur"]
    assert by_name["backward"]["ts"] + by_name["backward"]["dur"] == pytest.approx(end)


def test_a_point_that_nothing_is_called_is_named(tmp_path: Path) -> None:
    told = r"profiling_options: no operator or range is called 'aten::rellu' \(fp_point\); did you mean aten::relu\?"
    with pytest.warns(msctx.MsctxWarning, match=told):
        trained(tmp_path, 1, fp_point="aten::rellu", bp_point="ReluBackward0")
    (text,) = tmp_path.glob("*.steps.txt")
    assert "called aten::rellu" in text.read_text()


def test_a_point_of_some_parts_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(profiling, "STEPS_PER_PART", 1)
    with msctx.context(**asked(tmp_path, fp_point="aten::cos")):
        for run in (torch.sin, torch.cos, torch.sin, torch.sin):
            run(torch.ones(1))
            msctx.step()
    assert not [str(one.message) for one in recwarn if "is called" in str(one.message)]


def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    def recorded(place: str, **options: str) -> set[str]:
        with msctx.context(**asked(tmp_path / place, **options)), record_function("mine"):
            Training().step()
        return names(tmp_path / place)

    assert "mine" not in recorded("a")
    assert "mine" in recorded("b", msproftx="on")
    assert not any("Input Dims" in event.get("args", {}) for event in trained_events(tmp_path / "c", task_trace="l0"))
    only_steps = recorded("d", task_trace="off")
    assert "ProfilerStep#0" in only_steps
    assert not any(name.startswith("aten::") for name in only_steps)
    assert not table(tmp_path / "d", "operators.csv")
    only_tasks = recorded("e", training_trace="off", task_trace="l1")
    assert "aten::conv2d" in only_tasks
    assert not any(name.startswith("ProfilerStep") for name in only_tasks)
    assert {row["step"] for row in table(tmp_path / "e", "operators.csv")} == {"all"}
    assert any("test_profiles" in name for name in recorded("f", aicpu="on")), "Python's stacks"


def trained_events(folder: Path, **options: str) -> list[dict[str, Any]]:
    trained(folder, 1, **options)
    return events(folder)


def test_no_environment_variable_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "xyzzy-4711")
    trained(tmp_path, 2, aicpu="on", hccl="on", msproftx="on")
    assert not [path for path in tmp_path.iterdir() if "xyzzy-4711" in path.read_text()]


def test_where_nothing_ran_nothing_is_written(tmp_path: Path) -> None:
    trained(tmp_path, 0)
    assert not [*tmp_path.iterdir()]


def test_the_built_in_text_writes_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with msctx.context(profiling_mode=True):
        monkeypatch.chdir("/")
        Training().step()
    assert len([*tmp_path.iterdir()]) == 4


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["none", "iteration"])
def test_a_long_scope_is_written_in_parts(tmp_path: Path, around: str) -> None:
    """A profile that began inside a range of another one would crash when the range ends."""
    training, count = Training(), 2 * profiling.STEPS_PER_PART + 3
    with msctx.context(**asked(tmp_path)):
        for _ in range(count):
            if around == "iteration":
                with record_function("iteration"):
                    training.step()
            else:
                training.step()
    assert len([*tmp_path.glob("*.pt.trace.json")]) == 3
    assert [int(row["step"]) for row in table(tmp_path)] == [*range(count)]


def test_a_range_that_stays_open_ends_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LONGEST", 2)
    training, count = Training(), 3 * profiling.STEPS_PER_PART
    with msctx.context(**asked(tmp_path)):
        with warnings.catch_warnings(record=True) as warned, record_function("epoch"):
            for _ in range(count):
                training.step()
        assert [str(one.message).partition("until")[0] for one in warned] == ["profiling_mode: recording pauses "]
        training.step()
    assert [int(row["step"]) for row in table(tmp_path)] == [*range(2 * profiling.STEPS_PER_PART), count]


def test_an_optimizer_inside_the_backward_pass(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: sgd.step())
    with msctx.context(**asked(tmp_path)):
        for _ in range(profiling.STEPS_PER_PART + 3):
            (weight * 2).sum().backward()
            with record_function("log"):
                pass
    assert [int(row["step"]) for row in table(tmp_path)][-1] >= profiling.STEPS_PER_PART + 2


def test_steps_inside_compiled_code(tmp_path: Path) -> None:
    """The range of compiled code is open where the step ends, and torch tells nobody: the next part begins a step later."""
    training = Training()

    @torch.compile(backend="eager")
    def step() -> None:
        training.step()

    with msctx.context(**asked(tmp_path)):
        for _ in range(2 * profiling.STEPS_PER_PART + 5):
            step()
    found = [int(row["step"]) for row in table(tmp_path)]
    assert found[: profiling.STEPS_PER_PART] == [*range(profiling.STEPS_PER_PART)]
    assert len({*found}) == len(found)


# --- scopes -----------------------------------------------------------------------------------------------------------


def test_an_inner_scope_records_as_if_it_were_alone(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path / "outer")):
        training.step()
        with msctx.context(profiling_mode=False):
            assert not _C._autograd._profiler_enabled()
            torch.sinh(training.batch)
        training.step()
        with msctx.context(**asked(tmp_path / "inner")):
            torch.cosh(training.batch)
        with msctx.context(seed=1):
            training.step()
    assert "aten::cosh" in names(tmp_path / "inner")
    outer = names(tmp_path / "outer")
    assert not outer & {"aten::sinh", "aten::cosh"}
    assert len(table(tmp_path / "outer")) == 3


def test_a_scope_inside_a_range_of_the_outer_one_waits_for_its_end(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path)):
        for _ in range(20):
            with record_function("range"):
                with msctx.context(profiling_mode=False):
                    training.step()
                training.step()
        training.step()
    assert len(table(tmp_path)) >= 1


def test_the_trace_is_written_where_the_block_raises(tmp_path: Path) -> None:
    @msctx.context(**asked(tmp_path))
    def fails() -> None:
        Training().step()
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert len(table(tmp_path)) == 1


def test_set_context_records_until_it_is_reset(tmp_path: Path) -> None:
    msctx.set_context(**asked(tmp_path))
    try:
        Training().step()
    finally:
        msctx.reset_context()
    assert len(table(tmp_path)) == 1


def test_the_end_of_the_program_writes(tmp_path: Path, passes: Callable[[str], str]) -> None:
    passes(f"import torch, msctx; msctx.set_context(**{asked(tmp_path)!r}); torch.ones(2) + 1")
    assert "aten::add" in names(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    with msctx.context(**asked(tmp_path)):
        Training().step()
        if (child := os.fork()) == 0:
            with suppress(BaseException):
                torch.ones(2) + 1  # no training: OpenMP's threads do not survive a fork
                profiling.write(None)
                os._exit(7 if _C._autograd._profiler_enabled() else 0)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not [*tmp_path.iterdir()]
    assert len(table(tmp_path)) == 1


def test_another_thread_trains_unrecorded(tmp_path: Path) -> None:
    with msctx.context(**asked(tmp_path)) as ctx:
        torch.ones(2) + 1
        thread = threading.Thread(target=ctx.bind(lambda: Training().step()))
        thread.start()
        thread.join()
    assert "aten::conv2d" not in names(tmp_path)


# --- bad days ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.warns(MsctxWarning, match="cannot be written to .*training goes on") as warned:
        trained(tmp_path / "file" / "below", 2 * profiling.STEPS_PER_PART + 1)
    assert len(warned) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []

    def full(self: profile, path: str) -> None:
        parts.append(self)
        for name in (path, f"{path}.tmp"):  # as torch does: it raises nothing
            Path(name).write_text('{"traceEvents": [')

    monkeypatch.setattr(profile, "export_chrome_trace", full)
    with pytest.warns(MsctxWarning, match="is the disk full"):
        trained(tmp_path, 1)
    assert not [*tmp_path.iterdir()]
    assert [part.profiler for part in parts] == [None], "torch's half file stays open"


def test_a_users_file_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling.folder, "stem", lambda: "mine")
    mine = tmp_path / "mine.pt.trace.json"
    mine.write_text("mine")
    with pytest.warns(MsctxWarning, match="is there already"):
        trained(tmp_path, 1)
    assert mine.read_text() == "mine"


def test_the_oldest_files_of_ours_go_first(tmp_path: Path) -> None:
    old, newer, mine = (
        tmp_path / name for name in (f"msctx_h_1.{1:019d}.steps.csv", f"msctx_h_1.{2:019d}.steps.csv", "big.json")
    )
    for age, path in enumerate((mine, old, newer)):
        with path.open("wb") as file:
            file.truncate(150 * 2**20)
        os.utime(path, (1e9 + age, 1e9 + age))
    trained(tmp_path, 1, storage_limit="200MB")
    assert mine.exists()
    assert (old.exists(), newer.exists()) == (False, True)
    assert len(table(tmp_path, "operators.csv")) > 0


def test_a_profiler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    with profile() as theirs, pytest.warns(MsctxWarning, match="another profiler of torch runs"):
        trained(tmp_path, 1)
    assert any(event.key == "aten::conv2d" for event in theirs.key_averages())
    assert not [*tmp_path.iterdir()]


def test_a_profiler_that_begins_inside_takes_the_place(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path)):
        training.step()
        theirs = profile()
        with pytest.warns(MsctxWarning, match="another profiler of torch begins"):
            theirs.start()
        training.step()
        theirs.stop()
        training.step()
        training.step()
    assert any(event.key == "aten::conv2d" for event in theirs.key_averages())
    assert [row["step"] for row in table(tmp_path)] == ["0", "2", "3"]


def test_a_profiler_that_would_crash_is_refused(tmp_path: Path) -> None:
    training = Training()
    with msctx.context(**asked(tmp_path)):
        with record_function("mine"), pytest.raises(ScopeError, match="torch would crash"):
            profile().start()
        training.step()
    assert len(table(tmp_path)) == 1
