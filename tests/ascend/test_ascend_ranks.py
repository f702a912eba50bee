"""Two ranks over HCCL: what they compute together under options, and what reaches HCCL."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

RANK = """
import os, sys
import torch, torch_npu, msctx
import torch.distributed as dist
from boundary import calls
rank = int(sys.argv[1])
msctx.set_context(device_target="Ascend", device_id=rank, hccl_timeout=600, deterministic="ON")
dist.init_process_group("hccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
backend = dist.group.WORLD._get_backend(torch.device("npu"))
assert backend.options._timeout.total_seconds() == 600
mine, both = torch.full((4,), rank + 1.0).npu(), torch.zeros(8).npu()
calls()
dist.all_reduce(mine)
assert mine.cpu().tolist() == [3.0] * 4
found = calls("Hccl")
assert f"HcclCommInitRootInfo(2, {rank})" in found, found
assert [call for call in found if "Reduce" in call] == ["HcclAllReduce(float32, 4)"], found
mine += rank
dist.all_gather_into_tensor(both, mine)
assert both.cpu().tolist() == [3.0] * 4 + [4.0] * 4
dist.broadcast(mine, src=1)
assert mine.cpu().tolist() == [4.0] * 4
assert calls("HcclAll", "HcclBroad") == ["HcclAllGather(float32, 4)", "HcclBroadcast(float32, 4, 1)"]
sys.stdout.flush()
os._exit(0)
"""


def test_two_ranks_compute_together(ascend_machine: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    code = textwrap.dedent(RANK)
    words = [(sys.executable, "-c", code, str(rank), str(tmp_path / "store")) for rank in (0, 1)]
    variables = ascend_machine(env={"TMPDIR": str(tmp_path)})
    ranks = [subprocess.Popen(one, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in words]
    try:
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(told)
