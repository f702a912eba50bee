"""Precision rules for modules act on the models that are watched, in each thread, however a module is left, compiled or not."""

import gc
from pathlib import Path

import pytest
import torch
from context_helpers import in_thread
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.native import module_tracker, precision_policies

X = torch.ones(2, 4)
FP16, FP32 = torch.float16, torch.float32
unmatched_is_fine = pytest.mark.filterwarnings("ignore:.*no module is named")


@pytest.fixture
def rules(tmp_path):
    names = tmp_path / "names.ini"
    names.write_text("[ByNodeName]\n0=high_precision\n")
    return {"op_precision_mode": str(names), "precision_mode": "allow_mix_precision_bf16"}


def is_around() -> bool:
    """Whether modules have a hook of ours."""
    return bool(nn.modules.module._global_forward_pre_hooks)


@pytest.fixture(autouse=True)
def nothing_left(afresh):
    yield
    msctx.reset_context()
    assert not is_around()


@pytest.fixture
def customs(tmp_path):
    """A rule for the module 0, by which its products are in float16."""
    return dtypes(tmp_path / "dtypes.cfg", "0")


def dtypes(path, name, result="float16"):
    path.write_text(f"{name}::InputDtype:float16,float16,OutputDtype:{result}\n")
    return {"customize_dtypes": str(path)}


class Seen(nn.Module):
    """Notes in which dtype it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append((x @ x.t()).dtype)
        return x * x


# --- whose modules ----------------------------------------------------------------------------------------------------


@unmatched_is_fine
@pytest.mark.parametrize("reentrant", [pytest.param(True, marks=pytest.mark.full), False])
@pytest.mark.parametrize("is_watched", [True, False])
def test_a_checkpoint_is_computed_again_with_the_models_of_its_forward_pass(customs, reentrant, is_watched):
    """Whatever is watched around its backward pass, and in whichever thread that runs."""
    for run in (in_thread, lambda work: work()):
        model, other = nn.Sequential(Seen()), nn.Sequential(Seen())
        with msctx.context(**customs) as ctx:
            if is_watched:
                ctx.watch(model)
            y = checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=reentrant)
        gc.collect()
        assert not is_around()
        with msctx.context(**customs) as around:
            around.watch(other if is_watched else model)
            if is_watched:  # held for the checkpoint only
                model(X)
                assert model[0].seen[-1] == FP32
            run(y.sum().backward)
            other(X)
        assert other[0].seen == [FP16 if is_watched else FP32]
        assert model[0].seen[0] == model[0].seen[-1] == (FP16 if is_watched else FP32)
        assert len(model[0].seen) == 2 + is_watched
        del y
        gc.collect()


# --- threads ----------------------------------------------------------------------------------------------------------


class Raising(nn.Module):
    def forward(self, x):
        raise x


class Catching(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        with pytest.raises((ValueError, KeyboardInterrupt)):
            self.inside(self.raised)
        return x


@pytest.mark.parametrize("raised", [ValueError(), KeyboardInterrupt()], ids=str)
def test_a_module_that_is_left_by_what_it_raised(tmp_path, raised):
    """Torch calls no hook after a KeyboardInterrupt."""
    inside, after = Raising(), Seen()
    model = nn.Sequential(Catching(inside), after)
    model[0].raised = raised
    ctx = msctx.context(**dtypes(tmp_path / "names.cfg", "0*")).watch(model)
    with ctx:
        model(X)
        assert after.seen == [FP32]
    with pytest.raises(type(raised)), ctx:
        inside(raised)
    assert not module_tracker.here.calls, "it ends with the context"
    after(X)
    assert after.seen == [FP32] * 2


def test_ctrl_c_while_a_named_module_is_entered(tmp_path, monkeypatch):
    def ctrl_c(noted):
        raise KeyboardInterrupt

    model = nn.Sequential(Seen(), Seen())
    with msctx.context(**dtypes(tmp_path / "names.cfg", "0*")).watch(model):
        with monkeypatch.context() as patch:
            patch.setattr(precision_policies, "show_noted", ctrl_c)
            with pytest.raises(KeyboardInterrupt):
                model[0](X)
        model[1](X)
        model[0](X)
    assert (model[0].seen, model[1].seen) == ([FP16], [FP32])


def test_a_named_module_that_is_called_in_an_autocast_is_left(customs):
    """Which overrules its rule, also afterwards."""
    model = nn.Sequential(Seen())
    with msctx.context(**customs).watch(model):
        with torch.autocast("cpu", torch.bfloat16):
            model(X)
            assert (X @ X.t()).dtype == torch.bfloat16
        assert (X @ X.t()).dtype == FP32
    assert model[0].seen == [torch.bfloat16]


@pytest.mark.parametrize("more", [{"frozen_weights": True}, {"precision_mode": "force_fp16"}, {"seed": 0}])
def test_a_context_inside_a_named_module_keeps_its_rule(customs, more):
    """As around the module."""

    class Enters(nn.Module):
        def forward(self, x):
            with msctx.context(**more):
                inside = (x @ x.t()).dtype
            return inside, (x @ x.t()).dtype

    model = nn.Sequential(Enters())
    with msctx.context(**customs).watch(model):
        inside, after = model(X)
        with msctx.context(**more):
            assert model(X)[1] == inside
        assert after == FP16
        assert (X @ X.t()).dtype == FP32


# --- where they act ---------------------------------------------------------------------------------------------------


def acts(net: nn.Module) -> bool:
    return net(X).dtype == FP16


def test_rules_are_in_what_is_traced_and_export_leaves_them_out(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with msctx.context(**dtypes(tmp_path / "dtypes.cfg", "0", "float32")).watch(net):
        expected = net(X)
        traced = make_fx(net)(X)
        exported = torch.export.export(net, (X,)).module()
    assert not torch.equal(net(X), expected)
    assert torch.equal(traced(X), expected)
    assert torch.equal(exported(X), net(X))


def test_a_module_that_has_left_the_model_is_ruled_no_more(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    old = net[0]
    with msctx.context(**dtypes(tmp_path / "dtypes.cfg", "0")).watch(net) as ctx:
        assert acts(old)
        net[0] = nn.Linear(4, 4)
        ctx.watch(net)
        assert (acts(old), acts(net)) == (False, True)


def test_a_model_that_was_compiled_before_is_entered_too(tmp_path: Path) -> None:
    """Dynamo has kept torch's own call of it."""
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    with msctx.context(**dtypes(tmp_path / "dtypes.cfg", "*")).watch(model) as ctx:
        assert compiled(X).dtype == FP16
        assert model.compile(backend="eager") is None
        assert model(X).dtype == FP16
    assert {row.module for row in ctx.precisions()} == {"*"}
    assert compiled(X).dtype == FP32


def test_a_module_that_is_named_after_it_was_compiled_is_compiled_anew(tmp_path: Path) -> None:
    """But not where nothing of it was inside compiled code."""
    model, other = nn.Sequential(nn.Sequential(nn.Linear(4, 4))), nn.Sequential(nn.Linear(4, 4))
    compiled = torch.compile(lambda x: model(x).float() + 1, backend="eager")
    graphs = []
    with msctx.context(**dtypes(tmp_path / "dtypes.cfg", "0")) as ctx:
        for watched in (None, other, model, model):
            if watched is not None:
                ctx.watch(watched)
            compiled(X)
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == 1
    assert graphs[2] == graphs[3] > 1
    assert {row.dtype for row in ctx.precisions() if row.module == "0"} == {"float16"}, "torch's own class runs eagerly"


@pytest.mark.parametrize("kind", ["scripted", "graph mode", "hooks"])
def test_where_a_rule_acts(kind: str, tmp_path: Path) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 4))
    options = dtypes(tmp_path / "dtypes.cfg", "0")
    seen = []
    if kind == "scripted":
        model[0] = torch.jit.script(model[0])  # type: ignore[index]
    elif kind == "graph mode":  # compiled as a whole, inside the rule for it
        model = Affine()
        options = dtypes(tmp_path / "dtypes.cfg", "*") | {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT"}
    else:
        model[0].register_forward_pre_hook(lambda *_: seen.append((X @ X.t()).dtype))  # type: ignore[index]
        model[0].register_forward_hook(lambda *_: seen.append((X @ X.t()).dtype))  # type: ignore[index]
    with msctx.context(**options).watch(model):
        assert acts(model)
        assert acts(model)
        assert not module_tracker.here.calls
    assert not acts(model)
    if kind == "hooks":
        assert seen[:4] == [FP16, FP32] * 2


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inside.weight


def test_an_encoder_calls_the_modules_that_rules_name(tmp_path: Path) -> None:
    """In inference it would compute without."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = encoder(x)
        with msctx.context(**dtypes(tmp_path / "dtypes.cfg", "linear1", "float32")).watch(encoder) as ctx:
            found = encoder(x)
    assert {row.module for row in ctx.precisions() if row.dtype == "float16"} == {"linear1"}
    assert not torch.equal(found, plain)
    assert torch.backends.mha.get_fastpath_enabled()
