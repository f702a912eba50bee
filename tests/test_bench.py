"""The scripts of bench/: figures, summaries of raw results, small measurements, and the report on a GPU, tried on a CPU."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import timeit
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

Bench = Callable[[str], Any]
BENCH = Path(__file__).parents[1] / "bench"
MACHINE = {"cpu": "a CPU", "isa": "avx2", "cores": 2, "torch": "2"}


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_figure_is_bold_only_if_its_interval_and_the_control_bear_it_out(bench: Bench) -> None:
    figures = bench("figures")

    def text(each: list[float], again: list[float]) -> str:
        return str(figures.text(figures.of(each), figures.of(again), len(each)))

    quiet = [1.0, 1.01, 0.99]
    assert text([1.1, 1.2, 1.3], quiet) == "**1.20 (1.10 to 1.30)**"
    assert text([0.4, 0.5, 0.6], quiet) == "**0.50 (0.40 to 0.60)**"
    assert text([0.9, 1.2, 1.3], quiet) == "1.20 (0.90 to 1.30)", "it contains 1"
    assert text([1.05, 1.2, 1.3], [1.0, 0.93]) == "1.20 (1.05 to 1.30)", "A/A was off by as much"
    assert text([1.1, 1.3], quiet) == "1.20 (1.10 to 1.30)", "of two processes"
    assert text([1.1, 1.2, 1.3], [0.31]) == "-", "A/A shows more"


def test_a_summary_has_a_row_a_line_and_gives_the_table_of_its_raw_results(bench: Bench) -> None:
    convolutions, summary = bench("convolutions"), bench("summary")

    def raw(group: str, *ratios: list[float], **machine: Any) -> dict[str, Any]:
        """Of a few problems, the ratios of three processes each."""
        told = {"group": group, "batch": 1, "threads": 1, "errors": {"ours": 1e-6, "torch": 2e-6}}
        ms = [
            (n, {"torch": {"a": r, "b": 9}, "ours": {"a": 1}, "again": {"b": r / 0.98}})
            for n, of in enumerate(ratios)
            for r in of
        ]
        rows = [{**told, "layer": layer, "ms": each} for layer, each in ms]
        return {"machine": MACHINE | machine, "date": "2026-11-22", "commit": "abc", "processes": 3, "rows": rows}

    results = [raw("gemm", [1.9, 2.0, 2.1], [1.9, 2.0, 2.1]), raw("winograd", [0.5, 2.0, 2.1], [0.8, 2.0, 2.1])]
    text = summary.written(convolutions.reduced(results, "convolutions"))
    first, _ = (line for line in text.splitlines() if '"what"' in line)
    assert '"ratio": {"median": 2.0, "low": 1.9, "high": 2.1}' in first
    assert '"commit": ["abc"]' in text
    _, _, *lines, _, last = convolutions.tables(json.loads(text))["convolutions"]
    told = "**2.00 (1.90 to 2.10)** | 2.00 | 2.00 | 0.98 to 0.98 | 1e-06, 2e-06 | 3 |"
    assert lines[0] == f"| 3x3, implicit GEMM, fp32-grade | 1 | {told}"
    assert "| 2.00 (0.63 to 2.10) |" in lines[1], "the range over processes of the geometric mean contains 1"
    assert last.startswith("a CPU (AVX2), 2 cores, torch 2, 2026-11-22; batch 1; 4 problems, 0 of them beyond")
    for row in results[0]["rows"]:  # a problem of 8 loops, each of 0.2 ms
        row["loops"], row["ms"]["peak"] = 8, {"loop": 0.2}
    heads, _, first, second, _, last = convolutions.tables(convolutions.reduced(results, "convolutions"))["convolutions"]
    assert heads.endswith("| error, PyTorch's | share of peak, PyTorch's | processes |")
    assert first.endswith("| 1e-06, 2e-06 | 1.60 to 1.60, 0.80 to 0.80 | 3 |")
    assert second.endswith("| 1e-06, 2e-06 |  | 3 |"), "measured without the loop"
    assert "can exceed 1." in last
    with pytest.raises(SystemExit, match="of one machine, these are results of several: they differ in cpu"):
        convolutions.reduced([*results, raw("gemm", [1.0, 1.0, 1.0], cpu="another CPU")], "convolutions")


def test_problems_have_their_multiply_adds_and_the_loop_has_all_of_its_own(bench: Bench) -> None:
    layers, shapes, peak = bench("layers"), bench("shapes"), bench("peak")
    of = {layer.name: layer.multiply_adds for layer in layers.OF_EACH_KIND}
    assert of["resnet l1"] == 56 * 56 * 64 * 64 * 9
    assert of["alexnet 1"] == 55 * 55 * 64 * 3 * 121
    assert of["mobilenet 1"] == 56 * 56 * 128 * 9
    assert shapes.Shape(2, 3, 5, batch=7).multiply_adds == 210
    if shutil.which("c++"):
        assert peak.multiply_adds(1000) == 1000 * peak.multiply_adds(1)
        few, many = (min(timeit.repeat(lambda n=n: peak.multiply_adds(n), number=1, repeat=20)) for n in (1 << 16, 1 << 19))
        assert many > 4 * few, "the loop was removed"


def test_allocators_are_compared_round_by_round(bench: Bench) -> None:
    allocators = bench("allocators")
    ms = {"glibc": (8.0, 4.0, 6.0), "again": (8.0, 4.0, 6.0), "msctx": (4.0, 2.0, 2.0), "jemalloc": (8.0, 5.0, 6.0)}
    rows = [{"network": "GPT-2", "threads": 1, "side": side, "ms": t} for side, each in ms.items() for t in each]
    raw = {"machine": MACHINE, "date": "2026-11-22", "processes": 3, "rows": rows}
    heads, _, line, _, last = allocators.tables(allocators.reduced([raw]))["allocators"]
    assert heads == "| training step | threads | glibc, ms | A/A | msctx | jemalloc |"
    assert line == "| GPT-2 | 1 | 6 | 1.00 to 1.00 | **2.00 (2.00 to 3.00)** | 1.00 (0.80 to 1.00) |"
    assert last.endswith("tcmalloc was not installed.")


def test_a_summary_of_networks_has_what_each_process_found(bench: Bench) -> None:
    models = bench("models")

    def row(torch: float, own: float, phase: str = "inference", **more: float) -> dict[str, Any]:
        ms = {"torch": {"eager": 9, "inductor": torch}, "again": {"eager": torch}, "performance": {"graph": own}}
        ms |= {side: {"": value} for side, value in more.items()}
        about = {"network": "VGG-16", "phase": phase, "batch": 1, "threads": 1, "unmeasured": 2 * (phase == "training")}
        return about | {"ms": ms, "errors": dict.fromkeys(ms.keys() - {"again"}, 1e-6)}

    rows = [*(row(t, 2.0, OpenVINO=4.0) for t in (4.0, 4.2, 4.4)), *(row(4.0, 8.0, "training") for _ in range(3))]
    rows.append(row(9.0, 1.0) | {"unmeasured": 1})  # does not count: others measured all
    result = {"machine": MACHINE, "date": "2026-11-22", "commit": "abc", "processes": 3, "rows": rows}
    stored = json.loads(bench("summary").written(models.reduced([result])))
    assert [one["ms"]["torch"] for one in stored["rows"][0]["processes"]] == [{"inductor": t} for t in (4.0, 4.2, 4.4)]
    lines = models.tables(stored)["networks"]
    ratios = "**2.10 (2.00 to 2.20)** | 1.05 (1.00 to 1.10)"
    assert f"| VGG-16 | 1 | 1 | 4.2, inductor | 1.00 to 1.00 | {ratios} | 1e-06, 1e-06, 1e-06 |" in lines
    assert "| geometric mean (lowest) |  |  |  |  | 0.50 (0.50) |  |" in lines, "of training, which the others do not know"
    assert lines[-1].startswith("Measured on a CPU (AVX2), 2 cores, torch 2, 2026-11-22; 3 or more processes")
    assert lines[-1].endswith("left 2 problems unmeasured, under other load.")


def test_a_contender_that_fails_or_stays_behind_runs_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contest, turns = bench("contest"), []
    now = 0.0
    monkeypatch.setattr(contest, "time", SimpleNamespace(perf_counter=lambda: now))

    def entered(name: str, seconds: float) -> Any:
        def run(number: int) -> None:
            nonlocal now
            if not seconds:
                raise RuntimeError("no such kernel")
            now += seconds
            turns.append(name)

        return contest.Contender("ours", name, nullcontext, run)

    found = contest.fastest([entered("broken", 0), entered("quick", 1), entered("near", 2), entered("slow", 3)], 0.01)
    assert found == {"ours": {"quick": 1e3, "near": 2e3, "slow": 3e3}}
    assert [turns.count(name) for name in ("quick", "near", "slow")] == [6, 4, 2], "two to warm up, two in a round"
    assert "ours, broken is left out: RuntimeError: no such kernel" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "words", "rows"),
    [
        ("convolutions", ["--only", "depthwise-3", "--batches", "1", "--threads", "1,2"], 4),
        ("products", ["--only", "strict-denormals,fp16x3"], 1),
        ("invariance", ["--only", "convolution"], 3),
        ("models", ["--only", "MobileNetV2", "--batches", "1", "--without-inductor"], 2),
        ("allocators", ["--only", "ResNet-50"], 3),
    ],
)
def test_a_script_measures_in_its_processes(
    script: str, words: list[str], rows: int, tmp_path: Path, native_core: None
) -> None:
    file = tmp_path / "raw.json"
    command = [sys.executable, str(BENCH / f"{script}.py"), "--processes", "1", "--seconds", "0.01", "--out", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    raw = json.loads(file.read_text())
    assert raw["processes"] == 1
    if script == "allocators":
        assert len([row for row in raw["rows"] if row["ms"] > 0]) == len(raw["rows"]) >= rows
        return
    found = [row for row in raw["rows"] if row["errors"] and all(ms > 0 for of in row["ms"].values() for ms in of.values())]
    assert len(found) == len(raw["rows"]) >= rows
    assert "share of peak" in done.stdout or script not in ("convolutions", "products")
    assert "| threads |" in done.stdout or "1 thread" in done.stdout


def test_observers_are_measured_beside_the_plain_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    observers = bench("observers")
    step = observers.step_of(torch.nn.Linear(8, 4), torch.randn(2, 8))
    monkeypatch.setattr(observers, "steps", lambda: {"small": step})
    monkeypatch.setattr(observers, "heap_keeps_what_is_freed", lambda: None)
    monkeypatch.setattr(observers, "msprobe", lambda folder: nullcontext)  # it replaces functions of torch for good
    (row,) = observers.work(argparse.Namespace())
    assert {"recorder", "overflow", "both of all tensors", "torch.autograd.detect_anomaly"} < row["ratios"]["small"].keys()
    assert all(ratio > 0 for ratio in row["ratios"]["small"].values())
    raw = {"machine": MACHINE, "date": "2026-11-22", "processes": 1, "rows": [row]}
    assert "| watchdog | " in "\n".join(observers.tables(observers.reduced([raw]))["observers-avx2"])


@pytest.mark.full
def test_each_cost_is_a_figure(bench: Bench, native_core: None) -> None:
    _, _, *lines, _, last = bench("costs").table(0.001, 1)
    assert len(lines) == 12
    assert all("µs" in line or " ms |" in line for line in lines)
    assert "orders of magnitude" in last


def cuda_report(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH / "cuda_report.py"), *words], capture_output=True, text=True, timeout=300)


@pytest.mark.full
def test_the_report_on_a_gpu_tries_itself_on_a_cpu(tmp_path: Path, native_core: None) -> None:
    file = tmp_path / "cuda.json"
    done = cuda_report("--device", "cpu", "--seconds", "20", "--out", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(file.read_text())["parts"]
    assert not any(part["failed"] for part in parts.values())
    assert parts["environment"]["rows"][0]["torch"] == torch.__version__
    for row in parts["figures"]["rows"]:
        found = {figure["name"]: figure for figure in row["figures"]}
        assert {"torch", "torch again", "torch, benchmark", "fft", "performance"} <= set(found)
        assert all(bool(f["ratio"]) is not bool(f["why"]) for f in found.values()), "each has a figure, or says why not"
        assert all(f["ratio"] is None or f["error"] <= row["bound"] for f in found.values())
    assert all(found[name]["ratio"] for name in ("torch", "performance")), "of the last problem"
    assert "--- figures" in done.stdout
