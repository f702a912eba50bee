"""`msctx run FILE --nproc N`: one plan for all ranks, a record for each, and the rank that failed first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launched import ENTRY as ENTRY
from launched import EXPERIMENT, command, ranks, run
from torch.distributed import DistStoreError

from msctx.cli import main
from msctx.errors import OptionError
from msctx.run.launch import Launch
from msctx.switches.generators import of_rank

LIKELY = """
import sys, msctx.devices
msctx.devices.likely = lambda: ("cpu", "cuda", "ascend")
from msctx.cli import main
main(sys.argv[1:])
"""
"""msctx, on a machine whose drivers are loaded."""


def test_the_store_of_the_nodes_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The agent of the first node died between two requests of another one."""

    def lost(*_: object) -> None:
        raise DistStoreError("wait timeout")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the launching process would share out for good
    monkeypatch.setattr("torch.distributed.launcher.api.launch_agent", lost)
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["run", "two.yaml", "--nproc", "2", "--out", "out"])
    assert end.value.code == 5
    assert "a node that is needed has ended, or does not answer at " in " ".join(capsys.readouterr().err.split())


EARLY = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "HCCL_DETERMINISTIC": "true",
    "TE_PARALLEL_COMPILER": "1",
    "HCCL_EXEC_TIMEOUT": "600",
}
"""Of deterministic="ON" and hccl_timeout=600."""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show what a process began with")
def test_one_plan_for_all_ranks(folder: Path) -> None:
    """What libraries read once stands in the environment in which each rank begins, so before it imports torch."""
    expected = EARLY | {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))}
    env = {name: value for name, value in os.environ.items() if name not in expected} | {"WATCHED": " ".join(expected)}
    done = run(folder, "hccl_timeout=600", program=("-c", LIKELY), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("options carried out") == 1
    assert re.findall("shown_by=.*", done.stderr) == ["shown_by=0"], "progress is that of rank 0"
    (made,) = (folder / "runs").iterdir()
    assert f"ranks.json is in {made}" in done.stdout
    for number in range(2):
        record = made / f"rank_{number}"
        result = json.loads((record / "result.json").read_text())
        assert (result["total"], result["on"], result["seed"], result["restored"]) == (1.0, True, 3, True)
        assert (result["variables"], str(result["threads"])) == (expected, expected["OMP_NUM_THREADS"])
        origins = {row["origin"] for row in json.loads((record / "plan.json").read_text())["options"]}
        assert origins == {"two.yaml:2:26", "two.yaml:2:38", "command line"}
    first, second = ranks(made)
    assert (first["rank"], second["rank"], first["folder"], second["folder"]) == (0, 1, "rank_0", "rank_1")
    assert first["plan"] == second["plan"]
    assert {row["status"] for row in ranks(made)} == {"completed"}
    differ = subprocess.run(
        [sys.executable, "-m", "msctx", "diff", str(made / "rank_0"), str(made / "rank_1")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (differ.returncode, differ.stdout, differ.stderr) == (0, "no differences\n", "")


@pytest.mark.full
def test_each_rank_has_a_seed_of_its_own(folder: Path) -> None:
    (folder / "two.yaml").write_text(EXPERIMENT.replace("seed: 3", "seed: 3, seed_by_rank: true"))
    done = run(folder, "--out", "out")
    assert done.returncode == 0, done.stderr
    for number in range(2):
        record = folder / "out" / f"rank_{number}"
        assert json.loads((record / "result.json").read_text())["seed"] == of_rank(3, number)
        rows = {row["option"]: row for row in json.loads((record / "plan.json").read_text())["options"]}
        assert rows["seed"]["switches"] == {"rng.seed": {"seed": 3, "by_rank": True}}
        assert rows["seed_by_rank"]["reason"] == f"this is rank {number}"
    first, second = ranks(folder / "out")
    assert first["plan"] == second["plan"]
    assert "differ" not in done.stderr


@pytest.mark.full
def test_the_rank_that_failed_first_is_reported_with_its_own_traceback(folder: Path) -> None:
    done = run(folder, "args.fails=1", "--out", "out")
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    assert "ValueError: it is rank one" in done.stderr
    assert "raise ValueError" in done.stderr
    assert "Connection closed" not in done.stderr, "of rank 0, which waited for it"
    assert ranks(folder / "out")[1]["reason"] == "ValueError: it is rank one"
    again = run(folder, "--out", "out")
    assert again.returncode == 3
    assert "is not empty" in again.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("entry", "words", "expected"),
    [
        ("entry.py:mian", [], "error: two.yaml:3:32  entry 'entry.py:mian': entry.py has no 'mian'; did you mean main?"),
        ("entry.py:main", ["args.fial=1"], "error: two.yaml:3:32  args.fial: entry.py:main takes no such argument"),
        ("other.py:main", [], "error: two.yaml:3:32  entry 'other.py:main': there is no file other.py beside"),
        ("raises.py:main", [], ": two.yaml:3:32  entry 'raises.py:main' cannot be imported"),
    ],
)
def test_no_rank_is_blamed_for_a_mistake_in_a_file(folder: Path, entry: str, words: list[str], expected: str) -> None:
    (folder / "two.yaml").write_text(EXPERIMENT.replace("entry.py:main", entry))
    (folder / "raises.py").write_text("raise ValueError('rank by rank')")
    done = run(folder, *words)
    assert done.returncode == 4
    assert expected in done.stderr
    assert ("failed first" in done.stderr) == (entry == "raises.py:main")
    assert not (folder / "runs").exists(), "no more than without --nproc"


@pytest.mark.full
def test_a_rank_that_is_killed(folder: Path) -> None:
    done = run(folder, "args.fails=1", f"args.sends={int(signal.SIGKILL)}", "--out", "out")
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    assert "signal 9 (SIGKILL) ended it" in done.stderr
    last = ranks(folder / "out")[1]
    assert (last["status"], last["reason"]) == ("failed", "signal 9 (SIGKILL) ended it")


KILLED = """
import os, signal, torch, torch.distributed as dist, msctx
def main(at):
    dist.init_process_group("gloo")
    write, calls = torch.set_num_threads, []
    def set_num_threads(count):
        calls.append(count)
        if dist.get_rank() == 1 and len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        write(count)
    torch.set_num_threads = set_num_threads
    found = torch.get_num_threads()
    with msctx.context(runtime_num_threads=found + 1):
        pass
    assert calls == [found + 1, found]
    torch.set_num_threads = write
    dist.barrier()
"""


@pytest.mark.full
@pytest.mark.parametrize("at", [1, 2], ids=["entering", "leaving"])
def test_a_rank_that_is_killed_while_it_enters_or_leaves(folder: Path, at: int) -> None:
    """The other one has entered and left; it fails where it waits for this one."""
    (folder / "entry.py").write_text(KILLED)
    done = run(folder, f"args.at={at}", "--out", "out")
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    other, killed = ranks(folder / "out")
    assert (killed["status"], killed["reason"]) == ("failed", "signal 9 (SIGKILL) ended it")
    assert other["status"] in ("failed", "interrupted"), "by the agent, which may come first"
    assert "AssertionError" not in other["reason"]
    assert json.loads((folder / "out" / "rank_0" / "result.json").read_text())["restored"]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT])
def test_a_rank_that_gets_a_signal_is_before_those_that_lose_it(folder: Path, number: signal.Signals) -> None:
    done = run(folder, "args.fails=1", f"args.sends={int(number)}", "--nproc", "3", "--out", "out")
    assert done.returncode == 5
    assert f"rank 1 failed first, 2 more after it: signal {int(number)} ({number.name}) ended it" in done.stderr


@pytest.mark.full
def test_a_rank_that_ends_itself_without_a_word(folder: Path) -> None:
    """Rank 0 waits for it, fails for that, and the agent ends it."""
    done = run(folder, "args.fails=1", "args.exits=7", "--out", "out")
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    assert "it ended with exit code 7" in done.stderr
    last = ranks(folder / "out")[1]
    assert (last["status"], last["reason"]) == ("failed", "it ended with exit code 7")


FAILS_LATE = """
import atexit, os
def main():
    if os.environ["RANK"] == "1":
        atexit.register(os._exit, 3)
    return {"total": 7}
"""


@pytest.mark.full
def test_a_rank_that_fails_after_its_entry_has_returned(folder: Path) -> None:
    (folder / "entry.py").write_text(FAILS_LATE)
    done = run(folder, "--out", "out")
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    last, result = ranks(folder / "out")[-1], json.loads((folder / "out" / "rank_1" / "result.json").read_text())
    assert (last["status"], last["reason"]) == ("failed", "it ended with exit code 3")
    assert (result["status"], result["total"]) == ("failed", 7)


@pytest.mark.full
def test_an_entry_that_interrupts_itself_has_no_traceback_of_ours(folder: Path) -> None:
    done = run(folder, "args.interrupts=1", "--out", "out")
    assert "typer" not in done.stderr
    assert ranks(folder / "out")[1]["status"] == "interrupted"


@pytest.mark.full
def test_a_restart_has_its_own_records(folder: Path) -> None:
    done = run(folder, "args.fails=1", "args.restarts=true", "--max-restarts", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert [(row["restart"], row["rank"]) for row in ranks(folder / "out")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {row["status"] for row in ranks(folder / "out")[2:]} == {"completed"}
    assert (folder / "out" / "restart_1" / "rank_1" / "result.json").exists()


@pytest.mark.full
@pytest.mark.parametrize(("failing", "sends"), [(0, 0), (1, 0), (0, int(signal.SIGKILL))])
def test_which_was_first_whatever_the_ranks_clocks(folder: Path, failing: int, sends: int) -> None:
    """Rank 1's is an hour behind."""
    done = run(folder, f"args.fails={failing}", f"args.sends={sends}", "args.behind=1", "--out", "out")
    assert done.returncode == 5
    assert f"rank {failing} failed first" in done.stderr
    assert ranks(folder / "out")[failing]["status"] == "failed"


@pytest.mark.full
def test_one_rank(folder: Path) -> None:
    done = run(folder, "--nproc", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    ((row,), made) = ranks(folder / "out"), {path.name for path in folder.iterdir()}
    assert (row["rank"], row["restart"], row["folder"], row["status"]) == (0, 0, "rank_0", "completed")
    assert made - {"__pycache__"} == {"entry.py", "out", "two.yaml"}


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_ended_from_outside(folder: Path, number: signal.Signals) -> None:
    words = command("args.sleeps=60", "--out", "out")
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "is on" in line:
                break
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else 128 + number)
    assert {row["status"] for row in ranks(folder / "out")} == {"interrupted"}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent has ended")
def test_ranks_end_with_a_launching_process_that_is_killed(folder: Path) -> None:
    """The next one removes what it could not."""
    words, temporary = command("args.sleeps=60", "--out", "out"), folder / "temporary"
    temporary.mkdir()
    more: dict[str, Any] = {"cwd": folder, "env": os.environ | {"TMPDIR": str(temporary)}, "text": True}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more) as process:
        assert process.stdout is not None
        found: list[Path] = []
        for line in process.stdout:
            if "is on" in line:
                found.append(Path("/proc", line.split()[-1]))
            if len(found) == 2:
                break
        process.kill()
        end = time.monotonic() + 30
        while any(map(_is_running, found)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not any(map(_is_running, found))
    assert [*temporary.glob("msctx-run-*")]
    assert subprocess.run(command("--out", "again"), timeout=300, check=False, **more).returncode == 0
    assert not [*temporary.glob("msctx-run-*")]


def _is_running(process: Path) -> bool:
    """Or nobody has yet asked how it has ended."""
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nnodes", "two"], "--nnodes: 'two' is not a number of nodes"),
        (["--nnodes", "3:2"], "'3:2' is not a number of nodes"),
        (["--nnodes", "2"], "--rdzv: is missing"),
        (["--nnodes", "2", "--rdzv", "localhost:29999"], "--out: is missing"),
        (["--rdzv", "localhost:99999"], "--rdzv: 'localhost:99999' names no port"),
        (["--run-id", "a/b c"], "--run-id: 'a/b c' cannot be the name of a folder"),
        (["--rdzv", "foo"], "--rdzv: 'foo' names no port"),
        (["determinstic=ON"], "did you mean deterministic?"),
        (["--nproc", "0"], "greater than or equal to 1"),
    ],
)
def test_mistakes(
    folder: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["run", "two.yaml", "--nproc", "2", *words])
    assert end.value.code == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-restarts", "3"], "--max-restarts: needs --nproc"),
        (["--nnodes", "2", "--rdzv", "a:1"], "--rdzv: needs --nproc"),
    ],
)
def test_what_only_ranks_take(folder: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", str(folder / "two.yaml"), *words])
    assert end.value.code == 2
    assert expected in capsys.readouterr().err


def test_nodes() -> None:
    assert Launch(2).nodes == (1, 1)
    assert Launch(2, "2:4", "host:1").nodes == (2, 4)
    with pytest.raises(OptionError, match="--nnodes"):
        _ = Launch(2, "0").nodes
