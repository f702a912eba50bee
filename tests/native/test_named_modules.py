"""Watched modules that rules name: their hooks come and go with the policies, and modules may be collected at any time."""

from __future__ import annotations

import gc
import pickle
import threading

import pytest
from torch import nn

import msctx
from msctx.native import autocasts, named_modules, precision
from msctx.native.holders import at_work

CALLS = {
    "want": named_modules.want,
    "without_module": lambda names: named_modules.without_module(names, 0),
    "release": named_modules.release,
}


@pytest.fixture
def ctx():
    """Open, and without options."""
    with msctx.context() as entered:
        yield entered


def hooked(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if module._forward_pre_hooks or module._forward_hooks]


@pytest.mark.parametrize("call", CALLS)
def test_a_collection_in_the_midst_of_a_search(call, monkeypatch, ctx):
    kept, doomed = nn.Sequential(nn.ReLU(), nn.ReLU()), [nn.Sequential(nn.ReLU(), nn.ReLU())]
    for model in (doomed[0], kept):
        ctx.watch(model)
    named_modules.want(["other*", *(["1", "2"] if call == "release" else [])])
    match = named_modules.fnmatchcase

    def collected(path, name):
        doomed.clear()
        gc.collect()
        return match(path, name)

    monkeypatch.setattr(named_modules, "fnmatchcase", collected)
    named_modules._models[kept]._by_name.clear()
    CALLS[call](["2", "1"])
    assert not doomed
    assert hooked(kept) == (["1"] if call == "want" else [])
    named_modules.release(["other*", *(["1", "2"] if call == "want" else [])])


def test_hooks_are_there_while_a_name_is_wanted(ctx):
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    named_modules.want(["0"])
    ctx.watch(model)
    assert hooked(model) == ["0"]
    named_modules.want(["*"])
    named_modules.want(["0"])
    assert hooked(model) == ["", "0", "1"]
    assert len(model[0]._forward_pre_hooks) == 1
    named_modules.release(["*", "0"])
    assert hooked(model) == ["0"]
    assert pickle.loads(pickle.dumps(model))[0]._forward_pre_hooks
    named_modules.release(["0"])
    assert not hooked(model)


def test_watched_modules_are_searched_once(monkeypatch, ctx):
    """Not at each entry: that costs what the named modules cost."""
    model, match, calls = nn.Sequential(*(nn.ReLU() for _ in range(100))), named_modules.fnmatchcase, []
    ctx.watch(model)

    def counted(path, name):
        calls.append(name)
        return match(path, name)

    monkeypatch.setattr(named_modules, "fnmatchcase", counted)
    for _ in range(3):
        named_modules.want(["7", "no such"])
        assert hooked(model) == ["7"]
        assert named_modules.without_module(["no such"], 0) == ["no such"]
        named_modules.release(["7", "no such"])
    searched = len(calls)
    for _ in range(10):
        ctx.watch(model)  # nothing new
        named_modules.want(["7", "no such"])
        named_modules.release(["7", "no such"])
    assert len(calls) == searched


def test_a_checkpoint_that_is_collected_while_we_are_at_work(tmp_path):
    """Its hooks are released then, by no lock that the same thread may hold."""
    names = tmp_path / "names.ini"
    names.write_text("[ByNodeName]\n0=high_precision\n")
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    with msctx.context(op_precision_mode=str(names)) as ctx:
        ctx.watch(model)
        held = [autocasts.Carried({})]
    assert hooked(model) == ["0"]

    def collect():
        with precision._lock, at_work.lock:
            held.clear()
            gc.collect()
            assert hooked(model) == ["0"]
        at_work.tidy()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not hooked(model)
