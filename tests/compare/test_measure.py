"""Times side by side; totals, settings to take, and the files that a result is written to."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparisons import SMALL, cell, made, row
from rich.text import Text

from msctx.compare import report, timing
from msctx.compare.result_and_recommendation import as_csv, below, result_of
from msctx.compare.timing import Entrant, interleaved
from msctx.tables import plain

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=0.0, perf_counter=lambda: made.now)
    monkeypatch.setattr(timing, "time", made)
    return made


def test_turns_change_their_order_and_scopes_are_left(clock):
    seen: list[str] = []

    def entrant(name: str) -> Entrant:
        @contextmanager
        def scope() -> Iterator[None]:
            clock.now += 100  # outside the time
            seen.append(name)
            yield
            seen.append(name.upper())

        def run() -> None:
            clock.now += 0.01

        return Entrant(name, scope, run)

    found = interleaved([entrant("a"), entrant("b")], 0.0, CPU)
    rounds = {tuple(seen[place : place + 4]) for place in range(4, len(seen), 4)}
    assert rounds == {("a", "A", "b", "B"), ("b", "B", "a", "A")}
    assert found["a"].rounds == timing.LEAST
    assert found["a"].seconds == pytest.approx(0.01)


def test_what_a_scope_does_when_it_is_entered_is_not_in_the_time(clock):
    """As frozen_weights, under which each weight is looked at once, and memory_optimize_level, which settles after some steps."""
    left = 0

    def entrant(name: str, cost: float, runs: int) -> Entrant:
        @contextmanager
        def scope() -> Iterator[None]:
            nonlocal left
            left = runs
            yield

        def run() -> None:
            nonlocal left
            clock.now += 0.01 + cost * max(left, 0)
            left -= 1

        return Entrant(name, scope, run)

    found = interleaved([entrant("torch", 0, 0), entrant("frozen", 0.05, 1), entrant("settles", 0.01, 4)], 0.0, CPU)
    assert {name: one.ratio for name, one in found.items()} == pytest.approx({"torch": 1.0, "frozen": 1.0, "settles": 1.0})


def test_an_entrant_that_raises_leaves_the_others(clock):
    runs = iter(range(2))

    def run() -> None:
        clock.now += 0.01

    def failing() -> None:
        clock.now += 0.01 + next(runs)  # there is no third

    found = interleaved([Entrant("a", nullcontext, run), Entrant("b", nullcontext, failing)], 0.0, CPU)
    assert isinstance(found["b"], Exception)
    assert found["a"].ratio == 1.0
    with pytest.raises(StopIteration):
        interleaved([Entrant("b", nullcontext, failing)], 0.0, CPU)


A, B = "conv_fprop_algo=gemm", "conv_fprop_algo=winograd"
TWO = SMALL + "axes: {conv_fprop_algo: [gemm, winograd]}"


@pytest.fixture
def found(tmp_path):
    rows = [
        row("first", [cell(A, 0.5), cell(B, 2.0, 1e-5)], 3),
        row("<b>second</b>", [cell(A, 1.25), cell(B)], 1, 20.0),
        row("product", [cell(A), cell(B)], 1, 5.0, "forward"),
    ]
    return result_of(made(tmp_path, TWO), rows, {"cpu": "a CPU"})


def test_totals_count_layers_as_often_as_they_occur(found):
    totals = {total.point: total for total in found.totals}
    assert totals[A].ratio == pytest.approx(55 / (60 + 16 + 5))
    assert totals[B].ratio == pytest.approx(55 / (15 + 20 + 5))
    assert (totals[B].rows, totals[B].rows_of_torch, totals[B].error) == (1, 2, 1e-5)
    assert (found.best.ratio, found.best.points) == (pytest.approx(55 / (15 + 16 + 5)), [B, A, ""])


@pytest.mark.parametrize(
    ("ratio", "spread", "more"), [(0.9, 0.01, {}), (1.2, 0.01, {"control": 1.25}), (1.2, 0.01, {"control_spread": 0.4})]
)
def test_neither_a_loss_nor_what_a_a_does_not_support_is_recommended(tmp_path, ratio, spread, more):
    of = made(tmp_path, TWO)
    for one in (of, replace(of, layers=None)):
        best = result_of(one, [row("first", [cell(A, ratio, spread=spread), cell(B)], **more)], {})
        assert (best.best.ratio, best.best.points, best.recommended) == (1.0, [""], "")


def test_what_is_set_for_another_device_stays_so(tmp_path):
    of = made(tmp_path, SMALL + "context: {gpu_config: {conv_fprop_algo: fft}, cpu_config: {conv_fprop_algo: gemm}}")
    assert result_of(of, [], {}).context == {"conv_fprop_algo": "gemm", "gpu_config.conv_fprop_algo": "fft"}


def test_options_beside_algorithms_hold_in_all_rows_or_in_none(tmp_path):
    of = made(tmp_path, SMALL + "axes: {way: {a: {conv_fprop_algo: fft, conv_allow_tf32: true}, b: {conv_fprop_algo: gemm}}}")

    def best(*rows: list[Any]) -> list[str]:
        return result_of(of, [row(n, cells) for n, cells in zip(("first", "<b>second</b>"), rows, strict=True)], {}).best.points

    assert best([cell("a", 2.0), cell("b", 1.2)], [cell("a", 0.9), cell("b")]) == ["a", "a"]
    assert best([cell("a", 2.0), cell("b", 1.2)], [cell("a"), cell("b", 0.9)]) == ["b", ""]
    assert best([cell("a", 2.0), cell("b", 1.2)], [cell("a", status="no_say"), cell("b", 0.9)]) == ["a", "a"]


def test_a_model_gets_what_is_right_everywhere(tmp_path):
    of = replace(made(tmp_path, SMALL + "context: {seed: 1}\naxes: {session.deterministic: [1, 0]}"), layers=None)
    on, off = (point.name for point in of.points)

    def taken(*cells: list[Any]) -> str:
        return result_of(of, [row("first", each) for each in cells], {}).recommended

    assert taken([cell(on, 3.0), cell(off, 1.005)], [cell(on), cell(off, 1.0)]) == ""
    for other in (cell(off, 1.0), cell(off, status="no_say")):
        assert taken([cell(on, 3.0), cell(off, 1.2)], [cell(on), other]) == "context:\n  seed: 1\n  deterministic: 'OFF'\n"


def test_csv_has_a_line_for_each_cell(found):
    lines = [*csv.DictReader(io.StringIO(as_csv(found)))]
    assert len(lines) == 6
    assert (lines[1]["ratio"], lines[1]["baseline_ms"], lines[5]["reason"]) == ("2.0", "10.0", "it cannot")


def test_what_is_slower_than_it_may_be(found):
    found.rows.append(row("third", [], reason="it cannot run: boom"))
    assert below(found, 0.9) == ["third fprop: it cannot run: boom", f"{A}: 0.68 of torch's speed"]


def test_on_a_terminal(tmp_path):
    names = [f"c{number}" for number in range(9)]
    sets = "".join(f"    {name}: {{deterministic: ON}}\n" for name in names)
    of = made(tmp_path, f"{SMALL}context: {{seed: 1}}\naxes:\n  way:\n{sets}")
    cells = [cell(name, 1.0 + number, spread=0.1, workspace=5 << 10, ran="torch x1") for number, name in enumerate(names)]
    rows = [row("[b]first[/b]", [*cells[:-1], cell(names[-1])], 3, 12.0, noisy=True), row("none", [], reason="no memory")]
    found = result_of(replace(of, layers=None), rows, {}, "interrupted")
    shown = "\n".join(str(part) if isinstance(part, Text) else plain(part) for part in report.parts(found))
    for part in (
        *("[b]first[/b] fprop x3 (noisy)", "12 (1e-07)", "c7 8.00 ±5% (1e-06)", "5 KiB", "no memory", "fprop, c0: torch x1"),
        *("partial: interrupted", "all of it, torch's own path too, with seed=1", "c8, 1 row: it cannot"),
        "what to set: nothing, as no choice that is right everywhere is faster than torch beyond the noise",
    ):
        assert part in shown, part
