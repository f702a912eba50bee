"""Recorded problems are measured under the very keys under which they were recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as fn

import msctx
from msctx.compare import offline
from msctx.errors import FileError
from msctx.native import core, tuning, tuning_file, untuned
from msctx.native.untuned import Untuned

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = Untuned("cpu", "fprop", "1x3x5x5 * 4x3x3x3, float32, channels_first", 1, "strict, fp32-grade", 1)


def convolutions(dtype: torch.dtype, layout: torch.memory_format) -> None:
    for shape, options in (
        ((6, 4, 3, 3), {"stride": (2, 1), "padding": (1, 0)}),
        ((6, 2, 3, 3), {"groups": 2, "dilation": 2}),
        ((6, 4, 1, 1), {}),
    ):
        made = torch.randn(2, 4, 9, 8, dtype=dtype), torch.randn(shape, dtype=dtype)
        x, w = (tensor.contiguous(memory_format=layout).requires_grad_() for tensor in made)
        fn.conv2d(x, w, **options).sum().backward()


def other_convolutions() -> None:
    x, w = torch.randn(1, 3, 5, 6, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)
    fn.conv_transpose2d(x, w, stride=2, output_padding=1).sum().backward()
    fn.conv1d(torch.randn(2, 4, 9), torch.randn(6, 4, 3))
    fn.conv3d(torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 3, 3, 3), padding=1)
    fn.conv2d(torch.randn(1, 1, 1, 1), torch.randn(1, 1, 1, 1))


def products(dtype: torch.dtype) -> None:
    for lying, (rows, depth, columns) in itertools.product(
        itertools.product((False, True), repeat=2), ((5, 7, 3), (1, 7, 3), (5, 1, 3), (5, 7, 1))
    ):
        a, b = (
            torch.randn(3, columns, rows, dtype=dtype).mT if transposed else torch.randn(3, rows, columns, dtype=dtype)
            for transposed, rows, columns in zip(lying, (rows, depth), (depth, columns), strict=True)
        )
        a @ b
        a[0] @ b[0]
    torch.randn(5, 7, dtype=dtype) @ torch.randn(7, dtype=dtype)


PROGRAMS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "channels-first": (lambda: convolutions(torch.float32, torch.contiguous_format), {}),
    "channels-last": (lambda: convolutions(torch.bfloat16, torch.channels_last), {}),
    "float64": (lambda: convolutions(torch.float64, torch.contiguous_format), {"allow_fp32_emulation": False}),
    "limits": (
        lambda: convolutions(torch.float32, torch.channels_last),
        {"conv_workspace_limit": 10**6, "conv_max_error": 1e-5, "conv_allow_tf32": True},
    ),
    "others": (other_convolutions, {}),
    "products": (lambda: products(torch.float32), {"matmul_max_error": 1e-6}),
    "half-products": (lambda: products(torch.bfloat16), {"matmul_allow_tf32": True}),
}


@pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_problem_is_measured_as_it_was_recorded(program: str, tmp_path: Path) -> None:
    run, options = PROGRAMS[program]
    with msctx.context(aoe_tune_mode="offline", work_path=str(tmp_path), **options):
        run()
    problems, _ = untuned.read(tmp_path)
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open():
        found = [bench.result(one) for one in problems]
    assert [(result.status, result.why) for result in found] == [("measured", "")] * len(problems)
    before = core.load().measurements()
    with bench.open():
        again = [bench.result(one) for one in problems]
    assert [(result.status, result.entry) for result in again] == [("known", result.entry) for result in found]
    with msctx.context(aoe_tune_mode="online", tuning_file=str(tmp_path / "tuned.json"), **options):
        run()
    assert core.load().measurements() == before, "a later run finds them all"


@pytest.mark.parametrize("epilogue", ["scale+shift+relu", "shift+clamp", "shift+add+relu", "shift+sigmoid+add", "add", "silu"])
def test_what_follows_a_convolution_in_its_call_is_measured_with_it(epilogue: str, tmp_path: Path) -> None:
    one = replace(ONE, problem=f"2x8x6x6 * 8x8x3x3, float32, padding 1, channels_last, then {epilogue}")
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open():
        assert bench.result(one).status == "measured"


@pytest.mark.parametrize("epilogue", ["shift+gelu_tanh", "scale+add"])
def test_what_follows_a_product_is_measured_with_it(epilogue: str, tmp_path: Path) -> None:
    one = replace(ONE, direction="matmul", problem=f"7x8 * 8x6, float32, NT, then {epilogue}")
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open():
        result = bench.result(one)
    assert (result.status, result.entry.problem) == ("measured", one.problem)


def test_results_say_what_is_chosen_and_its_gain(tmp_path: Path) -> None:
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open():
        result = bench.result(ONE)
    assert result.entry is not None
    assert result.gain == result.entry.measured["torch"]
    shown = result.as_dict()
    assert (shown["problem"], shown["calls"], shown["ran"]) == (ONE.problem, 1, result.entry.ran)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"problem": "of nobody"}, "no problem as choices"),
        ({"problem": "1x3x5x5 * 4x9x3x3, float32, channels_first"}, "RuntimeError"),
        ({"problem": "1x3x5x5 * 4x3x3x3, float7, channels_first"}, "float7"),
        ({"problem": "9 * 9, float32, NN", "direction": "matmul"}, "did not run as it was recorded"),
        ({"device": "cuda"}, "which is not here"),
        ({"permissions": "strict, error much"}, "much"),
    ],
)
def test_what_cannot_be_measured_is_told_and_the_others_go_on(broken: dict[str, Any], why: str, tmp_path: Path) -> None:
    bad = replace(ONE, **broken)
    if bad.device == "cuda" and torch.cuda.is_available():
        pytest.skip("CUDA is here")
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open():
        found = [bench.result(one) for one in offline.by_cost([bad, ONE])]
    assert {result.status for result in found} == {"left", "measured"}
    (left,) = [result for result in found if result.status == "left"]
    assert why in left.why


def test_what_is_asked_for_outside_may_forbid_it(tmp_path: Path) -> None:
    bench = offline.Bench(tmp_path / "tuned.json")
    with bench.open(), msctx.context(deterministic="ON"):
        result = bench.result(ONE)
    assert (result.status, "nothing is measured under deterministic=ON" in result.why) == ("left", True)


def test_the_time_for_all_is_bounded_and_what_is_known_costs_none(tmp_path: Path) -> None:
    first = offline.Bench(tmp_path / "tuned.json")
    with first.open():
        first.result(ONE)
    bench = offline.Bench(tmp_path / "tuned.json", seconds=0)
    with bench.open():
        assert bench.result(ONE).status == "known"
        assert bench.result(replace(ONE, direction="wgrad")).why == "no time was left"


def test_the_limit_of_a_process_holds_again_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[float] = []
    monkeypatch.setattr(core.Core, "limit_measuring", lambda self, seconds: limits.append(seconds))
    due = tuning._Shown.due
    bench = offline.Bench(tmp_path / "tuned.json")

    def interrupted() -> None:
        with bench.open():
            assert tuning._Shown.due == float("inf")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (limits, tuning._Shown.due) == ([float("inf"), tuning.MOST], due)


def test_what_computes_most_comes_first() -> None:
    many = [
        replace(ONE, calls=60),
        replace(ONE, problem="8x3x9x9 * 4x3x3x3, float32, channels_first"),
        replace(ONE, problem="?"),
    ]
    product = replace(ONE, direction="matmul", problem="900x900 * 900x900, float32, NN")
    assert [one.calls for one in offline.by_cost([*many, product])] == [1, 60, 1, 1]
    assert offline.by_cost([*many, product])[0] == product
    assert offline.by_cost(many)[-1].problem == "?"


def test_a_tuning_file_that_cannot_be_written_ends_it_before_anything_is_measured(tmp_path: Path) -> None:
    for path, text in ((Path("/sys/tuned.json"), None), (tmp_path / "newer.json", '{"format": "msctx tuning 2.0"}')):
        if text:
            path.write_text(text)
        with pytest.raises(FileError):
            offline.Bench(path)
    newer = tmp_path / "minor.json"
    newer.write_text(tuning_file.text_of({}).replace("tuning 1.0", "tuning 1.9"))
    with pytest.raises(FileError, match="newer msctx"):
        offline.Bench(newer)
