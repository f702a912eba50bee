"""O1 beyond the passes that are looked at: what a block does for the first time later gives the same bits, or an error."""

from __future__ import annotations

import collections
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary
from trained_blocks import rows

import msctx

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")

WIDTH = 6
Forward = Callable[..., torch.Tensor]
HEADS: list[int] = [0]
LOG: list[int] = []


class Block(nn.Module):
    """``step`` counts its passes; the second and later ones do what ``later`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.step = 0
        self.state = types.SimpleNamespace(average=torch.zeros(WIDTH), counts={"seen": 0}, log=[])
        self.adapter: nn.Module | None = None
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("book", torch.zeros(400, 64))  # too large to be copied in each pass
        self.register_buffer("var", torch.ones(WIDTH))

    def later(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.step > 2:
            x = self.later(x)
        return torch.tanh(self.g(torch.tanh(self.f(x))))


class Later(Block):
    def __init__(self, later: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._later = later

    def later(self, x: torch.Tensor) -> torch.Tensor:
        return self._later(self, x)


def draws(block: Block, x: torch.Tensor) -> torch.Tensor:
    return x * random.random() + np.random.rand()


def normalises(block: Block, x: torch.Tensor) -> torch.Tensor:
    """No version counter shows what becomes of the averages."""
    return fn.batch_norm(x, block.mean, block.var, training=True)


def averages(block: Block, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        block.state.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x


def counts(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.state.counts["seen"] += 1
    return x


def logs(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.state.log.append(1)
    return x


def writes(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.g.bias.data.mul_(0.5)
    return x


def trained(
    make: Callable[[], list[nn.Module]], between: Callable[[nn.Module], None] | None = None, **options: Any
) -> list[Any]:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    LOG.clear()
    HEADS[:] = [0]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ModuleList(make()), nn.Identity())
    model.forward = types.MethodType(lambda self, x: in_turn(self[1], self[0](x)), model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found: list[Any] = []
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(4, WIDTH)).square().mean()
            if between is not None:
                between(model)
            loss.backward()
            optimizer.step()
            found += [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
        found += [row["recomputed"] for row in rows(model)] if options else []
    for module in model.modules():
        # a graph that the block holds, and that holds the block: so it is with every checkpoint
        vars(module).pop("entropy", None)
    found += [
        *(p.detach().clone() for p in model.parameters()),
        *model.buffers(),
        torch.rand(2),
        random.random(),
        np.random.rand(),
    ]
    return [*found, len(LOG)]


def in_turn(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
        x = getattr(x, "hidden", x)
    return x


def are_same(make: Callable[[], list[nn.Module]], *, recomputed: bool | None = True) -> None:
    plain, under = trained(make), trained(make, memory_optimize_level="O1")
    decided = [value for value in under if isinstance(value, bool)]
    under = [value for value in under if not isinstance(value, bool)]
    assert len(plain) == len(under)
    differing = [
        n
        for n, (a, b) in enumerate(zip(plain, under, strict=True))
        if not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)
    ]
    assert not differing
    assert recomputed is None or decided == [recomputed] * len(decided)


def makes(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Once, a module of its own: computed again, it would make another one, with the same bits and without gradients."""
    if block.adapter is None:
        block.adapter = nn.Linear(WIDTH, WIDTH)
    made: torch.Tensor = block.adapter(x)
    return made


class Seeds(Block):
    """The state of the generator is the same before and after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return super().forward(x) * torch.rand(1)


def test_a_block_that_seeds_leaves_the_numbers_of_others_alone() -> None:
    are_same(lambda: [Seeds(), nn.Dropout(0.5), Seeds(), Block()], recomputed=None)


@pytest.mark.parametrize("later", [draws, normalises, makes])
def test_the_same_bits(later: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # else numbers may be drawn by another thread
    are_same(lambda: [Later(later), Later(later)])


def test_numbers_that_another_thread_may_have_drawn_are_not_put_back() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with pytest.raises(RuntimeError, match="gives other bits than before"):
            trained(lambda: [Later(draws), Later(draws)], memory_optimize_level="O1")
    finally:
        end.set()
        other.join()


def writes_past_versions(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.book.data.mul_(0.9).add_(x.detach().mean())
    return x + (block.book.mean() - x).detach()


@pytest.mark.parametrize("later", [averages, counts, logs, writes, writes_past_versions])
def test_an_error_where_it_has_been_done_twice(later: Forward) -> None:
    with pytest.raises(RuntimeError, match=r"(changes .* and has now done so twice|gives other bits than before)"):
        trained(lambda: [Later(later), Later(later)], memory_optimize_level="O1")


class NormalisesMuch(Block):
    """No version counter shows it, and its averages are too large to be copied in each pass."""

    def later(self, x: torch.Tensor) -> torch.Tensor:
        much = torch.ones(2, self.book.numel())
        fn.batch_norm(much, self.book.view(-1), torch.ones(self.book.numel()), training=True)
        return x


def test_an_error_where_large_averages_have_been_updated_twice() -> None:
    with pytest.raises(RuntimeError, match="changes buffers, and has now done so twice"):
        trained(lambda: [NormalisesMuch(), NormalisesMuch()], memory_optimize_level="O1")


class Head(Block):
    """A global variable selects which parameters it computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh((self.f, self.g)[HEADS[0]](x))


def other_head(_: nn.Module) -> None:
    HEADS[0] = 1


def other_module(model: nn.Module) -> None:
    model[1][0].f = nn.Linear(WIDTH, WIDTH)


def test_other_parameters_than_in_the_forward_pass_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="gives other bits than before"):
        trained(lambda: [Head(), Head()], other_head, memory_optimize_level="O1")


def test_a_module_that_is_replaced_before_the_backward_pass_is_computed_again_all_the_same() -> None:
    make = lambda: [Head(), Head()]  # noqa: E731
    plain, under = trained(make, other_module), trained(make, other_module, memory_optimize_level="O1")
    assert plain[0] == under[0]
    assert len(plain) == len(under) - 2  # rows


def test_hooks_that_are_registered_between_are_an_error() -> None:
    def register(model: nn.Module) -> None:
        model[1][0].f.register_forward_hook(lambda *_: LOG.append(1))

    with pytest.raises(RuntimeError, match="hooks were registered in block"):
        trained(lambda: [Block(), Block()], register, memory_optimize_level="O1")


class Lazily(Block):
    """Makes what it changes in its first pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "seen"):
            self.seen = [0]
        else:
            self.seen[0] += 1
        return super().forward(x)


class HooksLater(Block):
    def later(self, x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return x


class Rebinds(Block):
    def later(self, x: torch.Tensor) -> torch.Tensor:
        global AVERAGE
        AVERAGE = AVERAGE * 0.9 + float(x.detach().mean())
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + AVERAGE.mean() * 0)


AVERAGE = torch.zeros(1)


@pytest.mark.parametrize("kind", [Lazily, HooksLater])
def test_an_error_where_a_later_pass_changes_what_an_earlier_one_made_or_took(kind: type[nn.Module]) -> None:
    with pytest.raises(RuntimeError, match=r"changes .* and has now done so twice"):
        trained(lambda: [kind(), kind()], memory_optimize_level="O1")


def test_an_error_where_a_later_pass_binds_a_global_variable_anew() -> None:
    global AVERAGE
    before = AVERAGE
    try:
        with pytest.raises(RuntimeError, match=r"(changes .* and has now done so twice|gives other bits than before)"):
            trained(lambda: [Rebinds(), Rebinds()], memory_optimize_level="O1")
    finally:
        AVERAGE = before


# --- a block runs to its end ------------------------------------------------------------------------------------------


def default_dtype(block: Block, x: torch.Tensor) -> torch.Tensor:
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.tanh(block.f(x))
    torch.set_default_dtype(was)
    return y


def autocast_by_hand(block: Block, x: torch.Tensor) -> torch.Tensor:
    autocast = torch.autocast("cpu", torch.bfloat16)
    autocast.__enter__()
    y = torch.tanh(block.f(x))
    autocast.__exit__(None, None, None)
    return y.float()


def fake_quantises(block: Block, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(block.f(x))
    y.data.copy_((y.data * 4).round() / 4)
    return y


def falls_back(block: Block, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.tanh(block.f(x))
    except Exception:
        return torch.sin(block.f(x))


def names_itself(block: Block, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.tanh(block.f(x))
    except Exception as error:
        raise ValueError("in this block") from error


def freezes_for_a_while(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.g.requires_grad_(False)
    y = torch.tanh(block.g(block.f(x)))
    block.g.requires_grad_(True)
    return y


ENDS = [default_dtype, autocast_by_hand, fake_quantises, falls_back, names_itself, freezes_for_a_while]


class Straight(Block):
    def __init__(self, body: Forward) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


@pytest.mark.parametrize("body", ENDS)
def test_what_a_block_does_after_its_last_save_is_done_again_too(body: Forward) -> None:
    are_same(lambda: [Straight(body), Straight(body)])
    assert torch.get_default_dtype() is torch.float32
    assert not torch.is_autocast_enabled("cpu")


class SwallowsErrors(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.f(x)
        try:
            return torch.tanh(h * (1 + HEADS[0]))
        except Exception:
            return torch.sin(h)


def test_an_error_that_a_block_swallows_is_raised_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="gives other bits than before"):
        trained(lambda: [SwallowsErrors(), SwallowsErrors()], other_head, memory_optimize_level="O1")


def test_an_error_of_the_second_computation_names_the_block() -> None:
    with pytest.raises(RuntimeError, match=r"block '1\.1' again for the backward pass fails \(IndexError: "):
        trained(lambda: [Head(), Head()], lambda _: HEADS.clear(), memory_optimize_level="O1")


class Grows(Block):
    """A buffer is another one after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(30_000, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.f(x) + self.bank.mean(0))
        self.bank = torch.cat([y.detach(), self.bank])[:30_000]
        return y


def test_a_buffer_that_is_another_one_needs_no_copy() -> None:
    are_same(lambda: [Grows(), Grows()])


# --- objects that it receives -----------------------------------------------------------------------------------------


class Graph:
    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.all = x, [x]


class OfGraph(Block):
    def forward(self, graph: Graph) -> torch.Tensor:
        return super().forward(graph.x)


def test_a_block_whose_caller_changes_what_it_received_is_left_alone() -> None:
    def trained_on_graphs(**options: Any) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        torch.manual_seed(0)
        model = nn.Module()
        model.blocks = nn.ModuleList([OfGraph(), OfGraph()])

        def forward(x: torch.Tensor) -> torch.Tensor:
            graph = Graph(x)
            for block in model.blocks:
                graph.x = block(graph)
            return graph.x

        model.forward = forward
        found = []
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            for _ in range(4):
                model.zero_grad()
                model(torch.randn(4, WIDTH)).square().mean().backward()
                found += [p.grad.clone() for p in model.parameters()]
            return found, rows(model) if options else []

    plain, _ = trained_on_graphs()
    under, decided = trained_on_graphs(memory_optimize_level="O1")
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))
    assert {row["reason"] for row in decided} == {"an object that it receives is changed before its backward pass: args[0].x"}


# --- what is left alone -----------------------------------------------------------------------------------------------


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
def test_fully_sharded_blocks_train_the_same(passes_fresh: Callable[..., str]) -> None:
    """FSDP2 gathers parameters in hooks of its own: its blocks are left alone, and nothing that it resizes is spoilt."""
    passes_fresh(
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
