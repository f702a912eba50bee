"""aoe_tune_mode=offline: what is recorded, under which keys, and the files."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tuned
from convs import bits, conv
from torch.nn import functional as fn

import msctx
from msctx.errors import FileError
from msctx.native import untuned
from msctx.native.untuned import Untuned

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = Untuned("cpu", "fprop", "1x3x8x8 * 4x3x3x3, float32, channels_first", 2, "strict, fp32-grade", 3)
TEXT = untuned.text_of([ONE])


def offline(folder: Path, **options: Any) -> msctx.Context:
    return msctx.context(aoe_tune_mode="offline", work_path=str(folder), **options)


def network() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2)
    return torch.nn.Sequential(*layers), torch.randn(2, 3, 8, 8, requires_grad=True)


def step(net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    x.grad = None
    y = net(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in net.parameters())]


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_all_runs_as_without_it_and_nothing_is_measured(tmp_path: Path) -> None:
    net, x = network()
    expected, before = step(net, x), tuned.measurements()
    with offline(tmp_path) as ctx:
        found = step(net, x)
    assert [bits(one) for one in found] == [bits(one) for one in expected]
    assert tuned.measurements() == before
    assert {(row.asked, row.ran, row.reasons) for row in ctx.choices()} == {
        ("torch", "torch", ("recorded, to be measured later",))
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allow_fp32_emulation": False},
        {"conv_workspace_limit": 10**6, "conv_max_error": 1e-5, "matmul_max_error": 1e-6},
    ],
)
def test_the_keys_are_those_of_what_performance_measures(
    options: dict[str, Any], tmp_path: Path, own_tuning_file: Path
) -> None:
    net, x = network()
    with offline(tmp_path, **options):
        for _ in range(2):
            step(net, x)
    with msctx.context(aoe_tune_mode="online", **options):
        step(net, x)
    problems, _ = untuned.read(tmp_path)
    assert {(p.direction, p.problem, p.threads, p.permissions) for p in problems} == {
        e.key for e in tuned.entries(own_tuning_file)
    }
    assert {(p.device, p.calls) for p in problems} == {("cpu", 2)}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"conv_fprop_algo": "gemm"}, {"dgrad": "torch", "wgrad": "torch", "matmul": "torch"}),
        (
            {"conv_fprop_algo": "normal", "matmul_algo": "strict"},
            {"fprop": "normal", "dgrad": "torch", "wgrad": "torch"},
        ),
        ({"thread_invariant": True}, dict.fromkeys(("fprop", "dgrad", "wgrad", "matmul"), "thread_invariant")),
        ({"conv_algo_rules": "weight=4x3x3x3: gemm"}, {"dgrad": "torch", "wgrad": "torch", "matmul": "torch"}),
        ({"batch_invariant": True}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning")
def test_what_is_asked_for_by_name_runs_and_is_not_recorded(
    options: dict[str, Any], asked: dict[str, str], tmp_path: Path
) -> None:
    net, x = network()
    with offline(tmp_path, **options) as ctx:
        step(net, x)
    found = {row.direction: row.asked for row in ctx.choices()}
    assert {d: found[d] for d in asked} == asked
    written = [*tmp_path.iterdir()]
    assert {p.direction for p in untuned.read(tmp_path)[0]} == set(asked) if asked else not written


def test_what_cannot_be_tuned_or_did_not_run_is_not_recorded(tmp_path: Path) -> None:
    x, w, b = torch.randn(1, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3), torch.randn(4, requires_grad=True)
    with offline(tmp_path) as ctx:
        fn.conv2d(x, w, b).sum().backward()  # no gradient of the weight
        fn.conv2d(torch.randn(1, 3, 6, 6, dtype=torch.complex64), w.to(torch.complex64))
    assert sorted(p.direction for p in untuned.read(tmp_path)[0]) == ["dgrad", "fprop"]
    assert {row.direction for row in ctx.choices()} == {"dgrad", "fprop"}


def test_more_contexts_and_threads_add_to_the_file_of_the_process(tmp_path: Path, threads: Callable[[int], Any]) -> None:
    x, w = torch.randn(1, 3, 7, 5), torch.randn(4, 3, 3, 3)
    for count in (1, 2, 2):
        with threads(count), offline(tmp_path):
            fn.conv2d(x, w)
    problems, (file,) = untuned.read(tmp_path)
    assert sorted((p.threads, p.calls) for p in problems) == [(1, 1), (2, 2)]
    assert os.listdir(tmp_path) == [file.name], "nothing is left beside it"
    assert [json.loads(line.strip(" ,"))["calls"] for line in file.read_text().splitlines() if "problem" in line[4:]] == [2, 1]


def test_a_scope_inside_with_an_algorithm_of_its_own(tmp_path: Path) -> None:
    x, w = torch.randn(1, 3, 7, 4), torch.randn(4, 3, 3, 3)
    with offline(tmp_path):
        fn.conv2d(x, w)
        with msctx.context(conv_fprop_algo="gemm"):
            fn.conv2d(x[:, :, 1:], w)
        assert len(untuned.read(tmp_path)[0]) == 1, "written when the policy changes, too"
        fn.conv2d(x, w)
    (one,) = untuned.read(tmp_path)[0]
    assert one.calls == 2


def test_set_context_records_until_the_process_ends(passes: Callable[..., str], tmp_path: Path) -> None:
    passes(
        f"""
        import torch, msctx
        msctx.set_context(aoe_tune_mode="offline", work_path={str(tmp_path)!r})
        torch.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
        """
    )
    assert [p.direction for p in untuned.read(tmp_path)[0]] == ["fprop"]


@pytest.mark.full
def test_each_process_has_a_file_of_its_own(passes: Callable[..., str], tmp_path: Path) -> None:
    code = f"""
        import os, torch, msctx
        torch.set_num_threads(1)
        w = torch.randn(4, 3, 3, 3)
        msctx.set_context(aoe_tune_mode="offline", work_path={str(tmp_path)!r})
        torch.conv2d(torch.randn(1, 3, 8, 8), w)
        if not (child := os.fork()):
            with msctx.context(conv_fprop_algo="gemm"):
                pass
            os._exit(0)
        os.waitpid(child, 0)
        torch.conv2d(torch.randn(1, 3, 9, 8), w)
    """
    passes(code)
    problems, files = untuned.read(tmp_path)
    assert len(files) == 2
    assert sorted(p.problem.partition(" ")[0] for p in problems) == ["1x3x8x8", "1x3x9x8"]


# --- the files --------------------------------------------------------------------------------------------------------


def test_problems_of_several_files_are_added_up(tmp_path: Path) -> None:
    other = replace(ONE, device="cuda", direction="wgrad")
    (tmp_path / "msctx_untuned_a.json").write_text(untuned.text_of([ONE, other]))
    (tmp_path / "msctx_untuned_b.json").write_text(untuned.text_of([replace(ONE, calls=4)]))
    (tmp_path / "else.json").write_text("{")
    problems, files = untuned.read(tmp_path)
    assert {(p, p.calls) for p in problems} == {(ONE, 7), (other, 3)}
    assert [path.name for path in files] == ["msctx_untuned_a.json", "msctx_untuned_b.json"]
    assert untuned.read(files[1])[0][0].calls == 4


def test_the_same_problems_give_the_same_text() -> None:
    many = [replace(ONE, threads=i % 3 + 1, direction=d) for i, d in itertools.product(range(3), ("fprop", "dgrad"))]
    assert untuned.text_of(many) == untuned.text_of(reversed(many))


BROKEN = {
    "cut off": (TEXT[:60], ":4:", "this is not JSON"),
    "of another kind": ('{"format": "msctx tuning 1.0"}', ":1:12", "this is no file of recorded problems of msctx"),
    "newer": (TEXT.replace("1.0", "2.0"), ":2:13", "msctx untuned 2.0 is a format that this msctx does not read"),
    "device": (TEXT.replace('"cpu"', '"tpu"'), ":4:", "device: Input should be 'cpu' or 'cuda'"),
    "calls": (TEXT.replace('"calls": 3', '"calls": 0'), ":4:", "calls: Input should be greater than or equal to 1"),
    "control": (TEXT.replace("channels_first", "\\u0000"), ":4:", "problem: Predicate"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_reported_at_its_place(broken: str, tmp_path: Path) -> None:
    text, place, message = BROKEN[broken]
    path = tmp_path / "msctx_untuned_x.json"
    path.write_text(text)
    with pytest.raises(FileError) as raised:
        untuned.read(tmp_path)
    for part in (f"{path}{place}", message, 'move it away, or record with aoe_tune_mode="offline" anew'):
        assert part in str(raised.value)


def test_a_higher_minor_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(TEXT.replace("1.0", "1.7").replace('"calls"', '"mood": "good", "calls"'))
    assert untuned.read(path)[0] == [ONE]


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"msctx_untuned_{name}.json").write_text("{")
    with pytest.raises(FileError, match=r"(?s)untuned_a.*untuned_b.*2 problems"):
        untuned.read(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_where_nothing_was_recorded(there: bool, tmp_path: Path) -> None:
    place = tmp_path if there else tmp_path / "none"
    with pytest.raises(FileError, match=r'record with aoe_tune_mode="offline" first'):
        untuned.read(place)


@pytest.mark.parametrize("folder", ["/nowhere", "/sys"])
def test_a_folder_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    folder: str, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(2):
        with offline(Path(folder)):
            fn.conv2d(torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3))
    (warning,) = [str(w.message) for w in recwarn if issubclass(w.category, msctx.MsctxWarning)]
    assert "recorded" in warning
    assert "name another folder with work_path" in warning


@pytest.mark.full
def test_warnings_as_errors_leave_the_state_as_it_was(passes: Callable[..., str]) -> None:
    passes(
        """
        import warnings, torch, msctx
        from msctx.native import untuned
        warnings.simplefilter("error", msctx.MsctxWarning)
        before = msctx.state()
        try:
            with msctx.context(aoe_tune_mode="offline", work_path="/nowhere"):
                raise AssertionError
        except msctx.MsctxWarning as warning:
            assert "/nowhere is no folder" in str(warning)
        assert msctx.state() == before
        untuned.os.access = lambda *given: True
        try:
            with msctx.context(aoe_tune_mode="offline", work_path="/nowhere"):
                torch.conv2d(torch.ones(1, 2, 5, 6), torch.ones(2, 2, 3, 3))
            raise AssertionError
        except msctx.MsctxWarning as warning:
            assert "is not kept" in str(warning)
        assert msctx.state() == before
        """
    )


def test_it_is_recorded_as_choices_shows_it(tmp_path: Path) -> None:
    problem = conv("all", (2, 4, 9, 8), (6, 2, 3, 3), True, stride=(2, 1), padding=1, dilation=2, groups=2)
    with offline(tmp_path) as ctx:
        problem.compute(problem.tensors())
    assert {(p.direction, p.problem) for p in untuned.read(tmp_path)[0]} == {(r.direction, r.line) for r in ctx.choices()}
