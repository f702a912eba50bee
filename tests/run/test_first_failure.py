"""Which rank failed first, and what is recorded of those that could not do it themselves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from msctx.options import Layer, carried
from msctx.run import launch


def failure(code: int, moment: float | None = None, local: int = 0, timestamp: int = 1000) -> SimpleNamespace:
    data: dict[str, Any] = {"message": ""}
    if moment is not None:
        data = {"message": {"message": f"at {moment}", "extraInfo": {"exit_code": 5}}}
    return SimpleNamespace(
        moment=moment,
        error_file="<N/A>",
        local_rank=local,
        exitcode=code,
        timestamp=timestamp,
        error_file_data=data,
        message=data["message"],
        signal_name=lambda: "its name",
    )


def leave(failures: dict[int, SimpleNamespace], folder: Path) -> None:
    """The files in which ranks have left word, as old as that is."""
    for rank, one in failures.items():
        if one.moment is not None:
            file = folder / f"error_{rank}.json"
            file.write_text(json.dumps(one.error_file_data))
            os.utime(file, (one.moment, one.moment))
            one.error_file = str(file)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({0: failure(5, 1000.5), 1: failure(5, 1000.4)}, "rank 1 failed first, 1 more after it: at 1000.4"),
        ({0: failure(5, 1000.5), 1: failure(-15)}, "rank 0 failed first, 1 more after it: at 1000.5"),
        ({0: failure(5, 1000.5), 1: failure(-9)}, "rank 1 failed first, 1 more after it: signal 9 (its name) ended it"),
        ({0: failure(5, 1000.5), 1: failure(-9, timestamp=1031)}, "rank 0 failed first, 1 more after it: at 1000.5"),
        ({0: failure(-6), 1: failure(5, 1000.9)}, "rank 1 failed first, 1 more after it: at 1000.9"),
        ({3: failure(77)}, "rank 3 failed first: it ended with exit code 77"),
        ({0: failure(-15, 1000.1), 1: failure(7)}, "rank 1 failed first, 1 more after it: it ended with exit code 7"),
        ({0: failure(-15, 1000.1), 1: failure(5, 1000.2)}, "rank 0 failed first, 1 more after it: at 1000.1"),
        ({0: failure(-11, 1000.3), 1: failure(5, 1000.2)}, "rank 1 failed first, 1 more after it: at 1000.2"),
    ],
)
def test_which_was_first(failures: dict[int, SimpleNamespace], expected: str, tmp_path: Path) -> None:
    leave(failures, tmp_path)
    assert str(launch._first(failures, tmp_path)) == expected


@pytest.mark.parametrize(("moment", "expected"), [(1000.3, 1), (1000.7, 0)])
def test_when_a_signal_ended_a_rank_is_known_from_what_python_wrote(moment: float, expected: int, tmp_path: Path) -> None:
    for attempt, content in ((9, ""), (10, "Fatal Python error: Aborted")):
        file = tmp_path / "run" / f"attempt_{attempt}" / "1" / launch.FAULT
        file.parent.mkdir(parents=True)
        file.write_text(content)
        os.utime(file, (moment, moment))
    failures = {0: failure(5, 1000.5), 1: failure(-6, local=1)}
    leave(failures, tmp_path)
    assert f"rank {expected} failed first" in str(launch._first(failures, tmp_path))


def test_a_traceback_that_torch_has_recorded_is_shown() -> None:
    one = failure(-15, 1000.1)
    one.error_file_data["message"]["extraInfo"]["py_callstack"] = "Traceback\nValueError: no"
    assert launch._why(one) == "Traceback\nValueError: no"


def test_what_a_rank_leaves_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr(launch, "_was_left", False)
    launch.report(MuteError())
    launch.report(ValueError("what follows from it"))
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"].startswith("MuteError: ")
    assert [*tmp_path.iterdir()] == [tmp_path / "error.json"], "it was written aside, and renamed"


def test_ranks_have_the_status_and_the_reason_that_the_agent_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the others by SIGTERM, and half a minute later by SIGKILL. The last two had a result: one of them failed after it."""
    failures = {
        0: failure(-signal.SIGKILL),
        1: failure(-signal.SIGTERM),
        2: failure(-signal.SIGKILL, timestamp=1000 + launch.PATIENCE),
        3: failure(7),
        4: failure(5, 1000.5),
        5: failure(-signal.SIGTERM),
    }
    folders = [tmp_path / f"rank_{rank}" for rank in failures]
    for folder in folders:
        folder.mkdir()
    for done in folders[4:]:
        (done / "result.json").write_text('{"status": "completed"}')
    (seen := tmp_path / "seen").write_text("".join(f"{folder}\n" for folder in folders))
    monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer(), restart=0))
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: SimpleNamespace(failures=failures))
    agent: Any = None
    with launch._noting_failures(seen, tmp_path):
        LocalElasticAgent._monitor_workers(agent, None)
    found = [(row["status"], row.get("reason")) for row in launch._gathered(seen)["ranks"]]
    assert found == [
        ("failed", "signal 9 (its name) ended it"),
        ("interrupted", "signal 15 (its name) ended it"),
        ("interrupted", "signal 9 (its name) ended it"),
        ("failed", "it ended with exit code 7"),
        ("failed", "at 1000.5"),
        ("completed", None),
    ]
