"""`msctx run FILE --nproc N`: one plan for all ranks, a record for each, and the rank that failed first."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistStoreError, HashStore, PrefixStore
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from msctx.cli import main
from msctx.errors import OptionError
from msctx.options import Layer, carried
from msctx.run import launch
from msctx.run.launch import Launch
from msctx.switches.generators import of_rank

EXPERIMENT = """
context: {deterministic: "ON", seed: 3}
experiment: {name: two, entry: entry.py:main}
record: {dir: runs}
"""
ENTRY = """
import os, time, torch, torch.distributed as dist
def main(run, fails=-1, sends=0, exits=0, restarts=False, sleeps=0.0, interrupts=-1, behind=-1):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == behind:
        now = time.time
        time.time = lambda: now() - 3600
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if restarts and run.dir.parent.name == "restart_1":
        fails, sleeps = -1, 0
    print(f"rank {rank} is on {os.getpid()}\\n", end="", flush=True)  # one write: the ranks share the pipe
    run.log(shown_by=rank)
    if rank == fails:
        if exits:
            os._exit(exits)
        if sends:
            os.kill(os.getpid(), sends)
        raise ValueError("it is rank one")
    time.sleep(sleeps)
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    if rank == interrupts:
        raise KeyboardInterrupt
    dist.destroy_process_group()
    on, seed = torch.are_deterministic_algorithms_enabled(), torch.initial_seed()
    threads, variables = torch.get_num_threads(), began_with(*os.environ["WATCHED"].split()) if "WATCHED" in os.environ else {}
    return {"total": total.item(), "on": on, "seed": seed, "count": count, "threads": threads, "variables": variables}
def began_with(*names):
    "What a program has before its first instruction, and has still"
    with open("/proc/self/environ") as file:
        found = dict(line.split("=", 1) for line in file.read().split("\\0") if "=" in line)
    return {name: found[name] for name in names if found.get(name) == os.environ.get(name) != None}
"""
LIKELY = """
import sys, msctx.devices
msctx.devices.likely = lambda: ("cpu", "cuda", "ascend")
from msctx.cli import main
main(sys.argv[1:])
"""
"""msctx, on a machine whose drivers are loaded."""


def command(*words: str, program: tuple[str, ...] = ("-m", "msctx")) -> list[str]:
    return [sys.executable, *program, "run", "two.yaml", "--nproc", "2", *words]


def run(folder: Path, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    words = command(*words, **how)
    return subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=folder, env=env, check=False)


def two_nodes(
    folder: Path, *words: str, nodes: str = "2", more: tuple[dict[str, str], ...] = ({}, {})
) -> list[tuple[int, str]]:
    """An agent for each of two nodes, with one rank; the exit code and the error output of each.

    Where one node is enough to begin with, the other one comes when the first rank runs.

    *more*: variables of each.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    words = command("--nproc", "1", "--nnodes", nodes, "--rdzv", place, "--out", "out", *words)
    agents: list[subprocess.Popen[str]] = []
    try:
        for variables in more:
            if agents and nodes != "2":
                assert agents[0].stdout is not None
                assert any("is on" in line for line in agents[0].stdout)
            env = os.environ | variables
            agents.append(
                subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        return [(agent.returncode, err) for agent in agents for _, err in [agent.communicate(timeout=300)]]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def ranks(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "ranks.json").read_text())["ranks"]
    return found


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
@pytest.mark.parametrize("nodes", [1, 2])
def test_why_a_rank_has_failed_is_known_after_a_restart(folder: Path, nodes: int) -> None:
    """Whichever node is the last to write ranks.json."""
    words = ["args.fails=1", f"args.sends={int(signal.SIGKILL)}", "args.restarts=true", "--max-restarts", "1"]
    if nodes == 2:
        assert [code for code, _ in two_nodes(folder, "args.sleeps=600", *words)] == [0, 0]
    else:
        assert run(folder, *words, "--out", "out").returncode == 0
    killed = ranks(folder / "out")[1]
    assert (killed["rank"], killed["status"], killed["reason"]) == (1, "failed", "signal 9 (SIGKILL) ended it")
    assert json.loads((folder / "out" / "rank_1" / "result.json").read_text())["reason"] == killed["reason"]


@pytest.mark.full
def test_a_restart_on_two_nodes(folder: Path) -> None:
    """Only the agent whose rank has failed counts it; for the other one a node has gone and come again."""
    ended = two_nodes(folder, "args.fails=1", "args.restarts=true", "args.sleeps=600", "--max-restarts", "1")
    assert [code for code, _ in ended] == [0, 0], ended
    found = ranks(folder / "out")
    assert [(row["restart"], row["rank"], row["status"]) for row in found] == [
        *((0, 0, "interrupted"), (0, 1, "failed")),
        *((1, 0, "completed"), (1, 1, "completed")),
    ]
    results = [json.loads((folder / "out" / row["folder"] / "result.json").read_text()) for row in found[2:]]
    assert [one["count"] for one in results] == ["0", "1"]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which a program's clock is ahead by AHEAD seconds."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", Path(__file__).with_name("clock.c"), "-o", library], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.full
@pytest.mark.parametrize("ahead", [3600, -3600], ids=["ahead", "behind"])
def test_a_restart_on_two_nodes_whose_clocks_differ(folder: Path, clock: dict[str, str], ahead: int) -> None:
    """Torch's agents take a node whose heartbeat is old by their own clock for one that has ended."""
    words = ["args.fails=1", "args.restarts=true", "args.sleeps=600", "--max-restarts", "1"]
    ended = two_nodes(folder, *words, more=({}, clock | {"AHEAD": str(ahead)}))
    assert [code for code, _ in ended] == [0, 0], ended
    assert [(row["restart"], row["rank"], row["status"]) for row in ranks(folder / "out")] == [
        *((0, 0, "interrupted"), (0, 1, "failed")),
        *((1, 0, "completed"), (1, 1, "completed")),
    ]


@pytest.mark.full
@pytest.mark.parametrize(("failing", "sends"), [(0, 0), (1, 0), (0, int(signal.SIGKILL))])
def test_which_was_first_whatever_the_ranks_clocks(folder: Path, failing: int, sends: int) -> None:
    """Rank 1's is an hour behind."""
    done = run(folder, f"args.fails={failing}", f"args.sends={sends}", "args.behind=1", "--out", "out")
    assert done.returncode == 5
    assert f"rank {failing} failed first" in done.stderr


@pytest.mark.full
def test_two_nodes_of_which_one_fails_for_good(folder: Path) -> None:
    ended = two_nodes(folder, "args.fails=1", "--max-restarts", "1")
    assert [code for code, _ in ended] == [5, 5], ended
    assert any("rank 1 failed first" in err and "ValueError: it is rank one" in err for _, err in ended)
    assert not [err for _, err in ended if "torch/distributed/elastic" in err]
    assert {row["restart"] for row in ranks(folder / "out")} == {0, 1}


@pytest.mark.full
def test_a_node_that_comes_later(folder: Path) -> None:
    ended = two_nodes(folder, "args.restarts=true", "args.sleeps=600", nodes="1:2")
    assert [code for code, _ in ended] == [0, 0], ended
    assert [(row["restart"], row["rank"], row["status"]) for row in ranks(folder / "out")] == [
        *((0, 0, "interrupted"), (1, 0, "completed"), (1, 1, "completed")),
    ]


@pytest.mark.full
def test_one_rank(folder: Path) -> None:
    done = run(folder, "--nproc", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    ((row,), made) = ranks(folder / "out"), {path.name for path in folder.iterdir()}
    assert (row["rank"], row["restart"], row["folder"], row["status"]) == (0, 0, "rank_0", "completed")
    assert made - {"__pycache__"} == {"entry.py", "out", "two.yaml"}


class Shared(HashStore):  # type: ignore[misc]
    """As that of the agents, which has an address."""

    host, port = "node0", 29500


def test_agents_number_the_starts_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents, one after the other in each of three rounds of the rendezvous."""
    store, rounds, found = Shared(), itertools.count(), []

    def create(parameters: Any) -> Any:
        assert parameters.backend == "c10d"

        def next_rendezvous() -> Any:
            turn, rank = divmod(next(rounds), 2)
            return SimpleNamespace(store=PrefixStore(f"round {turn}", store), rank=rank)

        return SimpleNamespace(next_rendezvous=next_rendezvous, _state_holder=SimpleNamespace(_sanitize=None))

    monkeypatch.setattr(rendezvous_handler_registry, "create_handler", create)
    agents = [launch._rendezvous(SimpleNamespace(run_id="x", backend="msctx")) for _ in range(2)]
    for turn in range(3):
        for number, agent in enumerate(agents):
            monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer(), plan=f"of agent {number}, turn {turn}"))
            agent.next_rendezvous()
            found.append(carried.read(os.environ))
    assert [plan["restart"] for plan in found] == [0, 0, 1, 1, 2, 2]
    assert {plan["plan"] for plan in found} == {"of agent 0, turn 0"}
    assert [plan["store"] for plan in found[1::2]] == [["node0", 29500, f"msctx/ranks/x/{restart}"] for restart in range(3)]


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
