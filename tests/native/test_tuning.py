"""performance: what is measured and when, and what the tuning file decides. None of it depends on who is fastest."""

import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tuned
from convs import bits, conv
from ranks import two_ranks
from torch.nn import functional as fn

import msctx
from msctx.native import core, memory, tuning_in_core
from msctx.native.policy_and_choices import Choice

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
X, W = torch.randn(1, 5, 11, 13), torch.randn(3, 5, 3, 3)
PROBLEM = "1x5x11x13 * 3x5x3x3, float32, channels_first"


def forward(**options: Any) -> tuple[Choice, int]:
    """The choice for one forward convolution under performance, and how many problems were measured for it."""
    before = tuned.measurements()
    with msctx.context(conv_fprop_algo="performance", **options) as ctx:
        fn.conv2d(X, W)
    (row,) = ctx.choices()
    return row, tuned.measurements() - before


# --- measuring --------------------------------------------------------------------------------------------------------


def test_what_is_measured_is_written_as_choices_shows_it(own_tuning_file: Path) -> None:
    problem = conv("all", (2, 4, 9, 8), (6, 2, 3, 3), True, stride=(2, 1), padding=1, dilation=2, groups=2)
    other = conv("transposed", (1, 3, 5, 6), (3, 2, 3, 3), stride=2, padding=(1, 0), output_padding=1, transposed=True)
    before = tuned.measurements()
    with msctx.context(**tuned.PERFORMANCE) as ctx:
        for one in (problem, other):
            one.compute(one.tensors())
            one.compute(one.tensors())
    assert tuned.measurements() == before + 6
    written = {(e.direction, e.problem): e for e in tuned.entries(own_tuning_file)}
    assert set(written) == {(row.direction, str(row.problem)) for row in ctx.choices()}
    for row in ctx.choices():
        found = written[row.direction, str(row.problem)]
        assert (found.ran, found.math) == (row.ran, row.math)
        assert (found.threads, found.permissions) == (1, tuned.USUAL)
        assert row.reasons[0] == "measured in this process"
        assert "torch" in found.measured
        assert len(row.reasons) == len(found.measured) + 1  # one line for the source, one for each that lost, and A/A
        assert row.reasons[-1].startswith("torch again, in the same rounds: measured at ")
        assert found.ran == "torch" or found.measured["torch"] >= max(1.03, found.again), "PyTorch is left only for a gain"


class Call(ctypes.Structure):
    """A ConvCall of kernels/include/msctx/interface.h; what follows the problem is zeros."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dims", "dtype")),
        *((name, ctypes.c_int64) for name in ("n", "c", "k", "groups")),
        *((name, ctypes.c_int64 * 3) for name in ("in_", "out", "window", "stride", "pad", "dilation")),
        ("rest", ctypes.c_char * 128),
    ]


class Row(ctypes.Structure):
    _fields_ = [("direction", ctypes.c_int32), ("name", ctypes.c_char_p)]


SECONDS = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.POINTER(Row))


class Contest(ctypes.Structure):
    _fields_ = [("prepare", ctypes.c_void_p), ("seconds", SECONDS), ("arg", ctypes.c_void_p)]


def winner(seconds: Callable[[str], float], is_wgrad: bool, path: Path) -> str:
    """What the library decides for a problem where *seconds* are those of a run by the row of this name, or by torch's own path."""
    kernels, option = ctypes.CDLL(str(core.load().made.kernels)), f"conv_{'wgrad' if is_wgrad else 'fprop'}_algo"
    taken, decision, direction = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)(), 2 * is_wgrad
    call = Call(2, 0, 1, 2, 2, 1, (1, 9, 9), (1, 7, 7), (1, 3, 3), (1, 1, 1), (0, 0, 0), (1, 1, 1))
    by = SECONDS(lambda _, row: seconds(row.contents.name.decode() if row else "torch"))
    with msctx.context(**{option: "performance"}, tuning_file=path):
        kernels.msctx_take(0, ctypes.byref(taken))
        given = taken, ctypes.byref(call), direction, 1
        kernels.msctx_decide(*given, 0, ctypes.byref(decision))
        kernels.msctx_measure(*given, ctypes.byref(Contest(None, by, None)), ctypes.byref(decision))
        ran = ctypes.cast(decision[1], ctypes.c_char_p).value
        kernels.msctx_give_back(taken)
    assert ran is not None
    return ran.decode()


ROUNDS: list[tuple[dict[str, list[float]], str]] = [
    ({"gemm": [0.98]}, "torch"),  # gains less than 3 %
    ({"direct": [0.9], "gemm": [0.7]}, "gemm"),
    ({"gemm": [0.7] * 11 + [9.0] + [0.7]}, "gemm"),  # one slow run
    ({"gemm": [9.0, 0.7]}, "gemm"),  # the first run waited for a core
    ({"gemm": [0.7, 0.7, 1.1] * 40}, "torch"),  # a third of the rounds lose
    ({"gemm": [0.7] * 11 + [1.5]}, "torch"),  # by luck in the runs that warm up and in nine rounds: it has to win once more
    ({"torch": [1.0, 1.4, 1.0, 1.3] * 40, "gemm": [0.95]}, "torch"),  # as far as torch differs from itself
    ({"algo_3": [0.93]}, "torch"),  # what adds in no order has to gain 1.1 over what does
    ({"algo_3": [0.7], "algo_1": [0.75]}, "algo_1"),
    ({"algo_3": [0.7], "algo_1": [0.8]}, "algo_3"),
]


@pytest.mark.parametrize(("times", "expected"), ROUNDS)
def test_pytorch_is_left_for_a_gain_that_is_proven(times: dict[str, list[float]], expected: str, tmp_path: Path) -> None:
    """*times*: made-up ones of each run, the last again and again; PyTorch takes 1, and what is not named 1.2, in units of 2 ms."""
    left = {name: iter(each) for name, each in times.items()}

    def seconds(name: str) -> float:
        time.sleep(0.001)  # nine rounds are enough where they took 20 ms
        usual = times[name][-1] if name in times else 1.0 if name == "torch" else 1.2
        return 0.002 * next(left.get(name, iter(())), usual)

    is_wgrad = any(name.startswith("algo") for name in times)
    assert winner(seconds, is_wgrad, tmp_path / "tuning.json") == expected


def test_beside_load_or_near_the_cap_on_memory_nothing_is_measured(
    own_tuning_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(memory, "share_left", lambda: 0.01)
        row, measured = forward(tuning_file=tmp_path / "tuning.json")
        assert (row.reasons[0], measured) == ("chosen as by normal: not measured yet", 0)
    calm = iter([False])  # load that begins during a measurement
    monkeypatch.setattr(tuning_in_core, "is_busy", lambda: next(calm, True))
    with pytest.warns(msctx.MsctxWarning, match=r"^performance \(conv_fprop_algo\) measured nothing: more threads were "):
        row, measured = forward(strict=True)
    assert (row.reasons, measured) == (("not measured: more threads were runnable than there are cores",), 0)
    assert [(e.ran, e.math) for e in tuned.entries(own_tuning_file)] == [("", "under other load")]


def test_traced_code_is_not_measured_and_what_runs_later_is() -> None:
    before = tuned.measurements()
    with msctx.context(conv_fprop_algo="performance") as ctx:
        torch.jit.trace(lambda x: fn.conv2d(x, W), X, check_trace=False)
        assert tuned.measurements() == before
        assert ctx.choices()[0].reasons[0] == "chosen as by normal: not measured yet"
        fn.conv2d(X, W)
    assert tuned.measurements() == before + 1


# --- the file decides -------------------------------------------------------------------------------------------------


def test_a_second_process_measures_nothing_and_chooses_the_same(passes: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    code = f"""
        {tuned.CALM}
        import json, torch, msctx
        from msctx.native import core
        torch.manual_seed(0)
        x, w = torch.randn(1, 5, 11, 13, requires_grad=True), torch.randn(3, 5, 3, 3, requires_grad=True)
        with msctx.context(**{tuned.PERFORMANCE!r}, tuning_file={str(path)!r}, runtime_num_threads=1) as ctx:
            y = torch.conv2d(x, w)
            y.sum().backward()
        rows = [(r.direction, r.ran, r.math, r.reasons[1:]) for r in ctx.choices()]
        sums = [float(t.double().sum()) for t in (y, x.grad, w.grad)]
        print(json.dumps([core.loaded().c.msctx_measurements(), rows, sums, [r.reasons[0] for r in ctx.choices()]]))
    """
    first = json.loads(passes(code))
    written = path.read_bytes()
    second = json.loads(passes(code))
    assert (first[0], second[0]) == (3, 0)
    assert first[2] == second[2]
    assert [row[:3] for row in first[1]] == [row[:3] for row in second[1]]
    assert all(reason.startswith("from the tuning file: measured 2") for reason in second[3])
    assert path.read_bytes() == written


def test_an_entry_is_followed_or_reported(own_tuning_file: Path, tmp_path: Path, threads: Callable[[int], Any]) -> None:
    tuned.write(own_tuning_file, tuned.entry(PROBLEM, "direct"))
    row, measured = forward()
    assert (row.requested, row.ran, measured) == ("performance", "direct", 0)
    assert row.reasons == (
        "from the tuning file: measured 2026-01-02T03:04Z by 1 thread",
        "torch: measured at 2.00 times the time of direct",
        "fft: not measured: no time was left, or no memory",
        "torch again, in the same rounds: measured at 1.01 times the time of torch",
    )
    for number, entry in enumerate(({"ran": "quantum"}, {"ran": "direct", "math": "tf32"}, {"ran": "reference"})):
        row, measured = forward(tuning_file=tuned.write(tmp_path / f"{number}.json", tuned.entry(PROBLEM, **entry)))
        assert measured == 0
        assert row.reasons[0].startswith("chosen as by normal: from the tuning file"), entry
        assert row.reasons[0].endswith("which performance may not take here"), entry
    path = tuned.write(
        tmp_path / "threads.json", tuned.entry(PROBLEM, "gemm", threads=2), tuned.entry(PROBLEM, "direct", threads=16)
    )
    for count in (1, 2, 3):  # an invariance takes one of any number of threads
        with threads(count):
            row, measured = forward(thread_invariant=True, tuning_file=path)
        assert (row.ran, measured) == ("direct", 0)
        assert "by 16 threads" in row.reasons[0]


def test_a_file_beside_an_experiment_takes_the_place_of_the_one_in_the_cache(tmp_path: Path, own_tuning_file: Path) -> None:
    tuned.write(own_tuning_file, tuned.entry(PROBLEM, "direct"))
    a = tuned.write(tmp_path / "a.json", tuned.entry(PROBLEM, "gemm"))
    b = tuned.write(tmp_path / "b.json", tuned.entry(PROBLEM, "torch"))
    for _ in range(2):  # each file has a table of its own
        assert forward(tuning_file=a)[0].ran == "gemm"
        assert forward(tuning_file=str(b))[0].ran == "torch"
        assert forward()[0].ran == "direct"
    before = own_tuning_file.read_bytes()
    with msctx.context(conv_fprop_algo="performance", tuning_file=a):
        fn.conv2d(X, W[:2])
    assert len(tuned.entries(a)) == 2
    assert own_tuning_file.read_bytes() == before


def test_a_result_of_another_machine_or_library_is_not_used(tmp_path: Path) -> None:
    for field in ("cpu", "flags", "isa", "torch", "kernels"):
        path = tuned.write(tmp_path / f"{field}.json", tuned.entry(PROBLEM), **{field: "another"})
        row, measured = forward(tuning_file=path)
        assert (row.reasons[0], measured) == ("measured in this process", 1), field
        assert len(tuned.entries(path)) == 2, "each under its stamp"
        assert "another" in path.read_text()


def test_determinism_uses_the_file_alone_and_a_fixed_order(tmp_path: Path, own_tuning_file: Path) -> None:
    with msctx.context(conv_fprop_algo="normal") as ctx:
        fn.conv2d(X, W)
    normal = ctx.choices()[0].ran
    exact = tuned.write(tmp_path / "exact.json", tuned.entry(PROBLEM, "direct"))
    row, measured = forward(deterministic="ON", tuning_file=exact)
    assert (row.ran, measured) == ("direct", 0)
    other = tuned.write(tmp_path / "other.json", tuned.entry(PROBLEM, "direct"), kernels="another")
    row, measured = forward(deterministic="ON", tuning_file=other)
    assert (row.ran, measured) == (normal, 0)
    assert "nothing is measured under deterministic=ON" in row.reasons[0]
    tuned.write(
        own_tuning_file, tuned.entry(PROBLEM, "algo_0", direction="dgrad"), tuned.entry(PROBLEM, "algo_3", direction="wgrad")
    )
    for deterministic in ("OFF", "ON"):  # which refuses an entry that adds in no fixed order
        with msctx.context(conv_dgrad_algo="performance", conv_wgrad_algo="performance", deterministic=deterministic) as ctx:
            fn.conv2d(X.clone().requires_grad_(), W.clone().requires_grad_()).sum().backward()
        for row, ran in zip(sorted(ctx.choices(), key=lambda row: row.direction), ("algo_0", "algo_3"), strict=True):
            assert (row.ran == ran) == (deterministic == "OFF")
            assert row.reasons[0].endswith(f": {ran}, which performance may not take here") == (deterministic == "ON")


@pytest.mark.parametrize("options", [{"allow_fp32_emulation": False}, {"conv_workspace_limit": "64MB"}])
def test_what_may_run_is_part_of_the_key(options: dict[str, Any], own_tuning_file: Path) -> None:
    tuned.write(own_tuning_file, tuned.entry(PROBLEM))
    assert forward(**options)[1] == 1
    permissions = {e.permissions for e in tuned.entries(own_tuning_file)}
    assert len(permissions) == 2
    before = tuned.measurements()
    forward(**options)
    assert tuned.measurements() == before


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_processes_of_a_run_choose_alike_and_rank_0_measures_for_the_next(tmp_path: Path) -> None:
    unknown = "1x5x9x9 * 3x5x3x3, float32, channels_first"
    for rank, ran in enumerate(("direct", "gemm")):
        (tmp_path / str(rank)).mkdir()
        tuned.write(tmp_path / str(rank) / "tuning.json", tuned.entry(PROBLEM, ran))
    two_ranks(
        tmp_path,
        f"""
{tuned.CALM}
from msctx.native import core

def test(rank):
    with msctx.context(conv_fprop_algo="performance", tuning_file=f"{{rank}}/tuning.json") as ctx:
        torch.conv2d(torch.ones(1, 5, 11, 13), torch.ones(3, 5, 3, 3))
        torch.conv2d(torch.ones(1, 5, 9, 9), torch.ones(3, 5, 3, 3))
    found = [None, None]
    dist.all_gather_object(found, [row.ran for row in ctx.choices()])
    assert found[0] == found[1] and found[0][0] == "direct", "the file of rank 0 decides"
    assert core.loaded().c.msctx_measurements() == 1 - rank
    told = "only rank 0 measures" if rank else "measured for the next run"
    assert told in ctx.choices()[1].reasons[0], ctx.choices()
""",
    )
    assert {e.problem for e in tuned.entries(tmp_path / "0" / "tuning.json")} == {PROBLEM, unknown}
    assert {e.problem for e in tuned.entries(tmp_path / "1" / "tuning.json")} == {PROBLEM}


# --- recorded, to be measured later -----------------------------------------------------------------------------------


def test_problems_are_recorded_as_performance_measures_them(tmp_path: Path) -> None:
    """Bits and time are those without the option; performance reads the file, and measures what it meets."""
    problem, path = (
        conv("all", (2, 4, 9, 8), (6, 2, 3, 3), True, stride=(2, 1), padding=1, dilation=2, groups=2),
        (tmp_path / "msctx_tuning.json"),
    )
    tensors = problem.tensors()
    expected, before = bits(problem.compute(tensors)), tuned.measurements()
    with msctx.context(aoe_tune_mode="offline", work_path=str(tmp_path), conv_max_error=1e-4) as ctx:
        assert bits(problem.compute(tensors)) == expected
    assert tuned.measurements() == before
    assert {(row.requested, row.ran, row.reasons) for row in ctx.choices()} == {
        ("torch", "torch", ("recorded, to be measured later",))
    }
    recorded = tuned.entries(path)
    assert {(e.direction, e.problem) for e in recorded} == {(row.direction, row.line) for row in ctx.choices()}
    assert {e.ran for e in recorded} == {""}
    with msctx.context(**tuned.PERFORMANCE, tuning_file=path, conv_max_error=1e-4):
        problem.compute(tensors)
    measured = tuned.entries(path)
    assert {e.key for e in measured} == {e.key for e in recorded}
    assert all(e.ran for e in measured)


def test_what_is_requested_by_name_runs_and_is_not_recorded(tmp_path: Path) -> None:
    with msctx.context(aoe_tune_mode="offline", work_path=str(tmp_path), conv_fprop_algo="direct") as ctx:
        fn.conv2d(X, W)
        fn.linear(torch.randn(4, 8), torch.randn(2, 8))
    assert {row.direction: row.requested for row in ctx.choices()} == {"fprop": "direct", "matmul": "torch"}
    assert [e.direction for e in tuned.entries(tmp_path / "msctx_tuning.json")] == ["matmul"]
