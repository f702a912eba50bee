"""An experiment that `msctx run --nproc 2` runs, and what became of its ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def command(*words: str, program: tuple[str, ...] = ("-m", "msctx")) -> list[str]:
    return [sys.executable, *program, "run", "two.yaml", "--nproc", "2", *words]


def run(folder: Path, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    words = command(*words, **how)
    return subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=folder, env=env, check=False)


def ranks(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "ranks.json").read_text())["ranks"]
    return found
