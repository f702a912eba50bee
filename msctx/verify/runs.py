"""The processes of the runs. They take turns, so that each has the whole machine, or, as ranks of one run, go together."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from threading import Thread

from msctx.errors import EntryError, EntryFailed, MsctxError
from msctx.native.children import Children
from msctx.verify.rows import Ran, from_json
from msctx.verify.wire import Message, Wire

GO = {"go": True}
NOTHING: Message = {"step": -1, "digest": 0, "count": 0, "unread": 0, "segments": []}
"""The report of a run that reports nothing."""
GRACE = 30
"""Seconds that a rank may still take after another one has ended."""


@dataclass(frozen=True)
class Side:
    """One of the two: how it is called, and what it has of its own."""

    name: str
    words: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """What is run."""

    file: str | None
    words: Sequence[str]


class Process:
    """One run; *task* is what :mod:`msctx.verify.child` does beside it."""

    def __init__(self, children: Children, subject: Subject, side: Side, folder: Path, task: Message) -> None:
        self.name, self.folder = side.name, folder
        ours, theirs = socket.socketpair()
        self._wire = Wire(ours)
        self._done: CompletedProcess[str] | None = None
        words = [*subject.words, *side.words]
        job = {"file": subject.file, "words": words, "folder": str(folder), "task": task}
        command = [sys.executable, "-m", "msctx.verify.child", str(theirs.fileno())]

        def run() -> None:
            try:
                environment = {**os.environ, **side.environment}
                self._done = children.run(command, scratch=folder, env=environment, pass_fds=(theirs.fileno(),))
            finally:
                theirs.close()

        self._thread = Thread(target=run, daemon=True)
        self._thread.start()
        with suppress(ConnectionError):  # it has ended already: begin() reports it
            self._wire.send(job)  # not on its command line, which every user of the machine can read
        self.has_answered = True
        """It waits for an answer of ours."""

    def begin(self) -> Message:
        """Wait until it is ready; what it runs under."""
        found = self._received()
        if "ended" in found:
            raise EntryFailed(f"the run cannot begin: {found['ended']['error']}")
        return dict(found["ready"])

    def go(self) -> Message:
        """Let it run to the end of a step, or its own."""
        self.start()
        return self.end()

    def start(self) -> None:
        self._wire.send(GO)

    def end(self) -> Message:
        """What it reports of the step."""
        return self._received()

    def give_up(self) -> Message:
        """Wait for it no longer."""
        self.has_answered = False
        return dict(NOTHING)

    def fileno(self) -> int:
        return self._wire.fileno()

    def rows(self) -> list[Ran]:
        """The operators of the step, if it has come to its end."""
        if not self.has_answered:
            return []
        self._wire.send({"rows": True})
        return [from_json(one) for one in self._received()["rows"]]

    def save(self, name: str) -> Path:
        """The file that now holds a parameter, or its gradient."""
        self._wire.send({"save": name})
        return Path(self._received()["file"])

    def _received(self) -> Message:
        try:
            found = self._wire.receive()
        except (EOFError, ConnectionError):
            return NOTHING | {"ended": self._death()}
        if "error" in found:
            kinds = {"EntryError": EntryError, "EntryFailed": EntryFailed}
            error = kinds.get(found["kind"], MsctxError)(found["error"])
            error.exit_code = found["exit_code"]
            raise error
        return found

    def _death(self) -> Message:
        self.has_answered = False
        self._thread.join()
        if self._done is None:  # it could not be started
            return {"status": "failed", "error": "the process did not run", "reason": "the process did not run", "died": True}
        code = self._done.returncode
        reason = (
            f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with exit code {code}"
        )
        error = f"{reason}\n{self._done.stderr.strip()}".strip()
        return {"status": "failed", "error": error, "reason": reason, "died": True}

    def close(self) -> None:
        self._thread.join()
        self._wire.close()


@contextmanager
def running(subject: Subject, sides: Sequence[Side], tasks: Sequence[Message]) -> Iterator[list[Process]]:
    """Start a process for each side; none is left when the block is."""
    with TemporaryDirectory(prefix="msctx-verify-") as folder:
        started: list[Process] = []
        try:
            with Children(Path(folder)) as children:
                for number, (side, task) in enumerate(zip(sides, tasks, strict=True)):
                    started.append(Process(children, subject, side, Path(folder) / str(number), task))
                yield started
        finally:
            for one in started:
                one.close()
