"""The processes of the runs. Each sends a line of JSON for every operator, and waits while the other one is behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from msctx.errors import Diagnostic, MsctxError, OptionError, nearest

Message = dict[str, Any]
_CHILD = "from msctx.verify.child_run_and_compiled_twins import main; main()"  # not -m: frames would be __main__'s, as a user's


class Side(NamedTuple):
    """One run: its name in the report, and the words of its command line."""

    name: str
    words: Sequence[str]


def sides(against: Sequence[str], words: Sequence[str]) -> list[Side]:
    """The runs that ``--against`` names; one: it runs eagerly, and compares its modules with compiled ones."""
    text = " ".join(against)
    what, colon, value = text.partition(":")
    if against and all("=" in word for word in against):
        return [Side("as given", words), Side(text, [*words, *against])]
    if text in ("", "run"):
        return [Side("first run", words), Side("second run", words)]
    if text == "compiled":
        return [Side("eager and compiled code", words)]
    if what == "threads" and (not colon or (value.isdecimal() and int(value) > 0)):
        if any(word.startswith("runtime_num_threads=") for word in words):
            raise OptionError([Diagnostic("runtime_num_threads", f"--against {text} sets it; remove it", "command line")])
        many = int(value or max(2, len(os.sched_getaffinity(0))))
        return [Side(f"threads: {count}", [*words, f"runtime_num_threads={count}"]) for count in (1, many)]
    problem = f"{text!r}: cannot be compared; several values are allowed only if all are KEY=VALUE"
    allowed, hint = "run, threads[:N], compiled, or KEY=VALUE", nearest(what, ("run", "threads", "compiled"))
    raise OptionError([Diagnostic("--against", problem, "command line", allowed, hint)])


def failed(error: str) -> Message:
    """The last message of a run that failed."""
    return {"does": f"fails: {error.splitlines()[-1]}", "error": error}


class Process:
    """One run; *task* says what :mod:`~msctx.verify.child_run_and_compiled_twins` sends; *values*: of the switches
    in it, while operators ran; *idle*: what options found nothing to act on."""

    def __init__(self, file: str | None, side: Side, folder: Path, task: Message) -> None:
        self.folder = folder
        self.values: list[list[Any]] = []
        self.idle: list[str] = []
        ours, theirs = os.pipe()
        self._lines = os.fdopen(ours, encoding="utf-8")
        job = {"file": file, "words": side.words, "folder": str(folder / "run"), "task": task}
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")  # arguments may be secret: not on a command line
        command = [sys.executable, "-c", _CHILD, str(folder / "job.json"), str(theirs)]
        pipes: dict[str, Any] = {"stdin": DEVNULL, "stdout": DEVNULL, "pass_fds": (theirs,), "start_new_session": True}
        with (folder / "stderr").open("wb") as errors:
            self._process = Popen(command, stderr=errors, **pipes)
        os.close(theirs)

    def receive(self) -> Message:
        """What the run ``does`` next, with a ``row``, or the ``error`` of a run that fails; raises if it cannot begin."""
        line = self._lines.readline()
        if not line.endswith("\n"):
            code, told = self._process.wait(), (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")
            return failed(f"the process exited with code {code}\n{told}".strip())
        found: Message = json.loads(line)
        if "problem" in found:
            problem = MsctxError(found["problem"])
            problem.exit_code = found["exit_code"]
            raise problem
        if "\n" not in found.get("error", "\n"):  # it ended itself: no traceback tells why
            last = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace").splitlines()[-10:]
            found["error"] = "\n".join([found["error"], *last])
        self.values, self.idle = found.pop("values", self.values), found.pop("idle", self.idle)
        return found

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)  # and all that it started
        self._process.wait()
        self._lines.close()


@contextmanager
def running(file: str | None, sides: Sequence[Side], task: Message) -> Iterator[list[Process]]:
    """Start a process for each side; none is left when the block is."""
    with TemporaryDirectory(prefix="msctx-verify-") as folder, ExitStack() as ended:
        yield [
            ended.enter_context(closing(Process(file, side, Path(folder) / str(number), task)))
            for number, side in enumerate(sides)
        ]
