"""What reaches HCCL of a group, and when DDP has its gradients reduced."""

import pytest

pytestmark = pytest.mark.full


def test_gradients_are_reduced_beside_the_backward_pass_after_it_or_together(ascend):
    """Without torch_npu's queue of calls, from which collectives and operators arrive in no certain order."""
    ascend(
        """
        import torch.distributed as dist
        dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
        inner = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)]).npu()
        model = torch.nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.004, init_sync=False)  # a bucket for each layer
        model(torch.ones(2, 32).npu()).sum().backward()
        assert "HcclCommInitRootInfo(1, 0)" in calls("Hccl")

        def seen():
            '''A backward pass: p for a product, r for a message. How many elements messages have.'''
            model.zero_grad()
            loss = model(torch.full((2, 32), 0.25).npu()).square().sum()
            calls()
            loss.backward()
            found = calls("HcclAllReduce", "aclnnMm", "aclnnMatmul")
            marks = "".join("r" if call.startswith("Hccl") else "p" for call in found)
            sizes = [int(call[:-1].split(", ")[1]) for call in found if call.startswith("Hccl")]
            return marks, sizes

        seen(), seen()  # after the first one DDP arranges its buckets anew
        beside, sizes = seen()
        assert "rp" in beside and sizes == [32 * 33] * 4, (beside, sizes)

        def check(options, *, is_beside=False, together=False):
            with msctx.context(**options).watch(model):
                marks, found = seen()
            assert ("rp" in marks) is is_beside and "p" in marks, (options, marks)
            assert found == ([sum(sizes)] if together else sizes), (options, found)

        parts = lambda **keys: {"parallel_speed_up_json_path": keys}
        check({"hcom_parallel": False})
        check(parts(enable_grad_comm_opt=False))
        check(parts(enable_task_opt=True), together=True)
        with msctx.context(hcom_parallel=False, **parts(enable_task_opt=True)).watch(model):
            check({"hcom_parallel": True, **parts(enable_grad_comm_opt=True, enable_task_opt=False)}, is_beside=True)
        assert seen() == (beside, sizes)
        """,
        env={"TASK_QUEUE_ENABLE": "0"},
    )
