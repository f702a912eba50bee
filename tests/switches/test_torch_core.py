"""Torch's own switches, each alone: coupled setters keep their neighbours, readers change nothing."""

from __future__ import annotations

import pytest

from msctx.switches import EXACT, SWITCHES, present, read_all
from msctx.switches.torch_core import _anomaly, _deterministic

WRITABLE = {
    "torch.deterministic": "warn_only",
    "torch.deterministic.fill_uninitialized_memory": False,
    "torch.mkldnn.deterministic": True,
    "torch.num_threads": 1,
    "torch.anomaly_mode": "without check_nan",
    "torch.autograd.multithreading": False,
    "torch.default_device": "meta",
    "torch.nn.max_call_depth": 7,
    "env.NCCL_ALGO": "Tree",  # no option sets it: what `msctx run` left of another test is another value
    "env.DISABLE_PTXAS_OPT": "1",
    "env.ACL_STREAM_TIMEOUT": "5",
    "env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG": "x",
    "torch.dynamo.apart": {"x": True},
    "torch.dynamo.verbose": True,
    "torch.dynamo.skip_nnmodule_hook_guards": False,
    "torch.logs.dynamo": 10,
    "torch.logs.aot": 10,
    "torch.logs.inductor": 10,
    "torch.compiler.force_disable_caches": True,
    "torch.compiler.job_id": "x",
    "python.recursion_limit": 12345,
    "torch.flush_denormal": True,
    "torch.distributed.timeout": 60,
}


@pytest.mark.parametrize("name", WRITABLE)
def test_one_switch_moves_no_other(name):
    before, switch = read_all(), SWITCHES[name]
    state = switch.take()
    switch.set(WRITABLE[name])
    try:
        changed = {k for k, v in read_all().items() if v != before[k]}
    finally:
        switch.put_back(state)
    assert changed == {name}
    assert read_all() == before


@pytest.mark.parametrize("found", [(False, False), (False, True), (True, False), (True, True)])
def test_a_detail_is_restored_with_its_mode_also_while_that_is_off(found):
    for name, take in (("torch.deterministic", _deterministic), ("torch.anomaly_mode", _anomaly)):
        before, switch = take(), SWITCHES[name]
        switch.put_back(found)
        for value in (WRITABLE[name], True, False, switch.read()):
            switch.set(value)
            assert switch.read() == value
        switch.put_back(found)
        assert take() == found
        switch.put_back(before)


def test_every_writable_switch_that_is_here_and_can_be_put_back_is_covered():
    elsewhere = (
        "accelerator cuda cudnn distributed.nccl npu profiler inductor dynamo.force_eager compiler.cache functorch dataloader"
    )
    parts = ("native.", "models.", "observers.", "graph.", "session.", "rng.")
    found = {
        s.name
        for s in present()
        if s.write and s.restore in EXACT and not s.name.startswith((*(f"torch.{name}" for name in elsewhere.split()), *parts))
    }
    assert found == set(WRITABLE)
