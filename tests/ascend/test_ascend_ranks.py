"""Two ranks over HCCL: what they compute together under options, and what reaches HCCL."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PREPARE = """
import os, sys, warnings
import torch, torch_npu, msctx
import torch.distributed as dist
from boundary import calls
rank = int(sys.argv[1])
msctx.set_context(device_target="Ascend", device_id=rank, hccl_timeout=600, deterministic="ON")
dist.init_process_group("hccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
"""
END = """
dist.barrier()  # the store is that of rank 0
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def two_ranks(ascend_machine: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., str]:
    def run(code: str, **env: str) -> str:
        program = PREPARE + textwrap.dedent(code) + END
        words = [(sys.executable, "-c", program, str(rank), str(tmp_path / "store")) for rank in (0, 1)]
        variables = ascend_machine(env={"TMPDIR": str(tmp_path), **env})
        ranks = [
            subprocess.Popen(one, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in words
        ]
        try:
            told = "\n".join([rank.communicate(timeout=300)[0] for rank in ranks])
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], told
        return told

    return run


def test_two_ranks_compute_together(two_ranks: Callable[..., str]) -> None:
    told = two_ranks("""
        backend = dist.group.WORLD._get_backend(torch.device("npu"))
        assert backend.options._timeout.total_seconds() == 630
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
    """)
    assert "HCCL execution timeout" not in told, "torch_npu warns where its watchdog does not wait longer than HCCL"


def test_gradients_are_reduced_beside_the_backward_pass_after_it_or_together(two_ranks: Callable[..., str]) -> None:
    """Without torch_npu's queue of calls, from which collectives and operators arrive in no certain order."""
    two_ranks(
        """
        torch.manual_seed(0)
        inner = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)]).npu()
        model = torch.nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.004)  # a bucket for each layer

        def seen():
            '''A backward pass: p for a product, r for a message. How many elements messages have. Gradients.'''
            model.zero_grad()
            loss = model(torch.full((2, 32), 0.25 + rank).npu()).square().sum()
            calls()
            loss.backward()
            found = calls("HcclAllReduce", "aclnnMm", "aclnnMatmul")
            marks = "".join("r" if call.startswith("Hccl") else "p" for call in found)
            sizes = [int(call[:-1].split(", ")[1]) for call in found if call.startswith("Hccl")]
            return marks, sizes, [parameter.grad.cpu() for parameter in model.parameters()]

        seen(), seen()  # after the first one DDP arranges its buckets anew
        beside, sizes, expected = seen()
        assert "rp" in beside and sizes == [32 * 33] * 4, (beside, sizes)

        def check(options, *, is_beside=False, together=False):
            with msctx.context(**options).watch(model):
                marks, found, gradients = seen()
            assert ("rp" in marks) is is_beside and "p" in marks, (options, marks)
            assert found == ([sum(sizes)] if together else sizes), (options, found)
            assert all(map(torch.equal, gradients, expected)), options

        parts = lambda **keys: {"parallel_speed_up_json_path": keys}
        check({"hcom_parallel": False})
        check(parts(enable_grad_comm_opt=False))
        check(parts(enable_task_opt=True), together=True)
        with msctx.context(hcom_parallel=False, **parts(enable_task_opt=True)).watch(model):
            check({"hcom_parallel": True, **parts(enable_grad_comm_opt=True, enable_task_opt=False)}, is_beside=True)
        assert seen()[:2] == (beside, sizes)
        """,
        TASK_QUEUE_ENABLE="0",
    )


def test_replicas_are_trained_and_compared(two_ranks: Callable[..., str]) -> None:
    two_ranks("""
        torch.manual_seed(rank)
        inner = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).npu()
        model = torch.nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weights = [torch.empty_like(inner[2].weight) for _ in range(2)]

        def step():
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3).npu()).sum()
            calls()
            loss.backward()
            found = calls("HcclAllReduce")
            optimizer.step()
            return len(found)

        assert step() == 1, "one bucket"
        dist.all_gather(weights, inner[2].weight.detach())
        assert torch.equal(weights[0].cpu(), weights[1].cpu())

        def told(differ):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                with msctx.context(replica_check=1) as ctx:
                    ctx.watch(model)
                    step()
                    if differ and rank:
                        with torch.no_grad():
                            inner[2].weight[0, 0] += 1
                    step()
                    dist.barrier()
            return [str(one.message) for one in found if "replica_check" in str(one.message)]

        assert told(False) == []
        found = told(True)
        store = dist.distributed_c10d._get_default_store()
        store.set(f"told{rank}", "\\n".join(found))
        texts = store.get("told0").decode() + store.get("told1").decode()
        assert "2.weight differs between rank 0 and rank 1" in texts, texts
    """)
