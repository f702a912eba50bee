"""The tables of bench/ leave no contender out; the report on a GPU, tried on a CPU, tells of every part."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import SMALL, cell, made, row

from msctx.compare.result import Result
from msctx.compare.summary import result_of
from msctx.native import build
from msctx.native.cuda import manifest

REPORT = Path(__file__).parents[1] / "bench" / "cuda_report.py"
FAULTS, SYSTEM = {"torch": 10.0, "msctx": 0.0}, {"torch": 0.125, "msctx": 0.0}


def memory_row(subject: str, **ratios: float) -> dict[str, Any]:
    return {"subject": subject, "threads": 1, "ms": 100.0, "ratios": ratios, "faults": FAULTS, "system": SYSTEM}


def test_an_opponent_that_has_not_run_everywhere_stays_in_the_table(bench: Callable[[str], Any]) -> None:
    memory = bench("memory")
    of = {"cpu": "a CPU", "amx_fp16": False, "cores": 2, "torch": "2"}
    rows = [memory_row("one", msctx=1.5, jemalloc=2.0), memory_row("other", msctx=1.25, tcmalloc=3.0)]
    head, _, *lines, _, _ = memory.table([{"machine": of, "processes": 1, "subjects": [one]} for one in rows])
    assert head.split(" | ")[5:] == ["msctx", "jemalloc", "tcmalloc |"]
    assert lines[0].startswith("| one | 1 | 100 | 12.5% → 0.0% | 10 → 0 |")
    assert [line.split("|")[6:9] for line in lines] == [[" 1.50 ", " 2.00 ", "  "], [" 1.25 ", "  ", " 3.00 "]]


def test_what_many_entries_cost_is_a_ratio_beside_its_control_and_tells_of_a_busy_machine(bench: Callable[[str], Any]) -> None:
    entries = bench("entries")
    of = {"cpu": "a CPU", "amx_fp16": False, "cores": 2, "torch": "2"}
    kind = {"entries": 100_000, "first_us": 200.0, "last_us": 210.0, "control": 1.02, "grown_bytes": 1_250_000}
    for load, is_busy in ((1.0, False), (7.25, True)):
        *lines, _, below = entries.table([{"machine": of, "kinds": {"cap": kind | {"load": load}}}])
        assert lines[2] == "| cap | 100,000 | 200 µs | 1.05 | 1.02 | +1.2 MB |"
        assert ("busy with other work (load up to 7.2)" in below) is is_busy


def test_each_kind_is_entered_as_often_as_is_asked(bench: Callable[[str], Any], native: None) -> None:
    entries, entered = bench("entries"), []
    found = entries.measured(lambda: entered.append(1) or nullcontext(), 3 * entries.PART + 10)
    assert len(entered) == found["entries"] == 3 * entries.PART + 10
    assert found["first_us"] > 0 < found["last_us"]


def test_a_figure_is_bold_only_where_its_interval_and_the_control_bear_it_out(bench: Callable[[str], Any]) -> None:
    figures = bench("figures")
    quiet = [1.0, 1.01, 0.99]
    assert figures.of_processes(1.2, [1.1, 1.2, 1.3], quiet) == "**1.20 (1.10 to 1.30)**"
    assert figures.of_processes(0.5, [0.4, 0.5, 0.6], quiet) == "**0.50 (0.40 to 0.60)**"
    assert figures.of_processes(1.2, [0.9, 1.2, 1.3], quiet) == "1.20 (0.90 to 1.30)", "it holds 1"
    assert figures.of_processes(1.2, [1.05, 1.2, 1.3], [1.0, 0.93]) == "1.20 (1.05 to 1.30)", "A/A was off by as much"
    assert figures.of_processes(1.2, [1.1, 1.3], quiet) == "1.20 (1.10 to 1.30)", "of two processes"
    assert figures.of_processes(1.2, None, quiet) == "1.20", "nothing is known of its interval"
    assert figures.of_processes(1.31, None, [0.31]) == "-", "A/A shows more"


def test_the_figure_of_some_layers_is_bold_only_where_processes_and_the_control_bear_it_out(
    bench: Callable[[str], Any],
) -> None:
    convolutions = bench("convolutions")

    def layers(*ratios: list[float], control: float = 1.0) -> list[dict[str, Any]]:
        return [{"ratio": r[len(r) // 2], "ratios": r, "control": control} for r in ratios]

    assert convolutions.figure(layers([1.9, 2.0, 2.1], [1.9, 2.0, 2.1])) == "**2.00 (1.90 to 2.10)**"
    assert convolutions.figure(layers([0.5, 2.0, 2.1], [0.8, 2.0, 2.1])) == "2.00 (0.63 to 2.10)", "it holds 1"
    assert convolutions.figure(layers([1.02, 1.04, 1.05], control=0.97)) == "1.04 (1.02 to 1.05)", "A/A was off by as much"
    assert convolutions.figure(layers([1.9, 2.1])) == "2.10 (1.90 to 2.10)", "of two processes"


def test_a_table_of_comparisons_has_its_processes_and_its_control(bench: Callable[[str], Any], tmp_path: Path) -> None:
    compared = bench("compared")

    def result(ratio: float, control: float) -> Result:
        cells = [cell("a", ratio), cell("b", 1.0)]
        of = made(tmp_path, SMALL + "axes: {way: {a: {seed: 1}, b: {seed: 2}}}\n")
        machine = {"cpu": "a CPU", "cpu_capability": "AVX2", "libraries": {"torch": "2"}}
        return result_of(replace(of, name="some"), [row("first", cells, 1, 1.0, control=control)], machine)

    _, _, control, first, second, _, last = compared.table([result(1.3, 1.02), result(1.4, 0.99), result(1.35, 1.0)])
    assert control == "| `some` | PyTorch again: A/A | 0.99 to 1.02 |  | 1 (0% noisy) |"
    assert first == "|  | a | **1.35 (1.30 to 1.40)** | 1e-06 | 1 |"
    assert second.startswith("|  | b | 1.00 (")
    assert last.startswith("a CPU (AVX2), torch 2; 3 or more processes for each comparison.")
    assert "**" not in "".join(compared.table([result(1.3, 1.02)])), "one process proves nothing"


def cuda_report(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(REPORT), *words], capture_output=True, text=True, timeout=300)


@pytest.fixture
def native() -> None:
    """Built before any clock runs."""
    if why := build.obstacle():
        pytest.skip(why)
    build.library()


def is_whole(row: dict[str, Any]) -> bool:
    """Whether each figure is within the bound, or says why there is none."""
    return all(
        bool(f["ratio"]) is not bool(f["why"]) and (f["ratio"] is None or f["error"] <= row["bound"]) for f in row["figures"]
    )


@pytest.mark.full
def test_the_report_on_a_gpu_tries_itself_on_a_cpu(tmp_path: Path, native: None) -> None:
    file = tmp_path / "cuda.json"
    done = cuda_report("--device", "cpu", "--seconds", "20", "--parts", "environment,figures,depthwise", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    parts = result["parts"]
    notes = {name: part["note"] for name, part in parts.items()}
    assert notes.pop("depthwise") == "needs a GPU"
    assert (notes.pop("environment"), notes.pop("figures")) == ("", "")
    assert set(notes) == {"build", "checks", "kernels", "overhead", "costs", "more checks"}
    assert set(notes.values()) == {"not asked for"}
    assert not any(part["failed"] for part in parts.values())
    (environment,) = parts["environment"]["rows"]
    assert environment["torch"] == torch.__version__
    assert all(is_whole(row) for row in parts["figures"]["rows"])
    names = [figure["name"] for figure in parts["figures"]["rows"][0]["figures"]]
    assert {"torch", "torch again", "torch, benchmark", "gemm", "winograd", "normal", "performance"} <= set(names)
    assert "--- figures, " in done.stdout


def test_the_other_parts_of_the_report(
    bench: Callable[[str], Any], native: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that take more time than they tell in the process above, a case of each."""
    cases, tables = bench("cuda_cases"), bench("cuda_tables")
    monkeypatch.setattr(cases, "CALLS", 2)
    monkeypatch.setattr(cases, "STEPS", 0.0)
    threads = torch.get_num_threads()
    for part, count in {"kernels": 8, "overhead": 6, "costs": 3}.items():
        rows: list[dict[str, Any]] = []
        for _, run in cases.of(part, "cpu")[: 1 if part == "kernels" else None]:
            run(rows.append)
        assert len(rows) >= count
        tables.show(part, {"rows": rows, "failed": [], "cases": 1, "begun": 1, "note": "", "seconds": 1.0})
    torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "fprop winograd_nonfused" in out
    assert "forward and backward, implicit_gemm and algo_1 by name" in out
    assert "conv_workspace_limit=0: " in out


@pytest.mark.full
def test_without_a_gpu_the_report_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = cuda_report()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cuda_report.py: torch finds no NVIDIA GPU here; --device cpu tries the script itself\n"


LINES = {
    "environment": 'say(cases=1); say(begun="environment"); say(row={"GPU": "none"})',
    "build": "raise OSError('no such library')",
    "overhead": """
say(cases=3)
if skip == 0:
    say(begun="first")
    say(row={"what": "forward", "how": "first", "us": 1.0, "us_waiting": 2.0})
    os.kill(os.getpid(), signal.SIGSEGV)
say(begun="second" if skip == 1 else "third")
print("it was the second that failed", file=sys.stderr)
sys.exit(skip == 1)
""",
    "costs": 'say(cases=2); say(begun="slow"); time.sleep(600)',
}
PRELUDE = """
import json, os, signal, sys, time
skip = int(sys.argv[1])
def say(**message):
    print(json.dumps(message), flush=True)
"""


@pytest.mark.full
def test_a_part_that_fails_does_not_end_the_others(
    bench: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception before anything, a crash and an exception in a case, and one that hangs."""
    report, file = bench("cuda_report"), tmp_path / "cuda.json"
    asked = "environment,build,overhead,costs"
    monkeypatch.setattr(report, "PARTS", dict.fromkeys(asked.split(","), 1.0))
    monkeypatch.setattr(report.signal, "signal", lambda *_: None)
    monkeypatch.setattr(
        sys, "argv", [report.__file__, "--device", "cpu", "--seconds", "5", "--parts", asked, "--json", str(file)]
    )
    monkeypatch.setattr(report, "GRACE", 0.5)
    monkeypatch.setattr(
        report, "command", lambda part, given, skip, seconds: [sys.executable, "-c", PRELUDE + LINES[part], str(skip)]
    )
    assert report.main() == 1
    parts = json.loads(file.read_text())["parts"]
    out = capsys.readouterr().out
    assert parts["environment"]["rows"] == [{"GPU": "none"}]
    assert parts["build"]["note"] == "it cannot begin"
    assert [failed["why"] for failed in parts["build"]["failed"]] == ["OSError: no such library"]
    assert [(f["case"], f["why"]) for f in parts["overhead"]["failed"]] == [
        ("first", "ended with exit code -11"),
        ("second", "it was the second that failed"),
    ]
    assert (parts["overhead"]["begun"], parts["overhead"]["note"], len(parts["overhead"]["rows"])) == (3, "", 1)
    assert parts["costs"]["note"] == "killed at slow: it was out of time"
    assert "FAILED second: it was the second that failed" in out
    assert "1 of 2 cases left out: there was no time" in out


KERNELS = {
    "void cudnn::cnn::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int)": "fprop implicit_gemm",
    "void cudnn::cnn::precomputed_convolve_sgemm<float, 512, 6, 8, 3, 3, 3, false>(int)": "fprop implicit_precomp_gemm",
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize64x32x8_ffma": "fprop implicit_precomp_gemm",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64>(int)": "fprop implicit_precomp_gemm",
    "ampere_scudnn_128x64_relu_small_nn_v1": "fprop implicit_precomp_gemm",
    "void explicit_convolve_sgemm<float, int, 128, 6, 7, 3, 3, 5, 0, false>(int, int, int, float const*)": "fprop gemm",
    "void im2col4d_kernel<float, long>(im2col4d_params, cudnnConvolutionStruct, float const*, float*)": "fprop gemm",
    "void cudnn::cnn::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, float const*)": "dgrad algo_0, dgrad algo_1",
    "sm80_xmma_dgrad_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_ffma": "dgrad algo_1",
    "sm80_xmma_wgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize32x32x8_ffma": "wgrad algo_1",
    "ampere_scudnn_128x64_stridedB_splitK_interior_nn_v1": "dgrad algo_1, wgrad algo_1, wgrad algo_3",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, true, 512>(int, int)": "wgrad algo_0, wgrad algo_3",
    "void cudnn::cnn::wgrad_alg1_engine<float, 128, 5, 5, 3, 3, 3, false, true>(int, int)": "wgrad algo_1, wgrad algo_3",
    **dict.fromkeys(
        ("void fft2d_r2c_64x64<float, false>(float2*, float const*)", "void fft1d_c2r_256<float, float, float2>(float*)"),
        "fprop fft, fprop fft_tiling, dgrad fft, dgrad fft_tiling, wgrad fft, wgrad fft_tiling",
    ),
    "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "fprop winograd, dgrad winograd",
    **dict.fromkeys(
        (
            "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(float const*)",
            "void cudnn::winograd_nonfused::winogradForwardData9x9_5x5<float, float>(float const*)",
        ),
        "fprop winograd_nonfused, dgrad winograd_nonfused",
    ),
    "void cudnn::winograd_nonfused::winogradWgradDelta4x4<float, float>(float const*)": "wgrad winograd_nonfused",
    **{name: f"{name.split('_')[1]} direct" for name in manifest.KERNELS},
}
"""Names of kernels as their libraries have them, and all that may run them."""
HELPERS = (
    "void nchwToNhwcKernel<float, float, float, false, true>(int)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_kernel",
    "void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*, float2*, int, int, int, int, int, float2)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, at::native::FillFunctor<float>)",
)


def test_a_kernel_belongs_to_the_algorithms_of_its_family_and_to_no_other(bench: Callable[[str], Any]) -> None:
    families, values = bench("cuda_families"), bench("algorithms").VALUES
    everything = {f"{direction} {name}" for direction, names in values.items() for name in names}
    for name, told in KERNELS.items():
        of = set(told.split(", "))
        for one in everything:
            direction, algorithm = one.split()
            assert families.fits(algorithm, direction, [*HELPERS, name]) is (one in of), (one, name)
    assert everything - {one for told in KERNELS.values() for one in told.split(", ")} == set(), (
        "each has a kernel that is known"
    )


def test_a_kernel_of_another_family_or_none_that_is_known_is_no_proof(bench: Callable[[str], Any]) -> None:
    fits = bench("cuda_families").fits
    transform, product, image = "void fft2d_r2c_32x32<float>(int)", "implicit_convolve_sgemm<float>", "im2col4d_kernel<float>"
    assert fits("fft", "fprop", [transform, transform])
    assert not fits("fft", "fprop", [transform, product])
    assert not fits("implicit_gemm", "fprop", [image, product])
    assert not fits("fft", "fprop", HELPERS)
    assert not fits("fft", "fprop", [])
    assert not fits("implicit_gemm", "fprop", ["not_implicit_convolve_sgemm<float>"]), "a part of a name is not the name"
    assert not fits("gemm", "fprop", ["im2col4d_kernel_of_others<float>"])


def test_what_keeping_bits_costs_is_a_figure_for_each_number_of_threads(bench: Callable[[str], Any]) -> None:
    of = {"cpu": "a CPU", "amx_fp16": False, "cores": 2, "torch": "2"}
    rows = {
        "a product": {
            "errors": [3e-7, 2e-7],
            "1": {"each": [0.5, 0.52, 0.51], "again": [1.0, 1.02, 0.99]},
            "2": {"each": [1.0, 1.1, 0.9], "again": [1.3]},
        }
    }
    head, _, line, _, _ = bench("invariance").table([{"machine": of, "processes": 3, "rows": rows}])
    assert head.endswith("| 1 thread | 2 threads | A/A | error: torch, ours |")
    assert line == "| a product | **0.51 (0.50 to 0.52)** | - | 0.99 to 1.30 | 3e-07, 2e-07 |"


def test_each_way_to_see_operators_is_timed_beside_its_control(
    bench: Callable[[str], Any], native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = bench("ways_to_collect")
    monkeypatch.setattr(ways, "CALLS", 2)
    monkeypatch.setattr(ways, "networks_", lambda: {"a network": lambda: torch.ones(2) + 1})
    threads = torch.get_num_threads()
    found = [ways.measured(rounds=1) for _ in range(2)]
    torch.set_num_threads(threads)
    sees = {way: {"forward": "yes"} for way in ways.WAYS}
    of = {"cpu": "a CPU", "amx_fp16": False, "cores": 2, "torch": "2"}
    lines = ways.table([{"machine": of, "load": 7.25, "sees": sees, "found": found}])
    assert [line.split(" | ")[0] for line in lines[2:9]] == [f"| {way}" for way in (ways.AGAIN, *ways.WAYS)]
    assert {line.count(" to ") for line in lines[4:9]} == {3, 4}, "two operators, a network, and a name"
    assert lines[10].startswith("a CPU (without AMX-FP16), 2 cores, torch 2; one thread, 2 processes.")
    assert lines[10].endswith("The machine was busy with other work (load up to 7.2).")
    assert lines[14:] == [f"| {way} | yes |" for way in ways.WAYS]


def test_what_each_way_sees_of_a_program(bench: Callable[[str], Any], native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = bench("ways_to_collect")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, inputs: graph)
    found = ways.sights()
    assert set(found[ways.CALLBACK].values()) == {"yes", "runs"}
    unseen = {way: {name for name, sees in row.items() if sees == "no"} for way, row in found.items()}
    assert unseen[ways.COLLECTOR] == unseen[ways.ROWS] == {"`linear` by name"}, "it counts what that calls"
    assert unseen[ways.BOXED] == {"other threads"}
    assert unseen[ways.DISPATCH] == {"`linear` by name", "other threads"}
    assert unseen[ways.FUNCTION] >= {"forward", "backward", "other threads"}
    assert [found[way]["compiled code"] for way in (ways.BOXED, ways.DISPATCH)] == ["compiled anew", "runs eagerly"]
