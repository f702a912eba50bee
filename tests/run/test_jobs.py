"""Jobs of submitit: what was submitted is known, whenever a signal comes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from msctx.run.jobs import Jobs


class Executor:
    """Gets a signal while it submits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cancelled = folder, 0

    def submit(self, *what: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return self

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    pytest.importorskip("submitit")
    found = Executor(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Jobs, "_executor", lambda self, folder: found)
    return found


def test_a_signal_while_a_point_is_submitted(executor: Executor) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(Jobs("local", {})("one.yaml", [(0, [], executor.folder / "0")], executor.folder))
    assert executor.cancelled == 1
