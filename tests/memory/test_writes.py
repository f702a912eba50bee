"""What a trial looks at: what the functions name that a block calls, and nothing beyond."""

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

import msctx

NUMBERS = itertools.count()
DEPTH: list[int] = []
FLAGS = {"inside": False}
LOG: list[str] = []


class Logger:
    """As libraries have them: most of its methods are seldom called, and reach what cannot be put back."""

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
        try:
            self.number()
        except Exception:
            LOG.append("an error of the trial's")
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


def rows_of(model: nn.Module, steps: int = 1) -> list[dict[str, Any]]:
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
        rows: list[dict[str, Any]] = msctx.memory_stats()["recomputed"]
    return [row for row in rows if row["path"].startswith(type(model).__name__)]


def modules(kind: type[nn.Module]) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([kind(), kind()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    Model.__name__ = f"ModelOf{kind.__name__}{next(MODELS)}"
    return Model()


MODELS = itertools.count()


def test_functions_that_are_not_called_do_not_count() -> None:
    """What they reach is not looked at: the numbers of a logger that writes nothing."""
    rows = rows_of(modules(Layer))
    assert [row["recomputed"] for row in rows] == [True, True], rows


def test_what_is_put_back_by_the_block_itself_is_no_change() -> None:
    model = modules(Layer)
    rows_of(model)
    assert not DEPTH
    assert FLAGS == {"inside": False}


def test_a_function_that_names_what_cannot_be_put_back_does_not_run_in_a_trial() -> None:
    LOG.clear()
    begin = next(NUMBERS)
    rows = rows_of(modules(Numbered))
    assert [row["reason"] for row in rows] == [
        "it reaches an iterator that cannot be put back: NUMBERS (in number) (count)"
    ] * 2
    assert [f"call {begin + 1}", f"call {begin + 2}"] == LOG  # and no error was met in the trial


def test_the_reason_names_what_is_changed() -> None:
    rows = rows_of(Cached())
    assert [row["reason"] for row in rows] == ["it changes Python objects that stay: input.results"] * 2


def test_no_trial_while_a_profiler_runs() -> None:
    """It is the profiler's place that a trial looks from: blocks, and rows of modules, wait until it is free."""

    class Row(nn.Sequential):
        pass

    models = [modules(Layer), Row(*(nn.Linear(4, 4) for _ in range(6)), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))]
    seen: list[str] = []

    def profile(_: FrameType, event: str, __: Any) -> None:
        seen.append(event)

    for model in models:
        with msctx.context(memory_optimize_level="O1") as ctx:
            ctx.watch(model)
            name = type(model).__name__
            sys.setprofile(profile)
            try:
                model(torch.ones(2, 4)).sum().backward()
                assert sys.getprofile() is profile
            finally:
                sys.setprofile(None)
            rows = [row for row in msctx.memory_stats()["recomputed"] if row["path"].startswith(name)]
            assert rows
            assert all("a profiler runs" in row["reason"] and not row["recomputed"] for row in rows), rows
            model(torch.ones(2, 4)).sum().backward()
            rows = [row for row in msctx.memory_stats()["recomputed"] if row["path"].startswith(name)]
            assert any(row["recomputed"] for row in rows), rows
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
        rows = rows_of(modules(Imports))
        assert rows[0]["recomputed"], rows
        assert sys.modules["imported_late"].known == {"number": 0}
    finally:
        sys.modules.pop("imported_late", None)


def test_collections_of_garbage_are_no_part_of_a_block() -> None:
    """What their callbacks change stays changed, and does not count."""
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
        rows = rows_of(modules(Litters))
        assert [row["recomputed"] for row in rows] == [True, True], rows
        assert gc.isenabled()
        assert counts["collections"]
    finally:
        gc.callbacks.remove(count)
