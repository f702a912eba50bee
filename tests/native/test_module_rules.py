"""Watched modules that rules name: whose, in which threads, how they are left, and what it costs to enter."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise

import pytest
import torch
from context_helpers import in_thread
from torch import nn
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.native import module_calls, precision_regions, watched

X = torch.ones(2, 4)
FP16, FP32 = torch.float16, torch.float32
UNMATCHED = "no module is named 0"
unmatched_is_fine = pytest.mark.filterwarnings("ignore:.*no module is named")


@pytest.fixture
def ctx():
    """Open, and without options."""
    with msctx.context() as entered:
        yield entered


@pytest.fixture
def rules(tmp_path):
    names = tmp_path / "names.ini"
    names.write_text("[ByNodeName]\n0=high_precision\n")
    return {"op_precision_mode": str(names), "precision_mode": "allow_mix_precision_bf16"}


def is_around() -> bool:
    """Whether modules have a hook of ours."""
    return bool(nn.modules.module._global_forward_pre_hooks)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    msctx.reset_context()
    assert not is_around()


@pytest.fixture
def customs(tmp_path):
    """A rule for the module 0, by which its products are in float16."""
    return dtypes(tmp_path / "dtypes.cfg", "0")


def dtypes(path, name):
    path.write_text(f"{name}::InputDtype:float16,float16,OutputDtype:float16\n")
    return {"customize_dtypes": str(path)}


class Seen(nn.Module):
    """Notes in which dtype it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append((x @ x.t()).dtype)
        return x * x


def test_no_entry_looks_at_the_modules(monkeypatch, customs):
    """Nor does a context that watches the model again: the first call of a module does, for each entry."""
    model, ctx, looks = nn.Sequential(*(nn.ReLU() for _ in range(100))), msctx.context(**customs), []
    ctx.watch(model)
    with ctx:  # where it loads the core, that looks once
        pass
    monkeypatch.setattr(watched, "paths_of", lambda *args, found=watched.paths_of: (looks.append("all"), found(*args))[1])
    monkeypatch.setattr(
        precision_regions, "_inside", lambda *args, found=precision_regions._inside: (looks.append("one"), found(*args))[1]
    )
    for _ in range(3):
        with ctx, msctx.context().watch(model):
            pass
    assert looks == ["all"] * 3, "of watch()"
    with ctx:
        model[0](X)
        model[1](X)
    assert looks[3:] == ["all", "one", "one"]


# --- whose modules ----------------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def acts_on(model: nn.Module) -> bool:
    """Whether the rule for the module 0 acts in a forward pass."""
    with msctx.context() as ctx:
        model(X)
    return "0" in {row.module for row in ctx.precisions()}


def test_models_of_contexts_that_were_left_are_not_acted_on(rules):
    model, ctx = net(), msctx.context()
    with ctx.watch(model):
        pass
    later = msctx.context(**rules)
    later.__enter__()
    assert not acts_on(model)
    with pytest.warns(msctx.MsctxWarning, match=UNMATCHED):
        later.__exit__()
    with later:
        with ctx:
            assert acts_on(model)
        assert not acts_on(model)
    with ctx, msctx.context(**rules):
        assert acts_on(model)


def test_a_bound_function_acts_on_the_models_of_its_context(rules):
    model, other, found = net(), net(), []
    ctx = msctx.context(**rules)
    ctx.watch(model)
    with ctx:
        bound = ctx.bind(lambda: found.extend([acts_on(model), acts_on(other)]))
        in_thread(bound)
    bound()
    assert found == [True, False] * 2


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
        assert is_around()
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


@pytest.mark.full
def test_compiled_code_sees_models_that_come_and_go(rules, passes):
    """Also where a policy was in force before Dynamo was loaded: each step finds what the first has compiled."""
    code = f"""
    import sys, torch, msctx
    from torch import nn

    net, ctx = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), msctx.context()
    ctx.watch(net)
    with msctx.context(**{rules!r}) as outer:
        assert "torch._dynamo" not in sys.modules
        compiled = torch.compile(net, backend="eager")
        from torch._dynamo.utils import counters
        for step in range(4):
            compiled(torch.ones(2, 4))
            with ctx:
                compiled(torch.ones(2, 4))
            print(counters["stats"]["unique_graphs"], sum(row.calls for row in outer.precisions() if row.module))
    """
    graphs, calls = zip(*(map(int, line.split()) for line in passes(code).splitlines()), strict=True)
    assert len({*graphs}) == 1
    assert [more - less for less, more in pairwise(calls)] == [1, 1, 1]


# --- threads ----------------------------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Waits in its forward pass until it may go on; notes in which dtypes it computes before and after that."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside, self.may_go_on = threading.Event(), threading.Event()
        self.seen = []

    def forward(self, x):
        self.seen.append((x @ x.t()).dtype)
        self.is_inside.set()
        assert self.may_go_on.wait(30)
        self.seen.append((x @ x.t()).dtype)
        return x

    def thread(self, work):
        """A thread that does *work*, once it waits here."""
        thread = threading.Thread(target=work)
        thread.start()
        assert self.is_inside.wait(30)
        return thread


@unmatched_is_fine
def test_rules_that_come_while_another_thread_is_inside(tmp_path):
    """What it leaves without having entered is not what is around that."""
    gate, after = Gate(), Seen()
    model = nn.Sequential(nn.Sequential(gate, after))

    def work():
        with msctx.context(**dtypes(tmp_path / "outer.cfg", "0")):
            model(X)

    with msctx.context() as ctx:
        ctx.watch(model)
        thread = gate.thread(work)
        with msctx.context(**dtypes(tmp_path / "inner.cfg", "0.0")):
            gate.may_go_on.set()
            thread.join(30)
    assert gate.seen == [FP16, FP16]
    assert after.seen == [FP16]


class Raising(nn.Module):
    def forward(self, x):
        raise x


@pytest.mark.parametrize("raised", [ValueError(), KeyboardInterrupt()], ids=str)
def test_a_module_that_is_left_by_what_it_raised(tmp_path, raised):
    """Torch calls no hook after a KeyboardInterrupt."""
    inside, after = Raising(), Seen()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = inside

        def forward(self, x):
            with pytest.raises(type(raised)):
                inside(raised)
            return x

    model = nn.Sequential(Outer(), after)
    ctx = msctx.context(**dtypes(tmp_path / "names.cfg", "0*")).watch(model)
    with ctx:
        model(X)
        assert after.seen == [FP32]
    with pytest.raises(type(raised)), ctx:
        inside(raised)
    assert not module_calls.here.calls, "it ends with the context"
    after(X)
    assert after.seen == [FP32] * 2


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


# --- models that die --------------------------------------------------------------------------------------------------
