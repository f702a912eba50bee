"""Weights that compiled code holds as constants, and that change."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import msctx


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()


def in_place(model: nn.Sequential) -> None:
    model.get_parameter("0.weight").mul_(3)


def by_data(model: nn.Sequential) -> None:
    model.get_parameter("3.bias").data = torch.ones(3)


def replaced(model: nn.Sequential) -> None:
    model[3].weight = nn.Parameter(torch.ones(3, 5))


def loaded(model: nn.Sequential) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def statistics(model: nn.Sequential) -> None:
    model.get_buffer("1.running_mean").add_(1)


@pytest.mark.full
@pytest.mark.parametrize("change", [in_place, by_data, replaced, loaded, statistics])
def test_results_follow_weights_that_change(change: Callable[[nn.Sequential], None]) -> None:
    model, x = net(), torch.randn(4, 6)
    with msctx.context(mode="GRAPH_MODE", frozen_variable=True), torch.no_grad():
        before = model(x)
        change(model)
        if change is replaced:  # Dynamo itself compiles it again
            after = model(x)
        else:
            with pytest.warns(msctx.MsctxWarning, match="weights have changed. Their code is compiled again"):
                after = model(x)
        torch.testing.assert_close(model(x), after, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(after, model(x))
    assert not torch.equal(before, after)


def test_code_for_several_shapes_runs_eagerly_once_weights_have_changed() -> None:
    model = net()
    with msctx.context(mode="GRAPH_MODE", frozen_variable=True, compile_dynamic_mode=True), torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("error", msctx.MsctxWarning)  # no part runs eagerly, though Dynamo captures this one twice
            model(torch.randn(4, 6)), model(torch.randn(7, 6))
        model.get_parameter("0.weight").mul_(3)
        x, y = torch.randn(4, 6), torch.randn(9, 6)
        with pytest.warns(msctx.MsctxWarning, match="runs eagerly"):
            found = model(x), model(y)
    with torch.no_grad():
        for result, given in zip(found, (x, y), strict=True):
            torch.testing.assert_close(result, model(given))
