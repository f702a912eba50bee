"""What a look at a forward pass sees: what the functions name that a block calls, and nothing beyond."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from trained_blocks import rows

import msctx

NUMBERS = itertools.count()
DEPTH: list[int] = []
FLAGS = {"inside": False}
LOG: list[str] = []


class Logger:
    """As libraries have them: most of its methods are seldom called, and reach what cannot be compared."""

    def debug(self, text: str) -> None:
        if FLAGS.get("verbose"):
            self.emit(text)

    def emit(self, text: str) -> None:
        LOG.append(f"{next(NUMBERS)} {text}")


logger = Logger()


@contextmanager
def inside() -> Iterator[None]:
    """What is changed here is as before when the block ends."""
    DEPTH.append(len(DEPTH))
    FLAGS["inside"] = True
    try:
        yield
    finally:
        DEPTH.pop()
        FLAGS["inside"] = False


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if FLAGS["inside"] and DEPTH else x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logger.debug("a layer")
        with inside():
            return scaled(self.linear(x).tanh())


class Numbered(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.number()
        return super().forward(x)

    def number(self) -> None:
        LOG.append(f"call {next(NUMBERS)}")


class Filled(Layer):
    def forward(self, x: torch.Tensor, kept: Any = None) -> torch.Tensor:
        kept.results.append(x)
        return super().forward(x)


class Cached(nn.Module):
    """It hands an object to each layer, which writes to it: as caches of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Filled(), Filled()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = SimpleNamespace(results=[])
        for layer in self.layers:
            x = layer(x, kept)
        return x


def found(model: nn.Module, steps: int = 1) -> list[tuple[bool, str]]:
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
    return [(row["recomputed"], row["reason"]) for row in rows(model)]


def two(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(kind(), kind())


def test_functions_that_are_not_called_and_changes_that_a_block_takes_back_do_not_count() -> None:
    assert [recomputed for recomputed, _ in found(two(Layer))] == [True, True]
    assert not DEPTH
    assert FLAGS == {"inside": False}


def test_a_function_that_names_an_iterator_runs_once() -> None:
    LOG.clear()
    begin = next(NUMBERS)
    reason = "it reaches an iterator, whose state cannot be compared: test_look.NUMBERS (count)"
    assert found(two(Numbered)) == [(False, reason)] * 2
    assert [f"call {begin + 1}", f"call {begin + 2}"] == LOG


def test_the_reason_names_what_is_changed() -> None:
    assert [reason for _, reason in found(Cached())] == [f"it changes args[1].results[{number}]" for number in range(2)]


def test_no_look_while_a_profiler_runs() -> None:
    """Its place is where a look looks from: blocks, and rows of modules, wait until it is free."""
    seen: list[str] = []

    def profile(_: FrameType, event: str, __: Any) -> None:
        seen.append(event)

    row = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)), nn.Tanh())
    for model in (two(Layer), nn.Sequential(row, nn.Sequential(nn.Linear(4, 4), nn.Tanh()))):
        sys.setprofile(profile)
        try:
            waiting = found(model)
            assert sys.getprofile() is profile
        finally:
            sys.setprofile(None)
        assert waiting
        assert all("a profiler runs" in reason and not recomputed for recomputed, reason in waiting), waiting
        assert any(recomputed for recomputed, _ in found(model, 2))
    assert seen


def test_a_module_that_is_imported_meanwhile_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sets up is its own, and stays: as libraries that PyTorch imports only when it needs them."""
    (tmp_path / "imported_late.py").write_text(
        "import itertools\nknown = {}\nnumbers = itertools.count()\n\ndef fill():\n    known['number'] = next(numbers)\n\nfill()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    class Imports(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            import imported_late

            return super().forward(x) + imported_late.known["number"]

    try:
        assert found(two(Imports))[0][0]
        assert sys.modules["imported_late"].known == {"number": 0}
    finally:
        sys.modules.pop("imported_late", None)


def test_collections_of_garbage_are_no_part_of_a_block() -> None:
    """What their callbacks change does not count."""
    counts = {"collections": 0}

    def count(*_: Any) -> None:
        counts["collections"] += 1

    class Litters(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20_000):
                circle: list[Any] = []
                circle.append(circle)
            return super().forward(x)

    gc.callbacks.append(count)
    try:
        assert [recomputed for recomputed, _ in found(two(Litters))] == [True, True]
        assert gc.isenabled()
        assert counts["collections"]
    finally:
        gc.callbacks.remove(count)


# --- what is saved for the backward pass ------------------------------------------------------------------------------


class CountsOutside(Layer):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CountsOutside.calls += 1
        return super().forward(x)


def test_a_block_that_is_left_alone_saves_through_the_hooks_of_others() -> None:
    model, packed = two(CountsOutside), 0

    def pack(tensor: torch.Tensor) -> list[torch.Tensor]:
        nonlocal packed
        packed += 1
        return [tensor.detach()]

    def count() -> int:
        nonlocal packed
        packed = 0
        with saved_tensors_hooks(pack, lambda kept: kept[0]):
            loss = model(torch.ones(2, 4, requires_grad=True)).sum()
        made = packed
        loss.backward()
        return made

    plain = count()
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(3):
            assert count() >= plain
    with msctx.context(memory_optimize_level="O1") as ctx, disable_saved_tensors_hooks("none here"):
        ctx.watch(model).watch(other := two(Layer))
        model(torch.ones(2, 4)).sum().backward()
        other(torch.ones(2, 4)).sum().backward()
    assert CountsOutside.calls == 2 * 5


def test_what_a_block_that_is_left_alone_has_saved_may_not_be_written_to() -> None:
    """As without O1, also where it is held until the block has been looked at."""
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model := two(CountsOutside))
        made = model[0](torch.ones(2, 4))
        loss = model[1](made).sum()
        with torch.no_grad():
            made.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_watched_models_inside_blocks_of_others() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.linear = [nn.Sequential(two(Layer))], nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dropout(self.linear(self.inner[0](x)).tanh(), 0.2, True)

    def gradients(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = two(Outer)
        parts = [model, *(outer.inner[0] for outer in model)]
        with msctx.context(**options) as ctx:
            for part in parts:
                ctx.watch(part)
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
        if options:
            assert all(row["recomputed"] for part in parts for row in rows(part))
        return [p.grad for part in parts for p in part.parameters() if p.grad is not None]

    pairs = zip(gradients(), gradients(memory_optimize_level="O1"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_gradient_that_is_changed_only_later_raises() -> None:
    """The look has not seen it; the second computation does."""

    class Later(Layer):
        calls_backward = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Later.calls_backward:
                self.linear(x.detach()).square().mean().backward()
            return super().forward(x)

    model = nn.Sequential(two(Later), nn.Linear(4, 4))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        model(torch.ones(2, 4)).sum().backward()
        Later.calls_backward = True
        with pytest.raises(RuntimeError, match=r"block '0\.0' changes gradients, and has now done so twice"):
            model(torch.ones(2, 4))  # its own backward() computes the block again
