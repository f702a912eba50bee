"""Hooks that come and go: compiled code knows them again, and no copy of a module has them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from msctx.native.module_hooks import Hooks

X = torch.ones(2, 4)
Module = nn.Module


def hooks_of(module: Module) -> list[list[int]]:
    return [[*module._forward_pre_hooks], [*module._forward_hooks], [*module._forward_hooks_always_called]]


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def hooks(calls: list[str]) -> Callable[[Module], Hooks]:
    """Make hooks that note their calls."""

    def made(module: Module) -> Hooks:
        return Hooks(module, lambda hooks, module, args: calls.append("before"), lambda hooks, *_: calls.append("after"))

    return made


def test_they_are_there_while_somebody_wants_them(hooks: Any, calls: list[str]) -> None:
    module = nn.Linear(4, 4)
    ours = hooks(module)
    for _ in range(2):
        ours.want(1)
        ours.want(1)
        ours.want(-1)
        module(X)
        assert calls == ["before", "after"]
        with pytest.raises(RuntimeError):
            module(X.t())
        assert calls == ["before", "after"] * 2, "also after what it raised"
        ours.want(1)
        ours.drop()
        module(X)
        assert calls == ["before", "after"] * 2
        assert hooks_of(module) == [[], [], []]
        calls.clear()


def test_they_keep_their_ids_beside_others(hooks: Any) -> None:
    module, found = nn.Linear(4, 4), []
    others = [module.register_forward_hook(print), module.register_forward_pre_hook(print)]
    ours = hooks(module)
    for _ in range(3):
        ours.want(1)
        found.append({str(hooks_of(module))})
        ours.want(-1)
    assert found == [found[0]] * 3
    assert hooks_of(module) == [[others[1].id], [others[0].id], []]


def test_where_somebody_has_taken_them_all_away(hooks: Any, calls: list[str]) -> None:
    module = nn.Linear(4, 4)
    ours = hooks(module)
    ours.want(1)
    module._forward_hooks.clear()
    module._forward_pre_hooks = type(module._forward_pre_hooks)()
    ours.want(-1)
    ours.want(1)
    module(X)
    assert calls == ["before", "after"]


def test_a_module_that_is_gone(hooks: Any) -> None:
    module = nn.Linear(4, 4)
    ours = hooks(module)
    ours.want(1)
    del module
    ours.want(-1)
    ours.want(1)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_compiled_code_calls_no_hook_that_is_gone_and_knows_those_again_that_come(
    hooks: Any, calls: list[str], is_guarded: bool
) -> None:
    """By itself Dynamo does not look for new hooks where it has seen none."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(4, 4))
    compiled, ours = torch.compile(net, backend="eager"), hooks(net[0])
    counters.clear()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=not is_guarded):
        for number in range(12):
            ours.want(1)
            compiled(X)
            assert calls == (["before", "after"] if is_guarded or not number else [])
            ours.want(-1)
            calls.clear()
            compiled(X)
            assert not calls
    assert counters["stats"]["unique_graphs"] == 2, "with hooks and without"
    torch._dynamo.reset()


def test_copies_have_the_hooks_of_others_only(hooks: Any, calls: list[str]) -> None:
    module = nn.Linear(4, 4)
    first, last = module.register_forward_pre_hook(nothing), module.register_forward_hook(nothing, always_call=True)
    ours = [hooks(module), hooks(module)]  # an observer's and a policy's
    for one in ours:
        one.want(1)
    copies = [copy.deepcopy(module), *(pickle.loads(pickle.dumps(module, how)) for how in range(pickle.HIGHEST_PROTOCOL + 1))]
    for one in (*copies, copy.deepcopy(copies[0])):
        assert hooks_of(one) == [[first.id], [last.id], [last.id]]
        one(X)
    assert not calls
    module(X)
    assert calls == ["before"] * 2 + ["after"] * 2


def nothing(*_: Any) -> None:
    pass


def test_a_saved_model_is_read_where_there_is_no_msctx(hooks: Any) -> None:
    module, file = nn.Linear(4, 4), io.BytesIO()
    hooks(module).want(1)
    module._forward_hooks[-1] = next(iter(module._forward_hooks.values()))
    other = nn.ReLU()
    other._forward_hooks.update(module._forward_hooks)  # as torch.export does
    torch.save(nn.Sequential(module, other), file)
    assert b"msctx" not in file.getvalue()
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    saved(X)
    assert hooks_of(saved[0]) == [[], [], []]
    assert len(hooks_of(saved[1])[1]) == 2
