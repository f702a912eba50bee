"""What stands around the calls of modules: in which order, whatever order it comes and goes in, and what compiled code has of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from ranks import two_ranks
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import msctx
from msctx.native import module_calls

X = torch.ones(2, 4)


HOOKS = nn.modules.module._global_forward_pre_hooks, nn.modules.module._global_forward_hooks


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    assert HOOKS == ({}, {})


class Noting:
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def enter(self, module: nn.Module, call: module_calls.Call) -> None:
        call.leaves.append(lambda: self.seen.append(f"{self.name} leaves"))
        self.seen.append(f"{self.name} enters")


def test_they_come_and_go_in_any_order() -> None:
    seen: list[str] = []
    first, second, outer = (Noting(name, seen).enter for name in ("first", "second", "outer"))
    module = nn.ReLU()
    for enter, place in ((outer, 2), (first, 0), (second, 1)):
        module_calls.turn(enter, True, place)
    module(X)
    assert seen == ["outer enters", "second enters", "first enters", "first leaves", "second leaves", "outer leaves"]
    module_calls.turn(outer, False)
    module_calls.turn(first, False)
    seen.clear()
    with pytest.raises(TypeError):
        module(X, X)
    assert seen == ["second enters", "second leaves"]
    module_calls.turn(second, False)
    module(X)
    assert len(seen) == 2


class Ends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


def test_a_call_that_ctrl_c_ended_is_left_at_the_next() -> None:
    seen: list[str] = []
    module_calls.turn(enter := Noting("it", seen).enter, True)
    with suppress(KeyboardInterrupt):
        nn.Sequential(Ends())(X)
    assert seen == ["it enters"] * 2
    nn.ReLU()(X)
    assert seen[2:4] == ["it leaves"] * 2
    module_calls.turn(enter, False)
    assert not module_calls.here.calls


def rules(tmp_path: Path, name: str, result: str = "bfloat16") -> dict[str, str]:
    (file := tmp_path / "dtypes.cfg").write_text(f"{name}::InputDtype:bfloat16,bfloat16,OutputDtype:{result}\n")
    return {"customize_dtypes": str(file)}


def acts(net: nn.Module) -> bool:
    return net(X).dtype == torch.bfloat16


def test_rules_are_in_what_is_traced_and_export_reports_that_it_leaves_them_out(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
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
    assert {row.dtype for row in ctx.precisions() if row.module == "0"} == {"bfloat16"}, "torch's own class runs eagerly"


@pytest.mark.parametrize("kind", ["scripted", "graph mode", "hooks"])
def test_where_a_rule_acts(kind: str, tmp_path: Path) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 4))
    options = rules(tmp_path, "0")
    seen = []
    if kind == "scripted":
        model[0] = torch.jit.script(model[0])  # type: ignore[index]
    elif kind == "graph mode":  # compiled as a whole, inside the rule for it
        model = Affine()
        options = rules(tmp_path, "*") | {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT"}
    else:
        model[0].register_forward_pre_hook(lambda *_: seen.append((X @ X.t()).dtype))  # type: ignore[index]
        model[0].register_forward_hook(lambda *_: seen.append((X @ X.t()).dtype))  # type: ignore[index]
    with msctx.context(**options).watch(model):
        assert acts(model)
        assert acts(model)
        assert not module_calls.here.calls
    assert not acts(model)
    if kind == "hooks":
        assert seen[:4] == [torch.bfloat16, torch.float32] * 2


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inside.weight


RANKS = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.seen = nn.Linear(4, 4), []

    def forward(self, x):
        self.seen.append(self.fc(x).dtype)
        return checkpoint(self.fc, x, use_reentrant=False).float()

def test(rank):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    parallel = DistributedDataParallel(model)
    with msctx.context(customize_dtypes="names.cfg").watch(model):
        parallel(torch.ones(2, 4) * (rank + 1)).sum().backward()
    assert [block.seen for block in model] == [[torch.bfloat16], [torch.float32]], [block.seen for block in model]
    total = model[0].fc.weight.grad.clone()
    dist.all_reduce(total)
    assert torch.equal(total, model[0].fc.weight.grad * 2)
"""


def test_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "names.cfg").write_text("0.fc::InputDtype:bfloat16,bfloat16,OutputDtype:bfloat16\n")
    two_ranks(tmp_path, RANKS)


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
