"""The speed of msctx's convolutions: torch's time over ours, layer by layer, with the error against float64 beside it.

The opponent is torch's default in its faster memory format. Runs are interleaved, each process takes the fastest run of each
contender, and the figure is the median over processes; torch measured twice in the same way is the control (A/A). Inputs change with
every call; weights are those of inference, which do not. A figure is printed only where the result is within its row's bound.

    python bench/convolutions.py --processes 5 --threads 1,2 --out bench/results/NAME.json
    python bench/convolutions.py --readme bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tensors = tuple[Any, Any, Any]
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- convolutions: written by bench/convolutions.py --readme -->", "<!-- /convolutions -->"


@dataclass(frozen=True)
class Layer:
    name: str
    c: int
    k: int
    size: int
    window: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        return self.window // 2


# ResNet-50 (He et al., arXiv 1512.03385), VGG-16 (arXiv 1409.1556), ConvNeXt (arXiv 2201.03545), RepLKNet (arXiv 2203.06717),
# MobileNet (arXiv 1704.04861), AlexNet (Krizhevsky et al., 2012); images of 224 x 224
L = Layer
WINDOW_3 = (
    *(L("resnet l1", 64, 64, 56, 3), L("resnet l2", 128, 128, 28, 3), L("resnet l3", 256, 256, 14, 3)),
    *(
        L("resnet l4", 512, 512, 7, 3),
        L("vgg 3_2", 256, 256, 56, 3),
        L("vgg 4_2", 512, 512, 28, 3),
        L("vgg 5", 512, 512, 14, 3),
    ),
)
WINDOW_1 = (
    *(L("resnet l1 c", 64, 256, 56, 1), L("resnet l1 a", 256, 64, 56, 1), L("resnet l2 a", 512, 128, 28, 1)),
    *(L("resnet l3 a", 1024, 256, 14, 1), L("resnet l4 c", 512, 2048, 7, 1)),
)
LARGE_DEPTHWISE = (
    *(L("replknet s1", 128, 128, 56, 31, 1, 128), L("replknet s2", 256, 256, 28, 29, 1, 256)),
    L("replknet s3", 512, 512, 14, 27, 1, 512),
)
DEPTHWISE_7 = (
    *(L("convnext 1", 96, 96, 56, 7, 1, 96), L("convnext 2", 192, 192, 28, 7, 1, 192)),
    *(L("convnext 3", 384, 384, 14, 7, 1, 384), L("convnext 4", 768, 768, 7, 7, 1, 768)),
)
STRIDED = (L("resnet conv1", 3, 64, 224, 7, 2), L("alexnet 1", 3, 64, 224, 11, 4), L("resnet l2 ds", 256, 512, 56, 1, 2))
DENSE = (L("dense 11x11", 64, 64, 56, 11), L("dense 13x13", 64, 64, 56, 13))
SMALL = (
    *(L("mobilenet 1", 128, 128, 56, 3, 1, 128), L("mobilenet 2", 256, 256, 28, 3, 1, 256)),
    *(L("resnext", 128, 128, 56, 3, 1, 32), L("vgg 1_1", 3, 64, 224, 3), L("alexnet 2", 64, 192, 27, 5)),
)


@dataclass(frozen=True)
class Group:
    """What is measured together: layers, a direction, what the context asks for."""

    name: str
    title: str
    direction: str
    layers: tuple[Layer, ...]
    options: dict[str, Any]
    opponent: str = "best"
    """torch's memory format: the faster one, or channels_first."""
    data: str = "normal"


TF32 = {"conv_allow_tf32": True}
STRICT = {"allow_fp32_emulation": False}
EVERY = (*WINDOW_3, *WINDOW_1, *LARGE_DEPTHWISE, *DEPTHWISE_7, *STRIDED, *DENSE[:1], *SMALL)
GROUPS = (
    Group("gemm", "3x3, implicit GEMM, fp32-grade", "fprop", WINDOW_3, {"conv_fprop_algo": "implicit_precomp_gemm"}),
    Group(
        "gemm-tf32", "3x3, implicit GEMM, TF32 class", "fprop", WINDOW_3, {"conv_fprop_algo": "implicit_precomp_gemm", **TF32}
    ),
    Group(
        "winograd-strict",
        "3x3, Winograd F(4,3), float32 products",
        "fprop",
        WINDOW_3,
        {"conv_fprop_algo": "winograd", **STRICT},
    ),
    Group("winograd", "3x3, Winograd F(4,3), products of parts", "fprop", WINDOW_3, {"conv_fprop_algo": "winograd"}),
    Group("dgrad", "3x3 data gradient, fp32-grade", "dgrad", WINDOW_3, {"conv_dgrad_algo": "algo_1"}),
    Group("wgrad", "3x3 weight gradient, fp32-grade", "wgrad", WINDOW_3, {"conv_wgrad_algo": "algo_1"}),
    Group("wgrad-tf32", "3x3 weight gradient, TF32 class", "wgrad", WINDOW_3, {"conv_wgrad_algo": "algo_1", **TF32}),
    Group("1x1", "1x1, fp32-grade", "fprop", WINDOW_1, {"conv_fprop_algo": "implicit_precomp_gemm"}),
    Group("1x1-tf32", "1x1, TF32 class", "fprop", WINDOW_1, {"conv_fprop_algo": "implicit_precomp_gemm", **TF32}),
    Group(
        *("depthwise", "depthwise K >= 27, channels first", "fprop", LARGE_DEPTHWISE, {"conv_fprop_algo": "direct"}),
        opponent="channels_first",
    ),
    Group("depthwise-wgrad", "depthwise weight gradient, K >= 27", "wgrad", LARGE_DEPTHWISE, {"conv_wgrad_algo": "algo_1"}),
    Group("depthwise-7-wgrad", "depthwise weight gradient, K = 7", "wgrad", DEPTHWISE_7, {"conv_wgrad_algo": "algo_1"}),
    Group("depthwise-7", "depthwise K = 7", "fprop", DEPTHWISE_7, {"conv_fprop_algo": "direct"}),
    Group("strided", "strided data gradient", "dgrad", STRIDED, {"conv_dgrad_algo": "algo_1"}),
    Group("dense", "dense K >= 11, tiled FFT, float32 products", "fprop", DENSE, {"conv_fprop_algo": "fft_tiling", **STRICT}),
    Group(
        *("denormals", "inputs full of denormals", "fprop", WINDOW_3[:2], {"conv_fprop_algo": "implicit_precomp_gemm"}),
        data="denormal",
    ),
    *(
        Group(f"performance-{d}", f"performance, {d}, a fixed list of layers", d, EVERY, {f"conv_{d}_algo": "performance"})
        for d in ("fprop", "dgrad", "wgrad")
    ),
)


def runner(layer: Layer, direction: str) -> Callable[[Any, Any, Any], Any]:
    import torch
    from torch.nn.functional import conv2d

    def run(x: Any, w: Any, g: Any) -> Any:
        if direction == "fprop":
            return conv2d(x, w, None, layer.stride, layer.padding, 1, layer.groups)
        mask = [direction == "dgrad", direction == "wgrad", False]
        s, p = [layer.stride] * 2, [layer.padding] * 2
        found = torch.ops.aten.convolution_backward(g, x, w, None, s, p, [1, 1], False, [0, 0], layer.groups, mask)
        return found[0] if direction == "dgrad" else found[1]

    return run


def tensors(layer: Layer, batch: int, data: str, seed: int) -> Tensors:
    import torch

    generator = torch.Generator().manual_seed(seed)
    out = (layer.size + 2 * layer.padding - layer.window) // layer.stride + 1
    x = torch.randn(batch, layer.c, layer.size, layer.size, generator=generator)
    w = torch.randn(layer.k, layer.c // layer.groups, layer.window, layer.window, generator=torch.Generator().manual_seed(0))
    if data == "denormal":
        x = x * 1e-39
    return x, w, torch.randn(batch, layer.k, out, out, generator=generator)


def measure(group: Group, layer: Layer, batch: int, seconds: float) -> dict[str, Any]:
    """One process's figures for one problem: the fastest runs, in ms, and the errors."""
    import torch

    import msctx

    run = runner(layer, group.direction)
    formats = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
    sets = [
        {
            name: tuple(t.contiguous(memory_format=f) for t in tensors(layer, batch, group.data, seed))
            for name, f in formats.items()
        }
        for seed in range(3)
    ]
    weights = {name: sets[0][name][1] for name in formats}  # one weight: what inference has

    def timed(number: int, name: str) -> float:
        x, _, g = sets[number % len(sets)][name]
        start = time.perf_counter()
        run(x, weights[name], g)
        return time.perf_counter() - start

    best: dict[str, float] = {}

    def note(key: str, value: float) -> None:
        best[key] = min(best.get(key, math.inf), value)

    context = msctx.context(**group.options, fallback="silent")
    with context as ctx:  # tuning, building, preparing weights and warming up
        for name in formats:
            timed(0, name), timed(1, name)
    began, rounds = time.perf_counter(), 0
    while rounds < 3 or (time.perf_counter() - began < seconds and rounds < 60):
        for name in formats:
            note(f"torch {name}", timed(rounds, name))
        with context:
            for name in formats:
                note(f"ours {name}", timed(rounds, name))
        for name in formats:
            note(f"again {name}", timed(rounds, name))
        rounds += 1
    x, _, g = sets[1]["channels_last"]
    truth = run(x.double(), weights["channels_last"].double(), g.double())
    scale = float(truth.abs().max())
    with context:
        error = float((run(x, weights["channels_last"], g) - truth).abs().max()) / scale
    own = float((run(x, weights["channels_last"], g) - truth).abs().max()) / scale
    row = ctx.choices()[-1]
    return {
        "ms": {key: value * 1e3 for key, value in best.items()},
        "error": error,
        "torch_error": own,
        "within": row.provider != "msctx" or error <= row.error,
        "ran": sorted({f"{r.ran} ({r.math})" for r in ctx.choices()}),
        "rounds": rounds,
    }


def ratio(found: dict[str, Any], opponent: str, of: str = "ours") -> float:
    ms = found["ms"]
    theirs = (
        ms["torch channels_first"] if opponent == "channels_first" else min(v for k, v in ms.items() if k.startswith("torch"))
    )
    return theirs / (
        ms[f"{of} channels_first"] if opponent == "channels_first" else min(v for k, v in ms.items() if k.startswith(of))
    )


def work(names: list[str], batches: list[int], threads: int, seconds: float) -> None:
    """A process: a line of JSON for each problem."""
    import torch

    torch.set_num_threads(threads)
    for group in (g for g in GROUPS if g.name in names):
        for batch in batches:
            for layer in group.layers:
                found = measure(group, layer, batch, seconds)
                print(json.dumps({"group": group.name, "layer": layer.name, "batch": batch, **found}), flush=True)


def collect(given: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    names = [g.name for g in GROUPS if not given.groups or g.name in given.groups.split(",")]
    per_process = sum(len(g.layers) for g in GROUPS if g.name in names) * len(given.batches)
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=per_process * given.processes * len(given.threads))
        for process in range(given.processes):
            for threads in given.threads:
                command = [sys.executable, __file__, "--work", ",".join(names), "--threads", str(threads)]
                command += ["--seconds", str(given.seconds), "--batches", ",".join(map(str, given.batches))]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
                    for line in running.stdout or ():
                        found = json.loads(line)
                        rows.setdefault((found["group"], found["layer"], found["batch"], threads), []).append(found)
                        progress.advance(bar)
                if running.returncode:
                    sys.exit(f"a process ended with exit code {running.returncode}; threads {threads}, process {process}")
    by_name = {g.name: g for g in GROUPS}
    problems = []
    for (group, layer, batch, threads), found in rows.items():
        opponent = by_name[group].opponent
        each = [ratio(f, opponent) for f in found]
        problems.append(
            {
                "group": group,
                "layer": layer,
                "batch": batch,
                "threads": threads,
                "ratio": statistics.median(each),
                "ratios": sorted(each),
                "control": statistics.median(ratio(f, opponent, "again") for f in found),
                "torch_ms": statistics.median(min(v for k, v in f["ms"].items() if k.startswith("torch")) for f in found),
                "error": max(f["error"] for f in found),
                "torch_error": max(f["torch_error"] for f in found),
                "within": all(f["within"] for f in found),
                "ran": sorted({r for f in found for r in f["ran"]}),
            }
        )
    return {"machine": machine(), "processes": given.processes, "problems": problems}


def machine() -> dict[str, Any]:
    import torch

    from msctx.native import core

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    fp16 = bool(getattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)())
    return {"cpu": cpu, "isa": core.load().isa(), "amx_fp16": fp16, "cores": os.cpu_count(), "torch": torch.__version__}


def geomean(values: Iterable[float]) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found))


def table(result: dict[str, Any]) -> list[str]:
    """Markdown: a line for each group and number of threads."""
    where = result["machine"]
    lines = ["| what | threads | geomean | from | to | A/A | error, torch's |", "|---|---|---|---|---|---|---|"]
    for group in GROUPS:
        for threads in sorted({p["threads"] for p in result["problems"]}):
            found = [p for p in result["problems"] if p["group"] == group.name and p["threads"] == threads and p["within"]]
            if not found:
                continue
            ratios = [p["ratio"] for p in found]
            errors = f"{max(p['error'] for p in found):.0e}, {max(p['torch_error'] for p in found):.0e}"
            control = geomean(p["control"] for p in found)
            cells = [group.title, threads, f"**{geomean(ratios):.2f}**", f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
            lines.append("| " + " | ".join(map(str, [*cells, f"{control:.2f}", errors])) + " |")
    amx = "with" if where["amx_fp16"] else "without"
    lines += ["", f"{where['cpu']}, instruction set `{where['isa']}` ({amx} AMX-FP16), torch {where['torch']}; "]
    lines[-1] += (
        f"batch {', '.join(map(str, sorted({p['batch'] for p in result['problems']})))}; {result['processes']} processes."
    )
    return lines


def into_readme(lines: list[str]) -> None:
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    README.write_text("\n".join([head + BEGIN, *lines, END + tail]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--threads", type=numbers, default=[1], metavar="N,N")
    parser.add_argument("--batches", type=numbers, default=[1, 8], metavar="N,N")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one problem in one process")
    parser.add_argument("--groups", default="", metavar="NAME,NAME", help=", ".join(g.name for g in GROUPS))
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="write the table of a result into the README, and measure nothing"
    )
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work.split(","), given.batches, given.threads[0], given.seconds)
        return
    if given.readme:
        into_readme(table(json.loads(given.readme.read_text(encoding="utf-8"))))
        return
    result = collect(given)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
