"""O1 trains what torch trains: equal bits of weights, buffers, losses and Python's counters, whatever a forward pass does beside."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn
from trained_blocks import rows

import msctx
from msctx.memory.writes import MOST

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")

WIDTH = 6
COUNTS: dict[str, int] = {}
CALLS = 0
NOISE, DICE, CHANCE = torch.Generator(), np.random.default_rng(0), random.Random(0)


class Block(nn.Module):
    """Computes ``f``; subclasses do something beside."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.f(self.beside(x)))

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WithTeacher(Block):
    """A teacher that follows while it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.f).requires_grad_(False)

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.teacher.parameters(), self.f.parameters(), strict=True)

    def follow(self) -> None:
        for mine, other in self.pairs():
            mine.mul_(0.9).add_(other, alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.follow()
            target = self.teacher(x)
        return torch.tanh(self.f(x)) - target


class FollowsByData(WithTeacher):
    def follow(self) -> None:
        for mine, other in self.pairs():
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)


class FollowsByAssignment(WithTeacher):
    def follow(self) -> None:
        for mine, other in self.pairs():
            mine.data = 0.9 * mine.data + 0.1 * other.data


class FollowsAtOnce(WithTeacher):
    def follow(self) -> None:
        mine, other = zip(*self.pairs(), strict=True)
        torch._foreach_mul_(mine, 0.9)
        torch._foreach_add_(mine, other, alpha=0.1)


class FollowsByCopy(WithTeacher):
    def follow(self) -> None:
        for mine, other in self.pairs():
            mine.copy_(torch.lerp(mine, other, 0.1))


class FollowsBySetting(WithTeacher):
    def follow(self) -> None:
        for mine, other in self.pairs():
            mine[...] = 0.9 * mine + 0.1 * other


class NewTeacher(WithTeacher):
    def follow(self) -> None:
        for name, other in self.f.named_parameters():
            setattr(self.teacher, name, nn.Parameter(0.9 * getattr(self.teacher, name) + 0.1 * other, requires_grad=False))


class OnlyWithGradients(WithTeacher):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        following = torch.is_grad_enabled() and x.requires_grad
        with torch.no_grad():
            if following:
                self.follow()
            target = self.teacher(x)
        return torch.tanh(self.f(x)) - target


def hidden(kind: type[WithTeacher], of: nn.Module | None = None) -> type[Block]:
    """The teacher is no submodule."""

    class Hidden(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.others = [self.teacher]
            del self.teacher

        def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            return zip(self.others[0].parameters(), self.f.parameters(), strict=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.follow()
                target = self.others[0](x)
            return torch.tanh(self.f(x)) - target

    return Hidden


class HiddenAverages(Block):
    """BatchNorm's averages of a network that is no submodule: no version counter tells."""

    def __init__(self) -> None:
        super().__init__()
        self.others = [nn.BatchNorm1d(WIDTH)]

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.others[0](x)
        return x - self.others[0].running_mean


class BatchNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.BatchNorm1d(WIDTH, momentum=None)

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return self.n(x) - self.n.running_mean


class Queue(Block):
    """MoCo's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(16, WIDTH))
        self.register_buffer("begin", torch.zeros(1, dtype=torch.long))

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        begin, found = int(self.begin), x @ self.queue.T.clone()
        with torch.no_grad():
            self.queue[begin : begin + len(x)] = fn.normalize(x)
            self.begin[0] = (begin + len(x)) % 16
        return x + found.mean(1, keepdim=True)


class QueueInAttribute(Queue):
    def __init__(self) -> None:
        super().__init__()
        queue, begin = self.queue, self.begin
        del self.queue, self.begin
        self.queue, self.begin = queue, begin  # plain tensors


class FlatBuffer(Block):
    """The weight is a view of a buffer, which is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flat", torch.randn(WIDTH * WIDTH))
        self.f.weight = nn.Parameter(self.flat.view(WIDTH, WIDTH))

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.flat.mul_(0.99)
        return x


class BuffersThatShare(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.randn(2, WIDTH))
        self.register_buffer("part", self.whole[1])

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.mul_(0.9)
        return x + self.part


class PowerIteration(Block):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.utils.parametrizations.spectral_norm(self.f)


class OldPowerIteration(Block):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.utils.spectral_norm(self.f)


class WeightNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.utils.parametrizations.weight_norm(self.f)


class Keeps(Block):
    """Objects that hang on attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.times, self.last = [1.0], {"n": 1}, collections.deque([1], 3)
        self.numbers = itertools.count(1)

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        self.times["n"] += 1
        self.seen.append(float(len(self.seen)))
        self.last.append(self.times["n"])
        return x * (1 + 1 / (self.times["n"] + sum(self.seen) + sum(self.last) + next(self.numbers)))


class Meter:
    total = 0.0


class OfObjects(Block):
    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        self.meter.total += 1
        return x * self.meter.total


class OfClass(Block):
    count = 0

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        type(self).count += 1
        return x * type(self).count


class OfTheProgram(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        COUNTS["calls"] = COUNTS.get("calls", 0) + 1
        return torch.tanh(self.f(x)) * (CALLS + COUNTS["calls"])


class Initialises(Block):
    """By its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("done", torch.tensor(False))

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        if not self.done:
            with torch.no_grad():
                self.scale.copy_(1 / (1 + x.std(0)))
            self.done.fill_(True)
        return x * self.scale


class Remembers(Block):
    """What it has made once."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, torch.Tensor] = {}

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) not in self.known:
            self.known[len(x)] = torch.arange(float(len(x)))[:, None]
        return x + self.known[len(x)]


class Drops(Block):
    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return fn.dropout(x, 0.3) + torch.rand_like(x)


class Slots:
    """What it holds is in no ``__dict__``."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class HoldsState(Block):
    """What trains depends on how often ``counted`` was called: by and by, or at the sixth call, which a trial does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.seen = self.made(), 0.0

    def made(self) -> Any:
        raise NotImplementedError

    def counted(self) -> float:
        raise NotImplementedError

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = float(self.counted())
        return x * (1 / (1 + self.seen)) if self.seen > 5 else x


def holds(make: Callable[[], Any], count: Callable[[Any], float]) -> type[HoldsState]:
    return type("Holds", (HoldsState,), {"made": lambda self: make(), "counted": lambda self: count(self.state)})


def counted_in_item(state: Any) -> float:
    state[0] += 1
    return float(state[0])


def counted_in(name: str) -> Callable[[Any], float]:
    def count(state: Any) -> float:
        setattr(state, name, getattr(state, name) + 1)
        return float(getattr(state, name))

    return count


def counting_function() -> Callable[[], int]:
    number = 0

    def count() -> int:
        nonlocal number
        number += 1
        return number

    return count


def counting_lambda() -> Callable[[], int]:
    numbers: list[int] = []
    return lambda: numbers.append(0) or len(numbers)  # type: ignore[func-returns-value]


def with_default(numbers: list[int] = [0]) -> float:  # noqa: B006
    return counted_in_item(numbers)


def thread_local() -> Any:
    local = threading.local()
    local.held = 0
    return local


def count_call() -> int:
    global CALLS
    CALLS += 1
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    return CALLS


class OfTheProgramByHelpers(HoldsState):
    """The module's code names neither of the counters."""

    def made(self) -> None:
        pass

    def counted(self) -> float:
        return count_call()


class ThroughNumPy(Block):
    """A buffer is written to where no operator sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(WIDTH))
        self.alias = self.average.numpy()

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        self.alias *= 0.9
        return x * self.average


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "cycle": (lambda: itertools.cycle(range(20)), next),
    "count": (itertools.count, next),
    "list iterator": (lambda: iter([*range(20)]), next),
    "generator": (lambda: (number for number in range(20)), next),
    "Counter": (lambda: collections.Counter({0: 0}), counted_in_item),
    "iterator in slots": (lambda: Slots(itertools.count()), lambda state: next(state.held)),
    "slots": (lambda: Slots(0), counted_in("held")),
    "namespace": (lambda: types.SimpleNamespace(held=0), counted_in("held")),
    "thread-local": (thread_local, counted_in("held")),
    "array": (lambda: np.zeros(1), counted_in_item),
    "array in list": (lambda: [np.zeros(1)], lambda state: counted_in_item(state[0])),
    "array of objects": (lambda: np.array([[0], None], dtype=object), lambda state: counted_in_item(state[0])),
    "bytes": (lambda: bytearray(1), counted_in_item),
    "function": (counting_function, lambda state: state()),
    "lambda": (counting_lambda, lambda state: state()),
    "partial function": (lambda: functools.partial(counted_in_item, [0]), lambda state: state()),
    "default": (lambda: copy_of(with_default), lambda state: state()),
    "method of a list": (lambda: [0].append, lambda state: state(0) or len(state.__self__)),
    "method of a generator": (lambda: random.Random(3).random, lambda state: 9 * state()),
    "method of NumPy's generator": (lambda: np.random.default_rng(3).random, lambda state: 9 * state()),
    "generator in slots": (lambda: Slots(random.Random(3)), lambda state: 9 * state.held.random()),
}


def copy_of(function: Any) -> Any:
    """With defaults of its own."""
    return types.FunctionType(function.__code__, globals(), function.__name__, copy.deepcopy(function.__defaults__))


def noise(x: torch.Tensor) -> torch.Tensor:
    return fn.dropout(x + torch.rand(x.shape, generator=NOISE).normal_(generator=NOISE), 0.3)


class DrawsElsewhere(Block):
    """From a generator of the program, in a function that it calls."""

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return noise(x)


class DrawsByName(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.f(x * (1 + DICE.random() + CHANCE.random())))


class DrawsFromObjects(Block):
    dice = np.random.default_rng(0)

    def __init__(self) -> None:
        super().__init__()
        self.all, self.meter = [random.Random(0)], Meter()
        self.meter.dice = np.random.RandomState(0)

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + self.dice.random() + self.all[0].random() + self.meter.dice.random())


class DrawsFromList(Block):
    def __init__(self) -> None:
        super().__init__()
        self.all = {"first": [torch.Generator().manual_seed(0)]}

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty_like(x).uniform_(generator=self.all["first"][0])


class DrawsFromAttribute(Block):
    """Which the program replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(0)

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.bernoulli(torch.full_like(x, 0.5), generator=self.noise)


class MakesGenerator(Block):
    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=torch.Generator().manual_seed(3))


class Given(Block):
    def forward(self, x: torch.Tensor, noise: torch.Generator | None = None) -> torch.Tensor:
        return torch.tanh(self.f(x + torch.rand(x.shape, generator=noise)))


class Giver(nn.Module):
    """Its blocks draw from a generator that is another at each call."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.f, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Given() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        noise = torch.Generator().manual_seed(self.calls)
        for block in self.blocks:
            x = block(x, noise=noise)
        return x


def gives(model: nn.Sequential) -> None:
    """The blocks are those inside the giver."""
    del model[1:]
    model.append(Giver())


class Gradients(Block):
    """Of its own, inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(self.f(inside)).sum(), inside, create_graph=True)
        return torch.tanh(self.f(x)) + slope


class LateTraining(Block):
    """A part whose mode changes while that of the block does not."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.BatchNorm1d(WIDTH).eval()

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        return self.n(x) - self.n.running_mean


def hook_that_counts(model: nn.Sequential) -> None:
    calls: list[int] = []

    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return output * len(calls)

    model[1].f.register_forward_hook(hook)


def hook_that_follows(model: nn.Sequential) -> None:
    average = torch.zeros(WIDTH)

    def hook(module: nn.Module, inputs: Any) -> None:
        average.mul_(0.9).add_(inputs[0].detach().mean(0))
        model[0].average = average.clone()

    model[1].register_forward_pre_hook(hook)


def shared(model: nn.Sequential) -> None:
    model[2].f.weight = model[1].f.weight
    model[3].f = model[1].f


def flat_views(model: nn.Sequential) -> None:
    """All weights are views of one storage, as optimizers lay them."""
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)


def late(model: nn.Sequential, step: int) -> None:
    if step == 2:
        for block in model[1:]:
            block.n.train()


def teacher_outside(model: nn.Sequential, step: int) -> None:
    with torch.no_grad():
        for block in model[1:]:
            block.follow()


def other_generators(model: nn.Sequential, step: int) -> None:
    for number, block in enumerate(model[1:]):
        block.noise = torch.Generator().manual_seed(10 * step + number)


class OnlyTeaches(WithTeacher):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.f(x)) - self.teacher(x)


CASES: dict[str, Any] = {
    **{
        kind.__name__: (kind,)
        for kind in (
            *(WithTeacher, FollowsByData, FollowsByAssignment, FollowsAtOnce, FollowsByCopy, FollowsBySetting, NewTeacher),
            *(OnlyWithGradients, HiddenAverages, BatchNorm, Queue, QueueInAttribute, FlatBuffer, BuffersThatShare),
            *(PowerIteration, OldPowerIteration, WeightNorm, Keeps, OfObjects, OfClass, OfTheProgram, Initialises, Remembers),
            *(OfTheProgramByHelpers, ThroughNumPy),
            *(
                Drops,
                Gradients,
                DrawsElsewhere,
                DrawsByName,
                DrawsFromObjects,
                DrawsFromList,
                DrawsFromAttribute,
                MakesGenerator,
            ),
        )
    },
    **{f"hidden {kind.__name__}": (hidden(kind),) for kind in (WithTeacher, FollowsByData, FollowsByAssignment, FollowsAtOnce)},
    "hidden NewTeacher": (hidden(WithTeacher),),
    **{name: (holds(*state),) for name, state in STATES.items()},
    "a hook that counts": (Block, hook_that_counts),
    "a hook that follows": (Block, hook_that_follows),
    "shared": (BatchNorm, shared),
    "flat views": (WithTeacher, flat_views),
    "flat views of blocks that write nothing": (Block, flat_views),
    "a teacher that follows outside": (OnlyTeaches, None, teacher_outside),
    "a part that begins to train": (LateTraining, None, late),
    "generators that are replaced": (DrawsFromAttribute, None, other_generators),
    "a generator that is given": (Block, gives),
}


def trained(
    kind: type[Block],
    prepare: Callable[[nn.Sequential], None] | None = None,
    after: Callable[[nn.Sequential, int], None] | None = None,
    **options: Any,
) -> tuple[list[Any], nn.Sequential]:
    global CALLS
    CALLS = 0
    COUNTS.clear()
    NOISE.manual_seed(0)
    CHANCE.seed(0)
    DICE.bit_generator.state = DrawsFromObjects.dice.bit_generator.state = np.random.default_rng(0).bit_generator.state
    if "count" in vars(kind):
        kind.count = 0  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[kind() for _ in range(3)])
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)
    found: list[Any] = []
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(4, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
            if after is not None:
                after(model, step)
    for block in model:
        found += [value for value in vars(block).values() if isinstance(value, (torch.Tensor, int, float))]
        found += [value for other in getattr(block, "others", ()) for value in (*other.parameters(), *other.buffers())]
        found += [str(getattr(block, name, "")) for name in ("seen", "times", "last", "numbers", "count")]
        found.append(getattr(getattr(block, "meter", None), "total", 0))
    found += [*model.parameters(), *model.buffers(), torch.rand(3), CALLS, COUNTS.get("calls", 0)]
    found += [torch.rand(3, generator=NOISE), DICE.random(), CHANCE.random(), DrawsFromObjects.dice.random()]
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in found], model


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str) -> None:
    plain, _ = trained(*CASES[name])
    again, model = trained(*CASES[name], memory_optimize_level="O1")
    assert len(plain) == len(again)
    differing = [
        number
        for number, (one, other) in enumerate(zip(plain, again, strict=True))
        if not (torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)
    ]
    assert not differing
    for block in model:
        vars(block).pop("average", None)


RECOMPUTED = [
    *(
        "BatchNorm",
        "Queue",
        "BuffersThatShare",
        "PowerIteration",
        "OldPowerIteration",
        "WeightNorm",
        "Initialises",
        "Remembers",
    ),
    *(
        "Drops",
        "Gradients",
        "DrawsFromAttribute",
        "MakesGenerator",
        "generators that are replaced",
        "a generator that is given",
    ),
    *("shared", "flat views of blocks that write nothing", "a part that begins to train"),
    "a teacher that follows outside",
]


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_what_can_be_computed_again_is_and_what_cannot_has_its_reason(name: str) -> None:
    _, model = trained(*CASES[name], memory_optimize_level="O1")
    found = {(row["recomputed"], row["reason"]) for row in rows(model)}
    if name in RECOMPUTED:
        assert {recomputed for recomputed, _ in found} == {True}, found
    else:
        assert any(not recomputed and reason for recomputed, reason in found), found
    for block in model:
        vars(block).pop("average", None)


ELSEWHERE = "it draws from a generator that is neither an attribute of its modules nor an input"


@pytest.mark.parametrize("name", ["DrawsElsewhere", "DrawsByName", "DrawsFromObjects", "DrawsFromList"])
def test_generators_elsewhere_are_the_reason(name: str) -> None:
    _, model = trained(*CASES[name], memory_optimize_level="O1")
    assert {(row["recomputed"], row["reason"]) for row in rows(model)} == {(False, ELSEWHERE)}


ITERATORS = ["cycle", "count", "list iterator", "generator", "iterator in slots"]


@pytest.mark.parametrize("name", ITERATORS)
def test_a_block_with_an_iterator_is_never_tried(name: str) -> None:
    _, model = trained(*CASES[name], memory_optimize_level="O1")
    path = "self.state.held" if "slots" in name else "self.state"
    for row in rows(model):
        assert not row["recomputed"]
        assert row["reason"].startswith(f"it reaches an iterator that cannot be put back: {path} (")
    assert model[1].seen == 3, "its calls are those of the four steps"


def test_a_block_that_reaches_too_much_is_never_tried() -> None:
    kind = holds(lambda: {"held": [None] * (MOST + 1), "calls": [0]}, lambda state: counted_in_item(state["calls"]))
    _, model = trained(kind, memory_optimize_level="O1")
    assert {row["reason"] for row in rows(model)} == {"it reaches more objects than are looked at: self.state['held']"}
    assert model[1].state["calls"] == [4]


@pytest.mark.full
def test_what_runs_only_where_a_block_is_made_is_not_reached() -> None:
    class Numbered(Block):
        numbers = itertools.count()

        def __init__(self) -> None:
            super().__init__()
            self.number = next(self.numbers)

    _, model = trained(Numbered, memory_optimize_level="O1")
    assert {row["recomputed"] for row in rows(model)} == {True}
