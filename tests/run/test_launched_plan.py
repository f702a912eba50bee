"""A rank of `msctx run --nproc` that comes to another plan than the launching process reports the rows that differ."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
EXPERIMENT = """
context: {conv_fprop_algo: direct, deterministic: "ON"}
experiment: {name: two, entry: entry.py:main}
"""
ENTRY = """
def main():
    return {"ran": True}
"""
WITHOUT_COMPILER = """
import os
if os.environ.get("RANK") == "1":
    os.environ |= {"CXX": "/no/compiler", "MSCTX_CACHE_DIR": os.environ["EMPTY"]}
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "msctx", "run", "two.yaml", "--out", "out", *words]


@pytest.mark.parametrize("strict", [False, True])
def test_a_rank_in_another_environment(folder: Path, strict: bool) -> None:
    """Rank 1 has no compiler, and a cache in which there is no native core."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(WITHOUT_COMPILER)
    env = os.environ | {"PYTHONPATH": str(folder / "site"), "EMPTY": str(folder / "empty")}
    words = command("--nproc", "2", f"strict={str(strict).lower()}")
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == (7 if strict else 0), done.stderr
    row = "conv_fprop_algo on cpu: launching process: 'direct', honoured (two.yaml:2:28); rank 1: 'direct', refused (two.yaml:2:28: "
    assert done.stderr.count("the same options give another plan on rank 1 than where it was launched:") == 1
    assert row in done.stderr
    assert "deterministic on cpu" not in done.stderr, "in which they do not differ"
    assert (folder / "out" / "rank_1" / "result.json").exists() != strict
    if not strict:
        found = differences(folder)
        assert found["native.convolution.cpu.conv_fprop_algo"] == {"a": "direct", "b": None}
        assert "torch.deterministic" not in found


def differences(folder: Path) -> dict[str, dict[str, object]]:
    """What ``msctx diff`` shows of the two ranks."""
    words = [sys.executable, "-m", "msctx", "diff", "out/rank_0", "out/rank_1", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_node_that_was_given_other_options(folder: Path) -> None:
    """The plan is that of the node that came first."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    words = command("--nproc", "1", "--nnodes", "2", "--rdzv", place)
    agents = [
        subprocess.Popen([*words, f"seed={seed}"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    try:
        ended = [(agent.returncode, errors) for agent in agents for errors in [agent.communicate(timeout=300)[1]]]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    assert [code for code, _ in ended] == [0, 0], ended
    (told,) = [errors for _, errors in ended if "than where it was launched" in errors]
    assert "seed on cpu: launching process: " in told
    assert len({row["plan"] for row in json.loads((folder / "out" / "ranks.json").read_text())["ranks"]}) == 2
