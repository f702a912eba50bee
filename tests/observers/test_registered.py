"""Where no observer is on, nothing of theirs is registered: as torch and Python say, not as msctx does."""

import json
from pathlib import Path
from typing import Any

import pytest
import registries
import torch
from torch import nn

import msctx
from msctx.native import core


def train(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


OPTIONS: dict[str, dict[str, Any]] = {
    "dump": {"session": {"enable_dump": True, "dump_path": ".", "dump_layer": "relu"}},
    "dump of msProbe": {"session": {"enable_dump": True, "dump_path": "."}, "dump_format": "msprobe"},
    "overflow": {"session": {"enable_dump_debug": True, "dump_path": "."}},
    "errors": {"enable_exception_dump": 1},
    "recorder": {"env_config_path": "rdr.json"},
    "watchdog": {"op_timeout": 900},
    "exceptions": {"deterministic": "ON", "deterministic_except": "relu"},
    "gradients": {"check_bprop": True, "check_bprop_values": True},
    "print": {"print_file_path": "prints.bin"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_scope_that_has_closed_leaves_nothing_registered(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rdr.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": str(tmp_path)}}))
    core.load()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    train(net)
    before, kernels = registries.registered(net), registries.dispatched()
    with msctx.context(**OPTIONS[name]).watch(net):
        train(net)
        inside = registries.registered(net)
        with pytest.raises(KeyError), msctx.context(**OPTIONS[name]):
            raise KeyError
    assert name == "print" or inside != before, "the registries show it while it is on"
    assert registries.registered(net) == before
    assert registries.dispatched() == kernels


def test_nothing_is_registered_where_no_observer_is_asked_for(run_forked: Any) -> None:
    done = run_forked("""
        import sys
        sys.path.insert(0, "tests/observers")
        import registries, torch
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        before = registries.registered(net), registries.dispatched()
        assert not any(before[0][name] for name in ("operators of the process", "operators of the thread"))
        import msctx
        from msctx.observers import operator_events
        with msctx.context(deterministic="ON", matmul_allow_tf32=False).watch(net):
            net(torch.ones(2, 4)).sum().backward()
            assert (registries.registered(net), registries.dispatched()) == before
        """)
    assert done.returncode == 0, done.stderr
