"""A sweep that is killed goes on: points that were completed are kept, and those that were not run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import is_running, until

pytestmark = pytest.mark.full
ENTRY = """
import os, pathlib, time
def train(number: int):
    with open("ran", "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
    while not pathlib.Path(f"go.{number}").exists():
        time.sleep(0.05)
    return {"square": number * number}
"""


class Sweep:
    """Of three points, each of which waits for a file ``go.NUMBER``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "entry.py").write_text(ENTRY)
        (folder / "train.yaml").write_text("experiment: {entry: entry.py:train}\n")
        (folder / "ran").touch()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "msctx", "run", "train.yaml", "--sweep", "args.number=1,2,3", "--out", "out", *words]
        with (self.folder / "said").open("a") as file:  # no pipe: jobs that outlive it would keep that open
            return subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)

    def ran(self) -> list[tuple[int, int]]:
        """The points that have begun, and their processes."""
        lines = [line.split() for line in (self.folder / "ran").read_text().splitlines()]
        return [(int(number), int(process)) for number, process in lines]

    def go(self, *numbers: int) -> None:
        for number in numbers:
            (self.folder / f"go.{number}").touch()

    def goes_on(self, *words: str) -> None:
        assert self.start("--resume", *words).wait(300) == 0, (self.folder / "said").read_text()
        found = json.loads((self.out / "sweep.json").read_text())
        assert found["partial"] is False
        rows = [(row["number"], row["result"]["status"], row["result"]["square"]) for row in found["points"]]
        assert rows == [(1, "completed", 1), (2, "completed", 4), (3, "completed", 9)]


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path)
    yield made
    for _, process in made.ran():
        if is_running(process):
            os.kill(process, signal.SIGKILL)


def test_one_point_after_the_other(sweep: Sweep) -> None:
    sweep.go(1)
    process = sweep.start()
    until(lambda: len(sweep.ran()) == 2)
    process.kill()
    assert process.wait(300) == -signal.SIGKILL
    until(lambda: not is_running(sweep.ran()[1][1]))
    assert json.loads((sweep.out / "sweep.json").read_text())["partial"] is True
    sweep.go(2, 3)
    sweep.goes_on()
    assert [number for number, _ in sweep.ran()] == [1, 2, 2, 3]
    assert (sweep.out / "2-2" / "result.json").exists()


def test_points_that_are_jobs(sweep: Sweep) -> None:
    """They outlive who submitted them: the second is completed afterwards, and the third is killed, too."""
    pytest.importorskip("submitit")
    engine = ("--engine", "local", "--job", "timeout_min=5")
    sweep.go(1)
    process = sweep.start(*engine)
    until(lambda: len(sweep.ran()) == 3 and (sweep.out / "1" / "result.json").exists())
    process.kill()
    assert process.wait(300) == -signal.SIGKILL
    processes = dict(sweep.ran())
    assert is_running(processes[2])
    os.kill(processes[3], signal.SIGKILL)
    sweep.go(2, 3)
    until(lambda: (sweep.out / "2" / "result.json").exists() and not is_running(processes[3]))
    sweep.goes_on(*engine)
    assert sorted(number for number, _ in sweep.ran()) == [1, 2, 3, 3]
    assert (sweep.out / "3-2" / "result.json").exists()
