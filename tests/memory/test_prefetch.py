"""enable_opt_shard_comm_opt and recompute_comm_overlap on FSDP2: before which product two ranks gather which weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import two_ranks

BODY = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint

FORWARD, BACKWARD = "parallel_speed_up_json_path.enable_opt_shard_comm_opt", "parallel_speed_up_json_path.recompute_comm_overlap"

class Net(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.blocks, self.again = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]), again
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x

def sharded(again=False):
    torch.manual_seed(0)
    model, mesh = Net(again), init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def passes(model):
    "What is gathered (g) and multiplied (m), forward and backward"
    short = {"allgather_base": "g", "mm": "m"}
    loss = []
    forward = events(lambda: loss.append(model(torch.ones(2, 8, requires_grad=True)).square().sum()))
    return ["".join(short.get(name, "") for name, _ in found) for found in (forward, events(loss[0].backward))]

def lists(model):
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return [(s._states_to_forward_prefetch, s._states_to_backward_prefetch) for s in states]
"""


@pytest.mark.full
def test_weights_are_gathered_when_the_options_say(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        BODY
        + """
def test(rank):
    model = sharded()
    found = [id(one) for pair in lists(model) for one in pair]
    just_before, ahead = "gmgmgmgm", "ggmgmgmm"
    back, back_ahead = "gmmgmmgmmgmm", "ggmmgmmgmmmm"
    assert passes(model) == passes(model) == [just_before, back_ahead]
    gradients = [p.grad.full_tensor() for p in model.parameters()]
    for options, expected in (
        ({FORWARD: True}, [ahead, back_ahead]),
        ({FORWARD: False}, [just_before, back_ahead]),
        ({BACKWARD: True}, [just_before, back_ahead]),
        ({BACKWARD: False}, [just_before, back]),
        ({FORWARD: True, BACKWARD: False}, [ahead, back]),
    ):
        model.zero_grad()
        with msctx.context(**options).watch(model):
            assert passes(model) == expected, (options, passes(model))
            with msctx.context(**{FORWARD: False, BACKWARD: True}):
                assert passes(model) == [just_before, back_ahead]
            assert passes(model) == expected
        assert [id(one) for pair in lists(model) for one in pair] == found
    model.zero_grad()
    with msctx.context(**{FORWARD: True, BACKWARD: False}).watch(model):
        passes(model), passes(model)
    assert all(torch.equal(p.grad.full_tensor(), g) for p, g in zip(model.parameters(), gradients))

    # a block is computed again while the weights of the one before are on their way, or all before they are requested
    model = sharded(again=True)
    for on, expected in ((True, "ggm"), (False, "gmmmg")):
        with msctx.context(**{BACKWARD: on}).watch(model):
            assert passes(model)[1].startswith(expected), passes(model)
""",
    )


@pytest.mark.full
def test_what_a_program_has_set_comes_back_and_stays(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        BODY
        + """
def test(rank):
    model = sharded()
    first, second, third, _ = model.blocks
    first.set_modules_to_forward_prefetch([second, third])
    found = [id(one) for pair in lists(model) for one in pair]
    with msctx.context(**{FORWARD: False, BACKWARD: False}).watch(model):
        assert lists(model)[1][0] == []
        with msctx.context().watch(model.blocks), msctx.context().watch(first):
            pass
        assert lists(model)[2][1] == [second._get_fsdp_state()], "the model around is still watched"
    assert [id(one) for pair in lists(model) for one in pair] == found
    with msctx.context(**{FORWARD: True}).watch(model):
        second.set_modules_to_forward_prefetch([])
        mine = second._get_fsdp_state()._states_to_forward_prefetch
    assert second._get_fsdp_state()._states_to_forward_prefetch is mine
    assert passes(model)[0].startswith("gggm")

    # where gradients are to wait, FSDP's do not, which is reported
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with msctx.context(hcom_parallel=False).watch(model):
            pass
    (text,) = [str(one.message) for one in caught]
    assert "no effect on FSDP modules" in text
""",
    )
