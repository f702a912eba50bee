"""A small training with a fault in it, for test_verify.py."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

import msctx
from msctx.native import core

POISON = [False]


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


@own("of_isa")
def of_isa(x: torch.Tensor) -> torch.Tensor:
    return x + (core.load().isa() == "generic") * 1e-3


@own("nan")
def nan(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x > 0.5, float("nan")) if POISON[0] else x.clone()


def added(x: torch.Tensor) -> torch.Tensor:
    """Also under torch.func, which takes no operator with a gradient of Python's."""
    return torch.add(x, x, alpha=os.getpid() * 1e-3)


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
        operators = (of_process, scatter, of_threads, of_isa, nan)
        faults = {operator._name: operator for operator in operators} | {"backward": Doubled.apply, "number": added}
        return faults.get(self.fault, torch.abs)(x) if self.now == self.step else torch.abs(x)


class Net(nn.Module):
    def __init__(self, fault: str, step: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.body = nn.Sequential(nn.Tanh(), Planted(fault, step), nn.Dropout(0.5) if fault == "dropout" else nn.Identity())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.head(self.body(self.first(x)))
        return of_process(made) if self.body[1].fault == "root" else made


def train(
    fault: str = "",
    step: int = 0,
    steps: int = 2,
    *,
    poison: bool = False,
    extra: bool = False,
    fails: bool = False,
    compiles: bool = False,
    code: int = 0,
) -> None:
    POISON[0] = poison
    torch.manual_seed(0)
    data = np.random.default_rng(None if fault == "data" else 0)
    model = Net(fault, step)
    if fault == "dropout":
        torch.seed()
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
    """A compiler that takes one function for another in the graph: of the forward or the backward pass."""
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


def replicas(fault: str = "", step: int = 1, steps: int = 3) -> None:
    """A rank that goes its own way."""
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    is_faulty = dist.get_rank() == dist.get_world_size() - 1
    torch.manual_seed(dist.get_rank())
    model = Net("", -1)
    run = model if fault == "alone" else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for now in range(steps):
        if is_faulty and now == step:
            if fault == "raises":
                raise ValueError("the data are gone")
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        with run.no_sync() if fault == "unreduced" and now == step else nullcontext():
            run(torch.randn(5, 8)).pow(2).mean().backward()
        if is_faulty and now == step:
            if fault == "weight":
                model.head.weight.data[0].add_(1)
            elif fault == "gradient":
                model.head.bias.grad.add_(1)
            elif fault == "rate":
                optimizer.param_groups[0]["lr"] = 0.2
        optimizer.step()
        if fault == "stops" and is_faulty and now == step:
            break
    dist.destroy_process_group()


@own("slow_if_deterministic")
def slow_if_deterministic(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02 if torch.are_deterministic_algorithms_enabled() else 0.001)
    return x.clone()


def instruction_sets() -> None:
    """Without what depends on them by itself: torch's random numbers and tanh."""
    linear = nn.utils.skip_init(nn.Linear, 8, 16)
    model = nn.Sequential(linear, nn.Sequential(nn.ReLU(), Planted("of_isa", 1)))
    for parameter in model.parameters():
        parameter.data = torch.from_numpy(np.random.default_rng(0).standard_normal(parameter.shape, dtype=np.float32))
    for now in range(3):
        model[1][1].now = now
        model(torch.ones(5, 8)).relu().sum().backward()
        msctx.step()


def recurrent() -> None:
    """oneDNN's layer writes but a part of its workspace."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16)
    for _ in range(2):
        model(torch.randn(5, 4, 8))[0].sum().backward()
        msctx.step()


def transformed(fault: str = "", steps: int = 2) -> None:
    """Gradients by torch.func, a tangent, and a model that is traced."""
    torch.manual_seed(0)
    model, traced = Net(fault, 1), Net("", -1)
    parameters, x = dict(model.named_parameters()), torch.ones(5, 8)
    trace = torch.jit.trace(traced, x)
    for now in range(steps):
        model.body[1].now = now
        gradient = torch.func.grad(lambda own: torch.func.functional_call(model, own, (x,)).pow(2).mean())(parameters)
        torch.func.jvp(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (x,), (x,))
        trace(x + gradient["head.bias"].sum()).sum().backward()
        msctx.step()


def nothing() -> None:
    pass


def idle() -> None:
    torch.ones(3).sum()


def deterministic(*, unpools: bool = True) -> None:
    """An operator that deterministic mode slows down, and one that it has no kernel for."""
    model = nn.Sequential(nn.Linear(8, 16), Planted("", -1), nn.Unflatten(1, (1, 4, 4)))
    for _ in range(20):
        hidden = model(torch.randn(5, 8))
        pooled, places = nn.functional.max_pool2d(slow_if_deterministic(hidden), 2, return_indices=True)
        if unpools:
            nn.functional.max_unpool2d(pooled, places, 2)
        msctx.step()
