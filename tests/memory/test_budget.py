"""Which blocks keep their activations: as many as fit under the cap, by what they were measured to take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from trained_blocks import Perceptron, X, network, rows, same, stack, train

import msctx
from msctx.memory.budget import choose

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")

MB = 2**20


def test_a_cap_decides_how_much_and_holds() -> None:
    plain, before = train(network(8))
    needed, least = max(before[1:]), max(train(network(8), memory_optimize_level="O1")[1][1:])
    cap = (needed + least) // 2
    with pytest.raises(torch.OutOfMemoryError):
        train(network(8), max_device_memory=cap)
    state, after = train(model := network(8), 6, memory_optimize_level="O1", max_device_memory=cap)
    assert same(plain, train(network(8), max_device_memory="8GB")[0])
    found = [row["recomputed"] for row in rows(model)]
    assert 0 < sum(found) < len(found), "as few as needed, not all"
    assert max(after[2:]) > max(after[:2]), "what there is room for is kept"
    assert same(state, train(network(8), 6)[0])


def test_with_room_for_all_nothing_is_recomputed() -> None:
    _, before = train(network())
    _, after = train(model := network(), memory_optimize_level="O1", max_device_memory="8GB")
    assert [row["recomputed"] for row in rows(model)] == [False] * 5
    assert abs(after[-1] - before[-1]) < 0.05 * before[-1]


def test_what_a_block_keeps_is_measured() -> None:
    train(model := network(), memory_optimize_level="O1")
    size = 8 * 16 * 30 * 30 * 4
    for row in rows(model):  # the results of the convolution, of relu and the mask; the weight that is normalised is small
        assert 3 * size <= row["saved_bytes"] <= 3 * size + 64 * 1024
        assert row["seconds"] > 0
    paths = [f"1.{number}" for number in range(5)]
    assert [row["path"] for row in rows(model)] == paths
    assert {f"Sequential.{path}" for path in paths} <= {row["path"] for row in msctx.memory_stats()["recomputed"]}


def test_scopes_as_short_as_a_step_add_up() -> None:
    model = network()

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    @msctx.context(memory_optimize_level="O1", max_device_memory="8GB")
    def step() -> None:
        msctx.current().watch(model)
        model(X).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    assert [row["recomputed"] for row in rows(model)] == [False] * 5


def test_larger_inputs_are_measured_for_themselves_and_smaller_ones_go_by_them() -> None:
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    sizes = []
    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        for batch, steps in ((2, 5), (8, 5), (3, 1)):
            for _ in range(steps):
                model(X[:batch]).square().mean().backward()
                optimizer.step()
            sizes.append(rows(model)[0]["saved_bytes"])
    assert 3.5 < sizes[1] / sizes[0] < 4.5
    assert sizes[2] == sizes[1]
    assert [row["recomputed"] for row in rows(model)] == [False] * 3


def test_without_an_optimizer_of_torchs_it_is_decided_later() -> None:
    model = network(2)
    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        for _ in range(12):
            model(X[:2]).square().mean().backward()
    assert [row["recomputed"] for row in rows(model)] == [False] * 2


def test_a_tighter_cap_decides_anew() -> None:
    least = max(train(model := network(), memory_optimize_level="O1")[1][1:])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def steps(count: int) -> list[bool]:
        for _ in range(count):
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
        return [row["recomputed"] for row in rows(model)]

    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        assert not any(steps(5))
        with msctx.context(max_device_memory=least + MB):
            assert any(steps(5))
        assert not any(steps(5))


def accumulated(model: nn.Module, x: torch.Tensor, **options: Any) -> int:
    """Trains with gradients of four passes; the peak under the cap."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    with msctx.context(memory_optimize_level="O1", **options) as ctx:
        ctx.watch(model)
        for number in range(24):
            model(x).square().mean().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return msctx.memory_stats()["caps"][0]["peak_bytes"]


@pytest.mark.full
def test_the_cap_holds_when_gradients_are_accumulated_and_the_optimizer_comes_later() -> None:
    x = torch.randn(128, 128)
    optimizer_and_gradients = 3 * sum(p.nbytes for p in stack(6, 128).parameters())
    for slack in (3, 8):
        accumulated(model := stack(6, 128), x, max_device_memory=optimizer_and_gradients + slack * MB)
    assert not all(row["recomputed"] for row in rows(model)), "where there is room, some are kept"


@pytest.mark.full
def test_the_cap_holds_when_a_model_runs_several_times_in_a_step() -> None:
    def adversaries(cap: int) -> int:
        torch.manual_seed(0)
        maker, judge = stack(4, 64), stack(4, 64)
        steps = [torch.optim.Adam(model.parameters(), 1e-4) for model in (maker, judge)]
        with msctx.context(memory_optimize_level="O1", max_device_memory=cap) as ctx:
            ctx.watch(maker).watch(judge)
            for _ in range(10):
                noise = torch.randn(512, 64)
                steps[1].zero_grad()
                (judge(torch.randn(512, 64)) - judge(maker(noise).detach())).mean().backward()
                steps[1].step()
                steps[0].zero_grad()
                judge(maker(noise)).mean().backward()
                steps[0].step()
            return msctx.memory_stats()["caps"][0]["peak_bytes"]

    needed = adversaries(2**33)
    cap = int(0.6 * needed)
    assert adversaries(cap) <= cap


def test_what_was_not_reached_when_it_was_to_be_measured_is_measured_later() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.passes = nn.ModuleList([Perceptron(64) for _ in range(4)]), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            for number, layer in enumerate(self.layers):
                if self.passes > 3 or number % 2:
                    x = layer(x)
            return x

    model = Dropped()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(6):
            model(torch.randn(64, 64)).sum().backward()
            optimizer.step()
    assert all(row["saved_bytes"] and row["recomputed"] for row in rows(model))


def test_threads_have_their_own_shapes() -> None:
    model = stack(2, 32)
    errors: list[BaseException] = []

    def work(batch: int) -> None:
        try:
            for _ in range(6):
                torch.autograd.grad(model(torch.randn(batch, 32)).sum(), [*model.parameters()])
        except BaseException as error:
            errors.append(error)

    with msctx.context(memory_optimize_level="O1", max_device_memory="1GB") as ctx:
        ctx.watch(model)
        threads = [threading.Thread(target=work, args=(8 * number,)) for number in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.full
def test_on_an_accelerator_its_caps_count_and_its_statistics_stay(far: Callable[..., str]) -> None:
    far("""
        import torch
        from torch import nn
        from msctx.memory import recompute, watched

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
            def forward(self, x, *, scale):
                return x + scale * self.body(x)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.layers = nn.Embedding(9, 64), nn.ModuleList([Block() for _ in range(6)])
            def forward(self, tokens):  # on the host, as token numbers may be
                x = self.words(tokens.to("far"))
                for layer in self.layers:
                    x = layer(x, scale=0.5)
                return x

        def train(steps, on=False, fraction=1.0):
            torch.far.get_per_process_memory_fraction = lambda device: fraction
            torch.far.get_device_properties = lambda device: type("Properties", (), {"total_memory": 2**30})
            torch.manual_seed(0)
            model = Model().to("far")
            optimizer = torch.optim.Adam(model.parameters(), 1e-3)
            begin = torch.far.memory_allocated()
            peaks = []
            recompute.write(on)
            watched.OF_PROCESS.watch(model)
            for _ in range(steps):
                torch.far.reset_peak_memory_stats()
                optimizer.zero_grad()
                model(torch.arange(512).remainder(9)).square().mean().backward()
                optimizer.step()
                peaks.append(torch.far.max_memory_allocated() - begin)
            rows = recompute._budgets[model].rows() if on else []
            recompute.write(False)
            return [p.detach().cpu() for p in model.parameters()], max(peaks[2:]), [row.recomputed for row in rows], begin

        plain, most, _, begin = train(8)
        again, least, rows, _ = train(8, True)
        assert all(torch.equal(a, b) for a, b in zip(plain, again)) and rows == [True] * 6
        assert least < 0.7 * most
        cap = int((begin + (most + least) / 2) / 0.95) + 2**20
        again, between, rows, _ = train(8, True, cap / 2**30)
        assert all(torch.equal(a, b) for a, b in zip(plain, again))
        assert 0 < sum(rows) < 6, rows
        assert least < between <= cap - begin
        assert train(8, True, 0.5)[2] == [False] * 6
    """)


# --- the choice -------------------------------------------------------------------------------------------------------


@given(
    found=st.lists(st.tuples(st.integers(0, 100), st.floats(0, 10)), max_size=12),
    room=st.one_of(st.none(), st.integers(-50, 400)),
)
def test_what_is_kept_fits_and_nothing_more_would(found: list[tuple[int, float]], room: int | None) -> None:
    blocks = [(str(number), *block) for number, block in enumerate(found)]
    made = choose(blocks, room)
    assert [(row.path, row.saved_bytes, row.seconds) for row in made] == blocks
    kept = [row.saved_bytes for row in made if not row.recomputed and row.saved_bytes]
    again = [row.saved_bytes for row in made if row.recomputed]
    assert all(again)
    if room is None:
        assert kept == []
    else:
        assert sum(kept) <= max(0, room)
        assert all(sum(kept) + size > room for size in again)
    if again and room is not None:  # what is kept stays when more room is found
        more = choose(blocks, max(again), [row.path for row in made if not row.recomputed])
        assert {row.path for row in made if not row.recomputed} < {row.path for row in more if not row.recomputed}


def test_the_dearest_to_compute_is_kept_first() -> None:
    made = choose([("cheap", 10, 0.1), ("dear", 10, 1.0), ("small", 1, 0.05)], 11)
    assert [row.recomputed for row in made] == [True, False, False]


def test_of_like_blocks_the_last_are_kept() -> None:
    made = choose([(str(number), 10, 1.0 + number % 2 / 20) for number in range(5)], 25)
    assert [row.recomputed for row in made] == [True, True, True, False, False]


def test_a_model_that_is_not_called_itself_is_decided_by_its_blocks() -> None:
    """As Lightning calls ``training_step``."""
    model = network()

    def step() -> None:
        made = torch.randn(4, 3, 32, 32)
        for module in model:
            made = module(made) if not isinstance(module, nn.ModuleList) else in_turn(module, made)
        made.square().mean().backward()

    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        for _ in range(12):
            step()
        assert {row["reason"] for row in rows(model)} == {"fits under the cap"}


def in_turn(modules: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for module in modules:
        x = module(x)
    return x
