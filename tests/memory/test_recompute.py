"""memory_optimize_level=O1: which blocks are recomputed, and that a training has the same bits."""

import copy
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import two_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.errors import MsctxWarning
from msctx.memory.recompute import blocks

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH = 32
State = dict[str, torch.Tensor]


def train(make: Callable[[], nn.Module], x: torch.Tensor, steps: int = 3, **options: Any) -> tuple[State, list[dict[str, Any]]]:
    """The state after some steps, and what was recomputed in the last one."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    random.seed(1)
    np.random.seed(1)
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        torch.manual_seed(1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        rows = msctx.memory_stats()["recomputed"]
    assert all("forward" not in vars(module) for module in model.modules())
    name = type(model).__name__
    return dict(model.state_dict()), [row for row in rows if row["path"].startswith(f"{name}.")]


def check_same_bits(make: Callable[[], nn.Module], x: torch.Tensor) -> list[dict[str, Any]]:
    expected, _ = train(make, x, memory_optimize_level="O0")
    found, rows = train(make, x, memory_optimize_level="O1")
    different = [name for name, value in expected.items() if not torch.equal(value, found[name])]
    assert not different
    return rows


def transformer(count: int = 4, width: int = WIDTH) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.2, batch_first=True), count)


def mlp(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))


class Stack(nn.Module):
    """Blocks with batch norm, and with what they compute in place."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("layer1", "layer2"):
            made = [(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=None), nn.ReLU(inplace=True)) for _ in range(2)]
            setattr(self, name, nn.Sequential(*(nn.Sequential(*layers, nn.Dropout(0.2)) for layers in made)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer2(self.layer1(x))


def test_batch_norms_dropout_and_what_is_in_place_have_the_same_bits() -> None:
    rows = check_same_bits(Stack, torch.randn(4, 3, 16, 16))
    assert [row["path"] for row in rows] == [f"Stack.layer{stage}.{number}" for stage in (1, 2) for number in (0, 1)]
    assert all(row["recomputed"] and row["saved_bytes"] > 0 for row in rows)


def test_two_ranks_with_ddp_have_the_same_bits(tmp_path: Path) -> None:
    two_ranks(
        tmp_path,
        """
from torch.nn.parallel import DistributedDataParallel as DDP

def trained(rank, **options):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Tanh(), nn.Linear(32, 16)) for _ in range(3)]
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(1 + rank)
    with msctx.context(**options).watch(model):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).square().mean().backward()
            optimizer.step()
        rows = msctx.memory_stats()["recomputed"][-3:]
    return [value.clone() for value in model.state_dict().values()], [(row["recomputed"], row["reason"]) for row in rows]

def test(rank):
    expected, _ = trained(rank)
    found, rows = trained(rank, memory_optimize_level="O1")
    assert all(map(torch.equal, expected, found))
    assert rows == [(True, "there is no cap, and O1 puts memory first")] * 3, rows
""",
    )


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([mlp(), mlp()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[1](self.inner[0](x))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(mlp(), mlp()), ["0", "1"]),
        (nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": Stages(), "b": Stages()})), ["1.a", "1.b"]),
        (nn.Sequential(nn.Sequential(Stages(), Stages()), nn.Sequential(Stages(), Stages())), ["0.0", "0.1", "1.0", "1.1"]),
        (nn.ModuleDict({"body": mlp(), "act": nn.Tanh(), "rnn": nn.LSTM(2, 2)}), ["body", "rnn"]),
        (nn.ModuleDict({"wrapped": nn.ModuleDict({"body": mlp(), "rnn": nn.LSTM(2, 2)})}), ["wrapped.body", "wrapped.rnn"]),
        (nn.Sequential(nn.Linear(2, 2), nn.ModuleList([mlp(), nn.LSTM(2, 2)])), ["1.0", "1.1"]),
        (mlp(), []),
    ],
)
def test_blocks_are_repeated_elements_of_outermost_containers_else_children(model: nn.Module, expected: list[str]) -> None:
    assert [*blocks(model)] == expected
    if not expected:
        with msctx.context(memory_optimize_level="O1") as ctx, pytest.warns(MsctxWarning, match="Sequential has no blocks"):
            ctx.watch(model)


def test_under_a_cap_as_few_blocks_are_recomputed_as_it_requires() -> None:
    x, counts = torch.randn(16, 32, WIDTH), []
    make = lambda: transformer(8)  # noqa: E731
    expected, _ = train(make, x, memory_optimize_level="O0")
    for cap in ("10MB", "16MB", "64MB"):
        found, rows = train(make, x, memory_optimize_level="O1", max_device_memory=cap)
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
        counts.append(sum(row["recomputed"] for row in rows))
    assert counts[0] > counts[1] > counts[2] == 0, counts
    with pytest.raises(torch.OutOfMemoryError):
        train(make, x, memory_optimize_level="O0", max_device_memory="10MB")


def test_larger_inputs_are_measured_again_and_a_smaller_cap_inside_acts() -> None:
    model = transformer(8)
    counts = []

    def step(batch: int) -> None:
        model.zero_grad()
        model(torch.randn(batch, 32, WIDTH)).sum().backward()
        counts.append(sum(row["recomputed"] for row in msctx.memory_stats()["recomputed"][-8:]))

    with msctx.context(memory_optimize_level="O1", max_device_memory="16MB") as ctx:
        ctx.watch(model)
        for batch in (4, 4, 16, 16, 4):
            step(batch)
        with msctx.context(max_device_memory="12MB"):
            step(16)
    assert counts[:3] == [8, 0, 8]
    assert 0 < counts[3] < counts[5] <= 8, counts
    assert counts[4] == counts[3], "smaller inputs go by what was measured with larger ones"


class Acts(nn.Module):
    """Does something else than to compute."""

    def __init__(self, act: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.body, self.act, self.count = mlp(), act, 0
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        more = self.act(self, y)
        return y if more is None else y * more

    def counts(self, y: torch.Tensor) -> int:
        self.count += 1
        return self.count

    def assigns(self, y: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + y.mean(0).detach()
        return self.mean


@pytest.mark.parametrize(
    "act",
    [
        Acts.counts,
        Acts.assigns,
        lambda self, y: self.mean.add_(y.mean(0).detach()).clone(),
        lambda self, y: random.random() + np.random.rand(),
        lambda self, y: checkpoint(torch.tanh, y, use_reentrant=False),
        lambda self, y: torch.rand(WIDTH),
    ],
)
def test_a_block_finds_again_what_it_changes(act: Any) -> None:
    rows = check_same_bits(lambda: nn.Sequential(Acts(act), Acts(act)), torch.randn(4, WIDTH))
    assert [row["recomputed"] for row in rows] == [True] * 2


class Writes(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2))


def test_blocks_that_write_to_their_input_are_left_alone_from_the_second_step_on() -> None:
    rows = check_same_bits(
        lambda: nn.Sequential(mlp(), *[Writes(nn.Linear(WIDTH, WIDTH)) for _ in range(2)]), torch.randn(4, WIDTH)
    )
    assert {row["reason"] for row in rows} == {"it writes to its inputs"}


class Table(nn.Linear):
    """A state that goes through the blocks."""

    def forward(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        state["x"] = super().forward(state["x"]).sin()
        return state


def test_blocks_that_write_into_a_dictionary_are_left_alone_from_the_second_step_on() -> None:
    model = nn.Sequential(*[nn.Sequential(Table(WIDTH, WIDTH)) for _ in range(3)])

    def step() -> list[torch.Tensor]:
        loss = model({"x": torch.ones(2, WIDTH)})["x"].square().sum()
        return [*torch.autograd.grad(loss, [*model.parameters()])]

    expected = step()
    with msctx.context(memory_optimize_level="O1").watch(model):
        for recomputed in (True, False):
            assert all(map(torch.equal, step(), expected))
            assert {row["recomputed"] for row in msctx.memory_stats()["recomputed"][-3:]} == {recomputed}


class Overwriting(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).exp_().mul_(2)


@pytest.mark.parametrize("cap", [{}, {"max_device_memory": "4GB"}])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, lambda width: Overwriting(width, width)])
def test_what_a_block_or_another_call_overwrites_is_an_error(kind: Callable[[int], nn.Module], cap: dict[str, str]) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), kind(WIDTH)) for _ in range(2)])
    with msctx.context(memory_optimize_level="O1", **cap).watch(model):
        loss = model.eval()(torch.ones(2, WIDTH)).sum()
        loss = loss + model.train()(torch.ones(2, WIDTH)).sum()
        with pytest.raises(RuntimeError, match=r"buffers or inputs of .* were modified|modifies in place what its own"):
            loss.backward()


def test_what_communicates_is_scripted_traced_or_under_hooks_and_transforms_is_left_alone() -> None:
    def reasons() -> list[str]:
        return [row["reason"] for row in msctx.memory_stats()["recomputed"][-2:]]

    for part in (nn.SyncBatchNorm(WIDTH), torch.jit.script(nn.Tanh())):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), part) for _ in range(2)))
        with msctx.context(memory_optimize_level="O1").watch(model):
            assert ["communicates" in reason for reason in reasons()] == [True] * 2
    model, x = nn.Sequential(mlp(), mlp()), torch.randn(4, WIDTH)
    with msctx.context(memory_optimize_level="O1").watch(model):
        with torch.autograd.graph.save_on_cpu():
            model(x).sum().backward()
        assert ["hooks on saved tensors" in reason for reason in reasons()] == [True] * 2
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(dict(model.named_parameters()))
        assert torch.equal(torch.jit.trace(model, x)(x), model(x))
        assert torch.export.export(model, (x,)) is not None
        assert not any(row["recomputed"] for row in msctx.memory_stats()["recomputed"][-2:] if "traced" in row["reason"])


def test_compiled_models_stay_whole_and_blocks_that_call_compiled_code_are_recomputed() -> None:
    compiled, x = torch.compile(torch.tanh, backend="aot_eager", fullgraph=True), torch.randn(4, WIDTH)
    rows = check_same_bits(lambda: nn.Sequential(*(Acts(lambda self, y: compiled(y)) for _ in range(2))), x)
    assert all(row["recomputed"] for row in rows)
    model = nn.Sequential(mlp(), mlp())
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(whole(x).sum(), [*model.parameters()])
    with msctx.context(memory_optimize_level="O1").watch(whole):
        assert all(map(torch.equal, expected, torch.autograd.grad(whole(x).sum(), [*model.parameters()])))
        assert "in eager code" in msctx.memory_stats()["recomputed"][-1]["reason"]


def test_a_model_is_as_before_and_its_copies_work() -> None:
    model, x = nn.Sequential(mlp(), mlp()), torch.randn(4, WIDTH)
    before = [dict(vars(module)) for module in model.modules()]
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        expected = model(x)
        with msctx.context(memory_optimize_level="O0"):
            assert [dict(vars(module)) for module in model.modules()] == before, "an inner O0 acts"
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
        for other in copies:
            nn.init.zeros_(other[1][2].bias)
        assert torch.equal(model(x), expected)
    assert [dict(vars(module)) for module in model.modules()] == before
    nn.init.zeros_(model[1][2].bias)
    for other in copies:
        assert torch.equal(other(x), model(x))
        ctx.watch(other)
        with ctx:
            other(x).sum().backward()
            assert [row["recomputed"] for row in msctx.memory_stats()["recomputed"][-2:]] == [True, True]


def test_gradients_may_be_taken_later_and_twice_and_a_block_inside_a_block_is_part_of_it() -> None:
    model, x = nn.Sequential(nn.Sequential(mlp(), mlp(), mlp()), Stages()), torch.randn(4, WIDTH)
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(nn.Sequential(model[1], Stages())).watch(model[1])
        losses = [model(x).sum() for _ in range(2)]
    for loss in losses * 2:
        assert all(map(torch.equal, expected, torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)))
    calls: list[int] = []
    model[1].register_forward_hook(lambda *_: calls.append(1))
    with ctx:
        model(x).sum().backward()
    assert calls == [1], "a block's own hooks run once"


def test_parameters_that_change_between_the_passes_are_an_error() -> None:
    model = nn.Sequential(mlp(), mlp())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        loss = model(torch.randn(4, WIDTH)).sum()
        nn.init.zeros_(model[0][0].weight)
        with pytest.raises(RuntimeError, match=r"parameters, buffers or inputs of 'Sequential.0' were modified"):
            loss.backward()


def test_inputs_that_change_between_the_passes_are_an_error(passes: Callable[..., str]) -> None:
    """Plain PyTorch needs no input of these blocks: of relu it keeps the result. In a process, as the graph then holds itself."""
    passes("""
        import msctx, torch
        from torch import nn
        class Added(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))
            def forward(self, x):
                x = x.clone()
                for block in self.blocks:
                    x += block(x)
                return x
        model, x = Added(), torch.randn(4, 8)
        model(x).sum().backward()
        with msctx.context(memory_optimize_level="O1").watch(model):
            try:
                model(x).sum().backward()
            except RuntimeError as error:
                assert "inputs of 'Added.blocks.1' were modified" in str(error)
            else:
                raise AssertionError("gradients of other values")
    """)


def test_on_an_accelerator_its_own_statistics_are_read(far: Callable[..., str]) -> None:
    far("""
        import torch
        from types import SimpleNamespace
        from msctx.memory.recompute import tightest_cap

        device = torch.device("far")
        assert tightest_cap(device) is None
        torch.far.get_per_process_memory_fraction = lambda device: 0.5
        torch.far.get_device_properties = lambda device: SimpleNamespace(total_memory=2**20)
        more = torch.empty(4096, dtype=torch.uint8, device=device)
        del more
        limit, now, most = tightest_cap(device)
        assert limit == 2**19 and most - now >= 4096
    """)
