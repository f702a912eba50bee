"""What stands around the calls of modules: in which order, whatever order it comes and goes in, and what compiled code has of it."""

from __future__ import annotations

import threading
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


class Named(nn.Module):
    def forward(self, x: torch.Tensor, module: int = 0, call: int = 0) -> int:
        return module + call


class Unhashable(nn.Module):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


AROUND: dict[str, Any] = {
    "rules": {"op_precision_mode": "names.ini", "precision_mode": "allow_mix_precision_bf16"},
    "O1": {"memory_optimize_level": "O1"},
    "an observer": {"op_timeout": 100},
}


@pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")
@pytest.mark.parametrize("name", AROUND)
def test_arguments_of_any_name_and_modules_without_a_hash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.ini").write_text("[ByNodeName]\n0=high_precision\n")
    with msctx.context(**AROUND[name]).watch(nn.Sequential(nn.ReLU())):
        assert Named()(X, module=1, call=2) == 3
        assert Unhashable()(X) is X


def rules(tmp_path: Path, name: str, result: str = "bfloat16") -> dict[str, str]:
    (file := tmp_path / "dtypes.cfg").write_text(f"{name}::InputDtype:bfloat16,bfloat16,OutputDtype:{result}\n")
    return {"customize_dtypes": str(file)}


def acts(net: nn.Module) -> bool:
    return net(X).dtype == torch.bfloat16


def test_wrappers_of_others_come_and_go_in_any_order(tmp_path: Path) -> None:
    net, own = nn.Sequential(nn.Linear(4, 4)), nn.Module.__call__

    def wrapper(module: nn.Module, *args: Any) -> Any:
        return own(module, *args)

    kept = net.__call__
    with msctx.context(**rules(tmp_path, "0")).watch(net):
        nn.Module.__call__ = wrapper  # type: ignore[method-assign]
        with msctx.context(precision_mode="force_fp32"):
            pass
        assert acts(net)
        nn.Module.__call__ = own  # type: ignore[method-assign]
        assert acts(net)
        assert kept(X).dtype == torch.bfloat16
        nn.Module.__call__ = wrapper  # type: ignore[method-assign]
    nn.Module.__call__ = own  # type: ignore[method-assign]
    assert not acts(net)


@pytest.mark.full
def test_other_threads_keep_their_rules_while_one_compiles(tmp_path: Path) -> None:
    net, large = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(20)))
    thread = threading.Thread(target=lambda: torch.compile(large, backend="aot_eager")(X))
    with msctx.context(**rules(tmp_path, "0")).watch(net):
        thread.start()
        found = []
        while thread.is_alive():
            found.append(acts(net))
    assert len(found) > 10
    assert all(found)


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


def test_a_model_that_others_share_is_not_compiled_anew_for_each(tmp_path: Path) -> None:
    shared = nn.Sequential(nn.Linear(4, 4))
    compiled, graphs = torch.compile(shared, backend="eager"), set()
    ctx = msctx.context(**rules(tmp_path, "head"))
    for _ in range(4):
        model = nn.ModuleDict({"shared": shared, "head": nn.Linear(4, 4)})
        with ctx.watch(model):
            model["head"](compiled(X))
        graphs.add(counters["stats"]["unique_graphs"])
    assert graphs == {1}


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


def test_compiled_code_is_shared_only_by_modules_that_the_same_rules_name(tmp_path: Path) -> None:
    """It may be called with another module of the same class."""
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(4))
    compiled = torch.compile(lambda module: module(X).float() + 1, backend="eager")
    with msctx.context(**rules(tmp_path, "2")).watch(layers):
        for _ in range(2):
            for layer in layers:
                assert torch.equal(compiled(layer), layer(X).float() + 1)
        graphs = counters["stats"]["unique_graphs"]
        for layer in layers:
            compiled(layer)
    assert counters["stats"]["unique_graphs"] == graphs <= 4


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
