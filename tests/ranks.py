"""Two ranks on this machine: for tests of what they send each other, in which order, seen by torch's own dispatch."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_PROGRAM = """
import datetime, os, sys, tempfile, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
import msctx

class Events(TorchDispatchMode):
    "The products and collectives, in their order; with how many elements"
    def __init__(self):
        super().__init__()
        self.list = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().partition("::")[2].strip("_")
        if function.namespace == "c10d":
            tensor = args[0] if isinstance(args[0], torch.Tensor) else args[0][0]
            self.list.append((name, tensor.numel()))
        elif name in ("mm", "addmm"):
            self.list.append(("mm", 0))
        return function(*args, **(kwargs or {}))

def events(call):
    with Events() as seen:
        call()
    return seen.list

@BODY@

def rank(number, file):
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method="file://" + file, rank=number, world_size=2, timeout=wait)
    test(number)
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank, (folder + "/store",), nprocs=2, start_method="fork")
"""


_AT_ONCE = """
sys.stderr.flush()
os._exit(0)  # torch 2.13 may abort while it takes its process groups apart
"""


def torchrun(count: int, program: Path) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), str(program)]


def reports(folder: Path, program: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What two ranks of *program* have written as JSON to the files ``0`` and ``1`` beside it, and their standard error."""
    (folder / "train.py").write_text(textwrap.dedent(program) + _AT_ONCE)
    done = subprocess.run(torchrun(2, folder / "train.py"), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = (json.loads((folder / rank).read_text()) for rank in "01")
    return first, second, done.stderr


def two_ranks(folder: Path, body: str) -> None:
    """Run the function ``test(rank)`` of *body* on each; a failure is this test's."""
    program = folder / "ranks.py"
    program.write_text(_PROGRAM.replace("@BODY@", textwrap.dedent(body)))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=240, check=False, env=os.environ, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-6000:]
