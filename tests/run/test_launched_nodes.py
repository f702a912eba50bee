"""`msctx run --nproc 1 --nnodes 2`: two agents on this machine, whose ranks start anew together."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched import ENTRY as ENTRY
from launched import EXPERIMENT as EXPERIMENT
from launched import command, ranks, run
from torch.distributed import HashStore, PrefixStore
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from msctx.options import Layer, carried
from msctx.run import launch


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
