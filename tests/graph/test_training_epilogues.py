"""Convolutions and linear layers of training steps that take what follows them into their call, where no gradient needs it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fusion_programs import generated
from torch import nn
from torch.nn import functional

import msctx
from msctx.graph import epilogues

GRAPH = {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT", "fallback": "silent"}
OURS = {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1", "matmul_algo": "strict"}
NORMAL = {"conv_fprop_algo": "normal"}


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 8), (8, 12), (12, 12)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(12 * 4, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> Any:
        return self.classifier(self.features(x).flatten(1))


class Residual(nn.Module):
    """Blocks with a batch norm that trains, with one whose statistics and factors are frozen, and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.normed, self.frozen, self.plain = (nn.Conv2d(i, 8, 3, padding=1) for i in (3, 8, 8, 8))
        self.norm, self.fixed = nn.BatchNorm2d(8), nn.BatchNorm2d(8).requires_grad_(False)
        self.head = nn.Linear(8, 5)
        nn.init.uniform_(self.fixed.running_var, 0.5, 2)  # type: ignore[arg-type]
        nn.init.normal_(self.fixed.weight)

    def train(self, mode: bool = True) -> Residual:
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        x = torch.relu(self.norm(self.normed(x)) + x)
        x = torch.relu(self.fixed(self.frozen(x)) + x)
        x = torch.relu(self.plain(x) + x)
        return self.head(x.mean((2, 3)))


NETS = {"vgg": Vgg, "residual": Residual}
FOLDED = {
    "vgg": dict.fromkeys(("features.0", "features.3", "features.6", "classifier.0"), "shift+relu"),
    "residual": {"frozen": "scale+shift+add+relu", "plain": "shift+add+relu"},
}


def net(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETS[name]().train()


def batch(n: int = 4, last: bool = False, size: int = 16) -> torch.Tensor:
    x = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def trained(model: nn.Module, steps: int = 3, last: bool = False, **options: Any) -> tuple[list[torch.Tensor], msctx.Choices]:
    """The loss and the gradients of each step, and what the model ends with."""
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found: list[torch.Tensor] = []
    with msctx.context(**options) as ctx, generated():
        ctx.watch(model)
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            x = batch(last=last).to(next(model.parameters()).dtype)
            loss = functional.cross_entropy(model(x), torch.arange(4))
            loss.backward()
            found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
            optimizer.step()
        assert len(ctx.graphs()) == (options.get("mode") == "GRAPH_MODE")
    return [*found, *(t.clone() for t in model.state_dict().values())], ctx.choices()


@contextmanager
def unfolded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(epilogues, "fold", lambda *_, **__: None)
        yield


def folded(choices: msctx.Choices) -> dict[str, str]:
    return {row.module: row.epilogue for row in choices if row.epilogue}


@pytest.mark.full
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", NETS)
def test_steps_of_an_optimizer_have_the_bits_of_those_that_are_not_folded(
    name: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, choices = trained(net(name), last=last, **GRAPH, **OURS)
    assert folded(choices) == FOLDED[name]
    with unfolded(monkeypatch):
        right, plain = trained(net(name), last=last, **GRAPH, **OURS)
    assert not folded(plain)
    if name == "vgg":
        assert all(map(torch.equal, found, right))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)  # with a factor in one rounding


@pytest.mark.full
@pytest.mark.parametrize("how", [OURS, NORMAL], ids=["ours", "normal"])
def test_gradients_are_those_of_eager_code_and_of_float64(how: dict[str, str]) -> None:
    """Running statistics among them, and weights that an optimizer has changed since they were kept."""
    model = net("residual")
    found, choices = trained(copy.deepcopy(model), **GRAPH, **how)
    assert folded(choices) == FOLDED["residual"]
    eager, _ = trained(copy.deepcopy(model), fallback="silent", **how)
    exact, _ = trained(copy.deepcopy(model).double())
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([t.double() for t in found], [t.double() for t in exact], rtol=1e-4, atol=1e-5)


class Tail(nn.Module):
    def __init__(self, tail: Any, bias: bool = True) -> None:
        super().__init__()
        self.conv, self.tail = nn.Conv2d(3, 6, 3, padding=1, bias=bias), tail
        self.gamma = nn.Parameter(torch.rand(6, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.tail(self, self.conv(x))


TAILS: dict[str, tuple[Any, str]] = {
    "sigmoid": (lambda m, y: torch.sigmoid(y), "shift+sigmoid"),
    "clamp": (lambda m, y: functional.relu6(y), ""),
    "factor": (lambda m, y: torch.relu(y * m.gamma), ""),
    "both": (lambda m, y: (y, torch.relu(y)), ""),
    "in place": (lambda m, y: y.mul_(2).relu_(), "scale+shift+relu"),
    "dropout": (lambda m, y: functional.dropout(torch.relu(y), 0.5, True), "shift+relu"),
}


QUICK = ("factor", "in place")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in TAILS])
def test_what_the_backward_pass_needs_is_not_taken_in(name: str) -> None:
    tail, expected = TAILS[name]
    torch.manual_seed(4)
    x = batch(size=8)
    model, x = Tail(tail), x.requires_grad_()

    def gradients() -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
        torch.manual_seed(5)
        results = model(x)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        wanted = [x, *(p for p in model.parameters() if name == "factor" or p is not model.gamma)]
        return results, torch.autograd.grad(sum(r.sin().sum() for r in results), wanted)

    with msctx.context(**GRAPH, **OURS) as ctx, generated():
        results, found = gradients()
    assert [row.epilogue for row in ctx.choices() if row.direction == "fprop"] == [expected]
    if name == "dropout":
        assert all(g.isfinite().all() for g in found)
        return
    right, exact = gradients()
    torch.testing.assert_close((results, found), (right, exact), rtol=1e-4, atol=1e-5)
    assert [r.stride() for r in results] == [r.stride() for r in right]
