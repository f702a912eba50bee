"""O1 and other people's programs: what is left alone, and what trains the same."""

from __future__ import annotations

import collections
import random
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from block_programs import LOG, WIDTH, Block, are_same, in_turn, trained
from torch import nn
from torch.nn import functional as fn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

import msctx

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


class RegistersOnInput(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: LOG.append(1))
        return super().forward(x)


class RegistersOnNode(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.grad_fn.register_prehook(lambda gradients: LOG.append(1))
        return super().forward(x)


class CountsOnParameter(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.f.weight.uses = getattr(self.f.weight, "uses", 0) + 1
        LOG.append(self.f.weight.uses)
        return super().forward(x)


class CountsInModule(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import a_module_of_the_user as m

        m.calls += 1
        return super().forward(x)


class Scripted(Block):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.trace(nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH))

    def later(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class InCheckpoint(Block):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # as models of timm do
        return checkpoint(super().__call__, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [RegistersOnInput, RegistersOnNode, CountsOnParameter, CountsInModule, Scripted, InCheckpoint])
def test_what_is_left_alone(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_module_of_the_user")
    module.calls = 0
    monkeypatch.setitem(sys.modules, "a_module_of_the_user", module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        are_same(lambda: [kind(), kind()], recomputed=False)
    assert module.calls == (20 if kind is CountsInModule else 0)


class Drawing(collections.OrderedDict):
    def __getitem__(self, key: Any) -> Any:
        torch.rand(1)
        return super().__getitem__(key)


class Noisy(list):
    def __iter__(self) -> Any:
        torch.rand(1)
        return super().__iter__()


class Nested(Block):
    layout = torch.strided

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.as_nested_tensor([x[:3], x[3:]], layout=self.layout)
        return torch.cat([*torch.relu(self.f(nested)).unbind()])


class Jagged(Nested):
    layout = torch.jagged


@pytest.mark.parametrize("kind", [Nested, Jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_alone(kind: type[nn.Module]) -> None:
    are_same(lambda: [kind(), kind()], recomputed=False)


class OwnContainers(Block):
    """transformers makes a new module at each access to its table of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.noise = Drawing(a=1), Noisy([1])


class Keeps(Block):
    """A loss of its own, with its graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        self.entropy = made.square().mean()
        return made


@dataclass
class Out:
    hidden: torch.Tensor


class Alternates(Block):
    """Gives other results each time, in an object."""

    def forward(self, x: torch.Tensor) -> Out:
        LOG.append(1)
        return Out(super().forward(x) * (1 + len(LOG)))


class BatchNormOfZeros(Block):
    """Averages that the first pass does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        nn.init.zeros_(self.f.weight)
        nn.init.zeros_(self.f.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.g(self.norm(self.f(x))))


@pytest.mark.parametrize(
    ("kind", "recomputed"),
    [(OwnContainers, True), (Keeps, True), (BatchNormOfZeros, True), (Alternates, False)],
)
def test_other_programs_train_the_same(kind: type[nn.Module], recomputed: bool) -> None:
    are_same(lambda: [kind(), kind()], recomputed=recomputed)


class SharesWithBuffer(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w0", self.f.weight.detach())
        self.register_buffer("table", torch.randn(200, WIDTH))
        self.register_buffer("row", self.table[3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.f(x) + fn.linear(x, self.w0) * self.row)


class Cyclic:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden, self.me = hidden, self


class GivesCycles(Block):
    def forward(self, x: torch.Tensor) -> Cyclic:
        return Cyclic(super().forward(x))


@pytest.mark.parametrize("kind", [SharesWithBuffer, GivesCycles])
def test_memory_that_is_shared_and_results_that_hold_themselves(kind: type[nn.Module]) -> None:
    are_same(lambda: [kind(), kind()])


def test_inputs_can_be_resized_afterwards() -> None:
    block, x = Block(), torch.randn(4, WIDTH)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(nn.ModuleList([block]))
        for _ in range(3):
            block(x).sum().backward()
    assert x.untyped_storage().resizable()
    assert block.f.weight.untyped_storage().resizable()


def test_generators_of_libraries_that_a_block_does_not_use_are_left_alone() -> None:
    """Another thread may draw from them while it is computed again."""

    class DrawsWhileComputedAgain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            LOG.append(int(random.random() * 1e9))
            return gradient

    LOG.clear()
    blocks = [Block(), Block(), Block()]
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(nn.ModuleList(blocks))
        for _ in range(4):
            x = torch.randn(4, WIDTH, requires_grad=True)
            for block in blocks:
                x = DrawsWhileComputedAgain.apply(block(x))
            x.sum().backward()
    assert len(set(LOG)) == len(LOG) == 12


def test_a_module_that_is_replaced_while_it_trains() -> None:
    class Normed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            if self.step == 3:
                self.norm = nn.Identity()
            return torch.tanh(self.f(self.norm(x)))

    are_same(lambda: [Normed(), Normed()])


class Passes(nn.Module):
    """Between its modules, other things than tensors."""

    def __init__(self, to: bool) -> None:
        super().__init__()
        self.to_pair = to

    def forward(self, x: Any) -> Any:
        return (x, x * 2) if self.to_pair else x[0] + x[1]


def test_rows_that_pass_tuples_on() -> None:
    def row() -> list[nn.Module]:
        return [nn.Sequential(*[nn.Linear(WIDTH, WIDTH), nn.Tanh(), Passes(True), Passes(False)] * 3)]

    are_same(row, recomputed=None)


def test_a_module_without_a_hash_that_is_not_watched() -> None:
    @dataclass(eq=True)
    class Loss(nn.Module):
        weight: float = 2.0

        def __post_init__(self) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().mean() * self.weight

    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(nn.Sequential(nn.Linear(2, 2)))
        assert Loss()(torch.ones(2, requires_grad=True)) == 2


def test_a_users_mode_sees_each_call_once() -> None:
    class Counts(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.calls += function is torch.tanh
            return function(*args, **(kwargs or {}))

    with Counts():
        trained(lambda: [Block(), Block()])
        expected, Counts.calls = Counts.calls, 0
        trained(lambda: [Block(), Block()], memory_optimize_level="O1")
    assert Counts.calls == expected


def test_graphs_that_are_kept_and_never_go_back_do_not_add_up() -> None:
    made: WeakIdKeyDictionary = WeakIdKeyDictionary()

    class Logs(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            self.entropy = out.square().mean()
            made[self.entropy] = None
            return out

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ModuleList([Logs(), Logs()]))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(10):
            in_turn(model[1], model[0](torch.randn(4, WIDTH)))
        assert len(made) <= 4
    for block in model[1]:
        del block.entropy


@pytest.mark.full
def test_fully_sharded_blocks_train_the_same(passes: Callable[..., str]) -> None:
    """FSDP2 gathers parameters in hooks of its own: its blocks are left alone, and nothing that it resizes is spoilt."""
    passes(
        """
        import os, socket, torch, msctx
        from torch import nn
        from torch.distributed import destroy_process_group, init_process_group
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
        init_process_group("gloo")

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.f, self.g = nn.Linear(32, 32), nn.Linear(32, 32)
            def forward(self, x):
                return x + torch.tanh(self.g(torch.tanh(self.f(x))))

        def trained(how, **options):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 32), Block(), Block())
            for module in (model[1], model[2], model):
                fully_shard(module, **how)
            optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
            with msctx.context(**options) as ctx:
                ctx.watch(model)
                for _ in range(3):
                    loss = model(torch.randn(4, 8)).float().square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(float(loss))
                rows = msctx.memory_stats()["recomputed"] if options else []
            assert all("hooks" in row["reason"] and not row["recomputed"] for row in rows), rows
            assert bool(rows) == bool(options)
            return losses

        for how in ({}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}):
            assert trained(how) == trained(how, memory_optimize_level="O1")
        destroy_process_group()
        """
    )
