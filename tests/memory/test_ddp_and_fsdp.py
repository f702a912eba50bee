"""What two ranks send under options of communication, and when: DistributedDataParallel and FSDP2."""

from pathlib import Path

import pytest
from ranks import two_ranks

BODY = """
from torch.nn.parallel import DistributedDataParallel as DDP
from msctx.memory import ddp_and_fsdp_communication

POSTPONED, BUNDLED = "parallel_speed_up_json_path.enable_grad_comm_opt", "parallel_speed_up_json_path.enable_task_opt"
SIZES = [32 * 32 + 32] * 4

def parallel(**options):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)]), bucket_cap_mb=0.004, **options)
    for _ in range(2):
        step(model)  # DDP decides about its buckets in the first
    return model

def step(model, number=1):
    model.zero_grad()
    model(torch.full((2, 32), number / 4 + dist.get_rank())).square().sum().backward()

def seen(model, number=1):
    "The events of a backward pass, and its gradients"
    model.zero_grad()
    loss = model(torch.full((2, 32), number / 4 + dist.get_rank())).square().sum()
    return events(loss.backward), [p.grad.clone() for p in model.parameters()]

def sent(found):
    return [event for event in found if event[0] == "allreduce"]

def are_apart(found):
    "Whether all that is sent is sent after all products"
    return found.index(sent(found)[0]) > max(i for i, (name, _) in enumerate(found) if name == "mm")
"""


@pytest.mark.full
def test_gradients_are_reduced_when_and_as_the_options_say(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        BODY
        + """
def test(rank):
    for more in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        model = parallel(**more)
        unasked, expected = seen(model)
        assert [size for _, size in sent(unasked)] == SIZES and not are_apart(unasked), unasked
        group = model.process_group

        def check(*, postponed=False, bundled=False):
            found, gradients = seen(model)
            assert all(map(torch.equal, gradients, expected))
            assert [size for _, size in sent(found)] == ([sum(SIZES)] if bundled else SIZES), found
            assert are_apart(found) is (postponed or bundled), found

        for options, what in (
            ({"hcom_parallel": False}, {"postponed": True}),
            ({POSTPONED: False}, {"postponed": True}),
            ({BUNDLED: True}, {"bundled": True}),
            ({BUNDLED: True, "hcom_parallel": False}, {"bundled": True}),
            ({"hcom_parallel": True, POSTPONED: True, BUNDLED: False}, {}),
        ):
            with msctx.context(**options).watch(model) as outer:
                check(**what)
                with msctx.context(**{POSTPONED: True, "hcom_parallel": True, BUNDLED: False}):
                    check()
                    with msctx.context(**{POSTPONED: False}):
                        check(postponed=True)
                    check()
                check(**what)
            check()
        assert model.process_group is group

    # compiled models are acted on, too
    model = parallel()
    compiled = torch.compile(model, backend="aot_eager")
    gradients = []
    for options, sizes in (({}, SIZES), ({"hcom_parallel": False}, SIZES), ({BUNDLED: True}, [sum(SIZES)]), ({}, SIZES)):
        with msctx.context(**options).watch(compiled):
            model.zero_grad()
            found = events(lambda: compiled(torch.full((2, 32), 1.0 + rank)).sum().backward())
        gradients.append([p.grad.clone() for p in model.parameters()])
        assert [size for _, size in sent(found)] == sizes and are_apart(found) is bool(options), found
    assert all(all(map(torch.equal, gradients[0], other)) for other in gradients)

    # large bundles are sent while the backward pass computes
    model = parallel()
    _, expected = seen(model)
    ddp_and_fsdp_communication.BUNDLE = 2 * 4 * SIZES[0]
    with msctx.context(**{BUNDLED: True}).watch(model):
        found, gradients = seen(model)
    assert all(map(torch.equal, gradients, expected))
    assert [size for _, size in sent(found)] == [2 * SIZES[0]] * 2 and not are_apart(found), found
""",
    )


@pytest.mark.full
def test_what_programs_do_with_data_parallel_models(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        BODY
        + """
from torch.utils.checkpoint import checkpoint

class Some(nn.Module):
    "Parameters that a rank does not use, and blocks whose backward pass runs inside another"
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.unused = nn.Linear(32, 32)
        self.reentrant = False
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.reentrant else block(x)
        return x if dist.get_rank() else self.unused(x)

def test(rank):
    both = {"hcom_parallel": False, BUNDLED: True}
    torch.manual_seed(0)
    model = DDP(Some(), bucket_cap_mb=0.004, find_unused_parameters=True)
    step(model), step(model)
    _, expected = seen(model)
    for options in ({"hcom_parallel": False}, {BUNDLED: True}, both):
        with msctx.context(**options).watch(model):
            found, gradients = seen(model)
            assert are_apart(found)
            assert all(map(torch.equal, gradients, expected))
            with model.no_sync():
                assert not sent(events(lambda: step(model)))

    # backward passes inside a backward pass
    inner = Some()
    inner.unused, inner.reentrant = nn.Identity(), True
    model = DDP(inner, bucket_cap_mb=0.004, static_graph=True)
    x = torch.ones(2, 32, requires_grad=True)
    def run():
        model.zero_grad()
        model(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]
    run(), run()
    expected = run()
    for options in ({"hcom_parallel": False}, {BUNDLED: True}, both):
        with msctx.context(**options).watch(model):
            assert all(map(torch.equal, run(), expected))

""",
    )


@pytest.mark.full
def test_hooks_of_programs_stay_and_are_named(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        BODY
        + """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

def test(rank):
    python, builtin = parallel(), parallel()
    python.register_comm_hook(None, default_hooks.allreduce_hook)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    for model, hook in ((python, "allreduce_hook"), (builtin, "ALLREDUCE")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with msctx.context(hcom_parallel=False).watch(model):
                assert not are_apart(seen(model)[0])
        (text,) = [str(one.message) for one in caught]
        assert hook in text and "enable_grad_comm_opt" in text, text
""",
    )


SHARDED = """
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
        SHARDED
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
        SHARDED
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
