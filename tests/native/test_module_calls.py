"""What stands around the calls of modules: in which order, whatever order it comes and goes in, and what compiled code has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import msctx
from msctx.native import module_calls

X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    found = nn.Module.__call__, nn.Module._wrapped_call_impl, nn.Module._wrapped_call_impl.__code__
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    assert found == (nn.Module.__call__, nn.Module._wrapped_call_impl, nn.Module._wrapped_call_impl.__code__)


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
    kept = nn.Module._wrapped_call_impl, module.__call__
    module_calls.take(second)
    for call in (module, partial(kept[0], module), kept[1]):
        call(X)
    assert seen == ["second"]
    module_calls.put(first, 0)
    for call in (module, partial(kept[0], module), kept[1]):
        call(X)
    assert seen == ["second", *["first"] * 3], "whoever has kept a call comes to ours"
    module_calls.take(first)


def rules(tmp_path: Path, name: str, result: str = "bfloat16") -> dict[str, str]:
    (file := tmp_path / "dtypes.cfg").write_text(f"{name}::InputDtype:bfloat16,bfloat16,OutputDtype:{result}\n")
    return {"customize_dtypes": str(file)}


def acts(net: nn.Module) -> bool:
    return net(X).dtype == torch.bfloat16


def test_rules_are_in_what_is_traced_and_export_reports_that_it_leaves_them_out(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with msctx.context(**rules(tmp_path, "0", "float32")).watch(net):
        expected = net(X)
        traced = make_fx(net)(X)
        with pytest.warns(msctx.MsctxWarning, match=r"torch\.export leaves out the precision rules for single modules"):
            exported = torch.export.export(net, (X,)).module()
    assert not torch.equal(net(X), expected)
    assert torch.equal(traced(X), expected)
    assert torch.equal(exported(X), net(X))


def test_a_module_that_has_left_the_model_is_ruled_no_more(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    old = net[0]
    with msctx.context(**rules(tmp_path, "0")).watch(net) as ctx:
        assert acts(old)
        net[0] = nn.Linear(4, 4)
        ctx.watch(net)
        assert (acts(old), acts(net)) == (False, True)


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


def test_an_encoder_calls_the_modules_that_rules_name(tmp_path: Path) -> None:
    """In inference it would compute without."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = encoder(x)
        with msctx.context(**rules(tmp_path, "linear1", "float32")).watch(encoder) as ctx:
            found = encoder(x)
    assert {row.module for row in ctx.precisions() if row.dtype == "bfloat16"} == {"linear1"}
    assert not torch.equal(found, plain)
    assert torch.backends.mha.get_fastpath_enabled()
