"""The processes of the runs: what others may read of them, and what is reported of those that cannot begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from msctx.errors import EntryFailed
from msctx.native.children import Children
from msctx.verify.runs import Side, Subject, running

ENTRY = f"{Path(__file__).with_name('planted.py')}:train"
TASK = {"kind": "digests"}


def test_no_word_is_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    run = Children.run

    def noted(self: Children, command: Any, **how: Any) -> Any:
        commands.append(" ".join(command))
        return run(self, command, **how)

    monkeypatch.setattr(Children, "run", noted)
    with running(Subject(None, [f"experiment.entry={ENTRY}", "args.fault=secret"]), [Side("one", ["args.step=1"])], [TASK]) as (
        process,
    ):
        assert {"args.fault", "args.step"} <= process.begin()["settings"].keys()
    (command,) = commands
    assert "args" not in command
    assert "planted" not in command


def test_a_process_that_ends_before_it_reads_what_to_do() -> None:
    side = Side("one", ["x" * 4_000_000], {"PYTHONHOME": "/nonexistent"})
    with running(Subject(None, []), [side], [TASK]) as (process,), pytest.raises(EntryFailed, match="the run cannot begin"):
        process.begin()
