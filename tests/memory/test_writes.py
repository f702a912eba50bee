"""What a trial looks at: what the functions name that a block calls, and nothing beyond."""

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
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


# --- what a trial takes back or rules out, and trains as without O1 ---------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


class LocalLoss(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first(x.detach()).square().mean().backward()
        return super().forward(x)


class SetsGradient(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first.weight.grad
        self.first.weight.grad = self.first.weight.detach() * (1 if found is None else 2)
        return super().forward(x)


class Freezes(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.weight.requires_grad_(not self.first.weight.requires_grad)
        return super().forward(x)


class Swaps(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first, self.second = self.second, self.first
        return super().forward(x)


class Hooks(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.first._forward_hooks:
            self.first.register_forward_hook(lambda module, inputs, made: made * 1.5)
        else:
            self.first.register_forward_hook(lambda module, inputs, made: made + 1)
        return super().forward(x)


class CountsInBytes(Two):
    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count[0] += 1
        return super().forward(x) * self.count[0]


TAKEN_BACK = {
    "local loss": (LocalLoss, "it calls backward() in its forward pass, which adds to gradients each time"),
    "sets a gradient": (SetsGradient, "it changes gradients"),
    "freezes": (Freezes, "it changes which of its parameters are trained"),
    "swaps": (Swaps, "it exchanges its modules"),
    "hooks": (Hooks, "calls of its modules run hooks, which would run again"),
    "ctypes": (lambda: CountsInBytes((ctypes.c_int * 1)()), "it changes Python objects that stay: self.count"),
    "memoryview": (lambda: CountsInBytes(memoryview(bytearray(2))), "it changes Python objects that stay: self.count"),
}


def trained(make: Callable[[], nn.Module], level: str) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(make(), make()), nn.Linear(4, 4))
    with msctx.context(memory_optimize_level=level) as ctx:
        ctx.watch(model)
        for _ in range(2):
            model(torch.ones(2, 4, requires_grad=True)).square().sum().backward()
        rows: list[dict[str, Any]] = msctx.memory_stats()["recomputed"]
    gradients = [torch.zeros(()) if parameter.grad is None else parameter.grad for parameter in model.parameters()]
    return gradients, [row for row in rows if row["path"].startswith("Sequential.0.")]


@pytest.mark.parametrize("name", TAKEN_BACK)
def test_what_a_block_does_beside_computing_is_done_once(name: str) -> None:
    make, reason = TAKEN_BACK[name]
    wanted, _ = trained(make, "O0")
    found, rows = trained(make, "O1")
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert reason in {row["reason"] for row in rows}, rows


def test_a_gradient_that_is_changed_only_later_raises() -> None:
    """The trial has not seen it; the second computation does."""

    class Later(Two):
        calls_backward = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Later.calls_backward:
                self.first(x.detach()).square().mean().backward()
            return super().forward(x)

    model = nn.Sequential(nn.Sequential(Later(), Later()), nn.Linear(4, 4))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        model(torch.ones(2, 4)).sum().backward()
        Later.calls_backward = True
        loss = model(torch.ones(2, 4)).sum()
        with pytest.raises(RuntimeError, match=r"block '0\.1' changes gradients, and has now done so twice"):
            loss.backward()
