"""Parametrizations registered inside a precision policy: their parameters are those that plain PyTorch would make."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import msctx

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::msctx.MsctxWarning", "ignore::FutureWarning"),
]

REGISTER = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "parametrizations.weight_norm": parametrizations.weight_norm,
    "parametrizations.spectral_norm": parametrizations.spectral_norm,
    "parametrizations.orthogonal": parametrizations.orthogonal,
}
MODES = ("force_fp16", "allow_mix_precision_fp16", "allow_mix_precision_bf16")


def registered(register: Callable[[nn.Module], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return register(nn.Linear(8, 8))


@pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
def test_registering_inside_a_policy_makes_the_parameters_of_plain_torch(register: Callable[[nn.Module], nn.Module]) -> None:
    plain = registered(register).state_dict()
    for mode in MODES:
        with msctx.context(precision_mode=mode):
            model = registered(register)
            state = model.state_dict()
            y = model(torch.randn(4, 8))
            assert y.dtype == (torch.bfloat16 if "bf16" in mode else torch.float16), mode
            y.float().sum().backward()
        assert {name: value.dtype for name, value in state.items()} == {name: value.dtype for name, value in plain.items()}, (
            mode
        )
        for name, value in plain.items():
            if name.endswith(("_u", "_v")):  # training has gone on with the power iteration
                continue
            assert torch.equal(state[name], value), (mode, name)
        for parameter in model.parameters():
            assert parameter.grad.dtype == torch.float32, mode


def test_a_weight_that_is_set_goes_through_its_parametrization_outside_the_policy() -> None:
    weight = parametrizations.orthogonal(nn.Linear(8, 8)).weight.detach()
    with msctx.context(precision_mode="force_fp16"):
        model = parametrizations.orthogonal(nn.Linear(8, 8))
        model.weight = weight
    assert torch.allclose(model.weight, weight, atol=1e-5)


REMOVE = {
    "weight_norm": (nn.utils.weight_norm, lambda model: nn.utils.remove_weight_norm(model)),
    "spectral_norm": (nn.utils.spectral_norm, lambda model: nn.utils.remove_spectral_norm(model)),
    "parametrizations": (parametrizations.orthogonal, lambda model: parametrize.remove_parametrizations(model, "weight")),
}


@pytest.mark.parametrize(("register", "remove"), REMOVE.values(), ids=REMOVE)
def test_removing_inside_a_policy_leaves_the_weight_of_plain_torch(
    register: Callable[[nn.Module], nn.Module], remove: Callable[[nn.Module], nn.Module]
) -> None:
    for mode in MODES:
        plain = remove(registered(register).eval()).weight
        model = registered(register).eval()
        with msctx.context(precision_mode=mode):
            weight = remove(model).weight
        assert weight.dtype == torch.float32, mode
        assert torch.equal(weight, plain), mode


WRAPPED = [
    (parametrize.ParametrizationList, "__init__"),
    (parametrize.ParametrizationList, "right_inverse"),
    (parametrize, "remove_parametrizations"),
    (parametrizations._SpectralNorm, "__init__"),
    (import_module("torch.nn.utils.weight_norm").WeightNorm, "apply"),
    (import_module("torch.nn.utils.spectral_norm").SpectralNorm, "remove"),
]


def test_torchs_own_methods_are_back_after_the_last_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def methods() -> list[object]:
        return [vars(owner)[name] for owner, name in WRAPPED]

    plain = methods()
    with msctx.context(precision_mode="force_fp16"):
        with msctx.context(precision_mode="must_keep_origin_dtype"):
            pass
        assert all(one is not other for one, other in zip(methods(), plain, strict=True))
    assert methods() == plain
    with msctx.context(precision_mode="force_fp16"):
        monkeypatch.setattr(parametrize, "remove_parametrizations", print)
    assert parametrize.remove_parametrizations is print, "somebody else's stays"
