"""Torch's own switches, each alone: coupled setters keep their neighbours, readers change nothing."""

from __future__ import annotations

import threading

import pytest
import torch

from msctx.switches import SWITCHES, present, read_all
from msctx.switches.base import Switch

WRITABLE = {
    "torch.deterministic": True,
    "torch.deterministic.warn_only": True,
    "torch.deterministic.fill_uninitialized_memory": False,
    "torch.mkldnn.deterministic": True,
    "torch.num_threads": 1,
    "torch.anomaly_mode": True,
    "torch.anomaly_mode.check_nan": False,
    "torch.autograd.multithreading": False,
    "torch.default_device": "meta",
    "torch.nn.max_call_depth": 7,
    "env.NCCL_ALGO": "Tree",  # no option sets it: what `msctx run` left of another test is another value
    "env.DISABLE_PTXAS_OPT": "1",
    "env.ACL_STREAM_TIMEOUT": "5",
    "env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG": "x",
    "torch.dynamo.apart": "x",
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


def test_every_writable_switch_that_is_here_and_can_be_put_back_is_covered():
    elsewhere = (
        "torch.accelerator.",
        "torch.cuda.",
        "torch.cudnn.",
        "torch.distributed.nccl",
        "torch.npu.",
        "torch.profiler",
        "torch.inductor.",
        "torch.dynamo.force_eager",
        "torch.compiler.cache",
        "torch.functorch.",
        "torch.dataloader.",
        "torch.profiler",
        "native.",
        "models.",
        "observers.",
        "graph.",
        "session.",
        "rng.",
        "torch.profiler",
    )
    found = {s.name for s in present() if s.write and s.restore == "exact" and not s.name.startswith(elsewhere)}
    assert found == set(WRITABLE)


def test_an_observed_switch_refuses_to_be_written():
    with pytest.raises(AssertionError, match="only observed"):
        Switch(name="x", read=lambda: 1).set(2)


def test_the_depth_of_calls_is_counted_per_thread():
    switch, model = SWITCHES["torch.nn.max_call_depth"], torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()))
    errors: list[Exception] = []

    def call() -> None:
        try:
            model(torch.ones(1))
        except Exception as error:
            errors.append(error)

    switch.set(3)
    try:
        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        switch.set(2)
        call()
        assert "Exceed function call depth limit 2 in ReLU.forward" in str(errors[0])
        switch.set(3)
        call()  # the failed call left the count where it was
        assert len(errors) == 1
    finally:
        switch.set(None)
