"""What stands around the calls of modules: in which order, whatever order it comes and goes in, and what compiled code has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import msctx
from msctx.native import module_calls

X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    found = nn.Module.__call__
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    assert nn.Module.__call__ is found


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def noting(seen: list[str]) -> Callable[[str], module_calls.Around]:
    def made(name: str) -> module_calls.Around:
        def around(call: module_calls.Call, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return call(module, *args, **kwargs)

        return around

    return made


def test_they_come_and_go_in_any_order(noting: Any, seen: list[str]) -> None:
    first, second, outer = noting("first"), noting("second"), noting("outer")
    module = nn.ReLU()
    for around, place in ((outer, 2), (first, 0), (second, 1)):
        module_calls.put(around, place)
    module(X)
    assert seen == ["outer", "second", "first"]
    seen.clear()
    module_calls.take(outer)
    module_calls.take(first)
    module(X)
    assert seen == ["second"]
    ours = nn.Module.__call__
    module_calls.take(second)
    module(X)
    ours(module, X)
    assert seen == ["second"], "whoever has kept ours finds nobody"
    module_calls.put(first, 0)
    assert nn.Module.__call__ is ours, "by which compiled code knows it"
    module_calls.take(first)


def rules(tmp_path: Path, name: str, result: str = "bfloat16") -> dict[str, str]:
    (file := tmp_path / "dtypes.cfg").write_text(f"{name}::InputDtype:bfloat16,bfloat16,OutputDtype:{result}\n")
    return {"customize_dtypes": str(file)}


def test_a_model_that_was_compiled_before_is_entered_too(tmp_path: Path) -> None:
    """Dynamo has kept torch's own call of it."""
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    with msctx.context(**rules(tmp_path, "*")).watch(model) as ctx:
        assert compiled(X).dtype == torch.bfloat16
        assert model.compile(backend="eager") is None
        assert model(X).dtype == torch.bfloat16
    assert {row.module for row in ctx.precisions()} == {"*"}
    assert compiled(X).dtype == torch.float32


def test_a_module_that_is_named_after_it_was_compiled_is_compiled_anew(tmp_path: Path) -> None:
    """But not where nothing of it was inside compiled code."""
    model, other = nn.Sequential(nn.Sequential(nn.Linear(4, 4))), nn.Sequential(nn.Linear(4, 4))
    compiled = torch.compile(lambda x: model(x).float() + 1, backend="eager")
    graphs = []
    with msctx.context(**rules(tmp_path, "0")) as ctx:
        for watched in (None, other, model, model):
            if watched is not None:
                ctx.watch(watched)
            compiled(X)
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == 1
    assert graphs[2] == graphs[3] > 1
    assert {"traced", "bfloat16"} <= {row.dtype for row in ctx.precisions() if row.module == "0"}, "compiled for itself"


def test_layers_that_are_compiled_one_by_one_share_their_code(tmp_path: Path) -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)))
    for layer in layers:
        layer.compile(backend="eager")
    with msctx.context(**rules(tmp_path, "0.0", "float32")).watch(layers), torch._dynamo.config.patch(error_on_recompile=False):
        layers(X)
        found = counters["stats"]["unique_graphs"]
        layers(X)
    assert found <= 3, "that with a named module is another"
    assert counters["stats"]["unique_graphs"] == found
