"""reserve_class_name_in_scope in profiles: a range for each call of a module, by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

import msctx


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    assert not nn_module._global_forward_pre_hooks
    assert not nn_module._global_forward_hooks


def profiled(folder: Path, net: nn.Module, **more: Any) -> list[dict[str, Any]]:
    options = json.dumps({"output": str(folder), "training_trace": "on", "task_trace": "on"})
    with msctx.context(profiling_mode=True, profiling_options=options, **more):
        net(torch.ones(2, 3)).sum().backward()
    (path,) = folder.glob("*.pt.trace.json")
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]


def ranges(events: list[dict[str, Any]]) -> list[str]:
    return [e["name"] for e in sorted(events, key=lambda e: e["ts"]) if e["name"].startswith("Default")]


def test_with_classes(tmp_path: Path) -> None:
    assert ranges(profiled(tmp_path, Net(), reserve_class_name_in_scope=True)) == [
        *("Default", "Default/layers/0-Linear", "Default/layers/1-Linear"),
        *("Default/head-Sequential", "Default/head-Sequential/0-ReLU", "Default/head-Sequential/1-Linear"),
    ]


def test_without_classes(tmp_path: Path) -> None:
    assert ranges(profiled(tmp_path, Net(), reserve_class_name_in_scope=False)) == [
        *("Default", "Default/layers/0", "Default/layers/1", "Default/head", "Default/head/0", "Default/head/1"),
    ]


def test_there_are_none_where_nobody_asks(tmp_path: Path) -> None:
    assert ranges(profiled(tmp_path, Net())) == []


def test_the_operators_of_a_module_lie_in_its_range(tmp_path: Path) -> None:
    events = profiled(tmp_path, Net(), reserve_class_name_in_scope=False)
    (relu,) = (event for event in events if event["name"] == "aten::relu")
    (module,) = (event for event in events if event["name"] == "Default/head/0")
    assert module["ts"] <= relu["ts"]
    assert relu["ts"] + relu["dur"] <= module["ts"] + module["dur"]


def test_a_module_that_raises_ends_its_range(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    class Trying(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(ValueError, match="no"):
                self.failing(x)
            return super().forward(x)

    net = Trying()
    net.failing = Failing()
    found = ranges(profiled(tmp_path, net, reserve_class_name_in_scope=True))
    assert found[:3] == ["Default", "Default/failing-Failing", "Default/layers/0-Linear"]


def test_compiled_code_has_the_range_of_its_model(tmp_path: Path) -> None:
    compiled = torch.compile(Net(), backend="aot_eager")
    compiled(torch.ones(2, 3))
    assert ranges(profiled(tmp_path, compiled, reserve_class_name_in_scope=True)) == ["Default"]
