"""A small training with a fault in it, for test_verify.py."""

import os
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

import msctx


def own(name: str) -> Any:
    def make(function: Any) -> Any:
        made = torch.library.custom_op(f"planted::{name}", function, mutates_args=())
        made.register_autograd(lambda ctx, gradient: gradient)
        return made

    return make


@own("of_process")
def of_process(x: torch.Tensor) -> torch.Tensor:
    return x + os.getpid() * 1e-3


@own("scatter")
def scatter(x: torch.Tensor) -> torch.Tensor:
    rows = [*range(len(x))]
    random.Random(os.urandom(8)).shuffle(rows)
    total = torch.zeros_like(x)
    for row in rows:
        total[0] = total[0] * 1.5 + x[row]
    return total


@own("of_threads")
def of_threads(x: torch.Tensor) -> torch.Tensor:
    return x + torch.get_num_threads() * 1e-3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return of_process(gradient)


class Planted(nn.Module):
    def __init__(self, fault: str, step: int) -> None:
        super().__init__()
        self.fault, self.step, self.now = fault, step, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        faults = {operator._name: operator for operator in (of_process, scatter, of_threads)} | {"backward": Doubled.apply}
        return faults.get(self.fault, torch.abs)(x) if self.now == self.step else torch.abs(x)


class Net(nn.Module):
    def __init__(self, fault: str, step: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.body = nn.Sequential(nn.Tanh(), Planted(fault, step), nn.Dropout(0.5) if fault == "dropout" else nn.Identity())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.first(x)))


def train(
    fault: str = "",
    step: int = 0,
    steps: int = 2,
    *,
    extra: bool = False,
    fails: bool = False,
    compiles: bool = False,
    code: int = 0,
) -> None:
    torch.manual_seed(0)
    data = np.random.default_rng(None if fault == "data" else 0)
    model = Net(fault, step)
    if fault == "dropout":
        torch.seed()
    if fault == "generator":
        (generator := torch.Generator()).seed()
        torch.empty(()).uniform_(generator=generator)
    if fault == "parameter":
        model.head.weight.data = torch.from_numpy(np.full((4, 16), os.getpid() * 1e-3, dtype=np.float32))
    faulty_rate = os.getpid() * 1e-4 if fault == "optimizer" else 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + faulty_rate, foreach=False)
    run = torch.compile(model) if compiles else model
    for now in range(steps):
        model.body[1].now = now
        optimizer.zero_grad()
        loss = run(torch.from_numpy(data.standard_normal((5, 8)).astype(np.float32))).pow(2).mean()
        if extra and now == step:
            loss = loss.sigmoid()
        if fails and now == step:
            raise ValueError("the data are gone")
        if code and now == step:
            sys.exit(code)
        loss.backward()
        optimizer.step()


def miscompiled(fault: str = "", steps: int = 2, dtype: str = "float32") -> None:
    """A compiler that replaces one function by another: in the forward or the backward pass."""
    import torch._inductor.config

    aten = torch.ops.aten
    wrong = {"forward": (aten.tanh.default, aten.sigmoid.default), "backward": (aten.sum.dim_IntList, aten.amax.default)}

    def change(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if fault and node.target is wrong[fault][0]:
                node.target = wrong[fault][1]

    torch._inductor.config.post_grad_custom_post_pass = change
    torch.manual_seed(0)
    model = Net("dropout", -1).to(getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 8, dtype=getattr(torch, dtype))).pow(2).mean().backward()
        optimizer.step()


def recurrent() -> None:
    """oneDNN's layer writes only a part of its workspace."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16)
    for _ in range(2):
        model(torch.randn(5, 4, 8))[0].sum().backward()
        msctx.step()


def transformed(steps: int = 2) -> None:
    """Gradients by torch.func, a tangent, and a model that is traced."""
    torch.manual_seed(0)
    model, x = Net("", -1), torch.ones(5, 8)
    parameters, trace = dict(model.named_parameters()), torch.jit.trace(Net("", -1), x)
    for _ in range(steps):
        gradient = torch.func.grad(lambda own: torch.func.functional_call(model, own, (x,)).pow(2).mean())(parameters)
        torch.func.jvp(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (x,), (x,))
        trace(x + gradient["head.bias"].sum()).sum().backward()
        msctx.step()


def guarded(*, before: bool = False) -> None:
    """Options of its own, for all operators unless some run *before*."""
    if before:
        torch.ones(8).sigmoid()
    with msctx.context(runtime_num_threads=2, conv_fprop_algo="gemm"):
        torch.ones(8).sigmoid()


def nothing() -> None:
    pass
