"""The speed of msctx's convolutions: torch's time over ours, layer by layer, with the error against float64 beside it.

The opponent is torch's default in its faster memory format, and torch measured twice in the same way is the control (A/A). Inputs
change with every call (three sets take turns); weights do before each data gradient, as in a training, and are those of inference
otherwise, which do not. What ``performance`` measures for its choice is not timed.

    python bench/convolutions.py --threads 1,2 --out bench/results/NAME.json
    python bench/convolutions.py --docs bench/results/NAME.json
    MSCTX_ISA=avx2 python bench/convolutions.py --only normal-fprop,normal-dgrad,normal-wgrad --out bench/results/NAME-avx2.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contest
import figures
from layers import (
    DENSE,
    DEPTHWISE_3,
    DEPTHWISE_7,
    DEPTHWISE_LARGE,
    OF_EACH_KIND,
    STRIDED,
    WINDOW_1,
    WINDOW_3,
    Layer,
    call,
    tensors,
)


@dataclass(frozen=True)
class Group:
    """What is measured together: layers, a direction, what the context asks for."""

    name: str
    title: str
    direction: str
    layers: tuple[Layer, ...]
    options: dict[str, Any]
    """Values, or what gives them for a layer."""
    formats: tuple[str, ...] = ("channels_first", "channels_last")
    data: str = "normal"
    batches: tuple[int, ...] = ()
    """In place of those asked for, where these would take long."""
    opponent: dict[str, Any] = field(default_factory=dict)
    """What any user can ask torch for, on such data: options of its context."""

    @property
    def is_tuned(self) -> bool:
        return "performance" in self.options.values()


def winograd(layer: Layer) -> str:
    return "winograd" if layer.c <= 128 else "winograd_nonfused"


TF32 = {"conv_allow_tf32": True}
STRICT = {"allow_fp32_emulation": False}
GEMM = {"conv_fprop_algo": "implicit_precomp_gemm"}
GROUPS = (
    Group("gemm", "3x3, implicit GEMM, fp32-grade", "fprop", WINDOW_3, GEMM),
    Group("gemm-tf32", "3x3, implicit GEMM, TF32 class", "fprop", WINDOW_3, {**GEMM, **TF32}),
    Group("winograd-strict", "3x3, Winograd F(4,3), float32", "fprop", WINDOW_3, {"conv_fprop_algo": winograd, **STRICT}),
    Group("winograd", "3x3, Winograd F(4,3), of parts", "fprop", WINDOW_3, {"conv_fprop_algo": winograd}),
    Group("dgrad", "3x3, data gradient, fp32-grade", "dgrad", WINDOW_3, {"conv_dgrad_algo": "algo_1"}),
    Group("wgrad", "3x3, weight gradient, fp32-grade", "wgrad", WINDOW_3, {"conv_wgrad_algo": "algo_1"}),
    Group("wgrad-tf32", "3x3, weight gradient, TF32 class", "wgrad", WINDOW_3, {"conv_wgrad_algo": "algo_1", **TF32}),
    Group(
        "wgrad-winograd", "3x3, weight gradient, Winograd, float32", "wgrad", WINDOW_3, {"conv_wgrad_algo": "winograd_nonfused"}
    ),
    Group("1x1", "1x1, fp32-grade", "fprop", WINDOW_1, GEMM),
    Group("1x1-tf32", "1x1, TF32 class", "fprop", WINDOW_1, {**GEMM, **TF32}),
    Group(
        "depthwise",
        "depthwise K >= 27",
        "fprop",
        DEPTHWISE_LARGE,
        {"conv_fprop_algo": "direct"},
        batches=(1,),
    ),
    Group(
        "depthwise-wgrad",
        "depthwise weight gradient, K >= 27",
        "wgrad",
        DEPTHWISE_LARGE,
        {"conv_wgrad_algo": "algo_1"},
        batches=(1,),
    ),
    Group("depthwise-7", "depthwise K = 7", "fprop", DEPTHWISE_7, {"conv_fprop_algo": "direct"}),
    Group("depthwise-7-wgrad", "depthwise weight gradient, K = 7", "wgrad", DEPTHWISE_7, {"conv_wgrad_algo": "algo_1"}),
    Group("depthwise-3", "depthwise K = 3", "fprop", DEPTHWISE_3, {"conv_fprop_algo": "direct"}),
    Group("strided", "strided data gradient", "dgrad", STRIDED, {"conv_dgrad_algo": "algo_1"}),
    Group("dense", "dense K >= 11, tiled FFT, float32", "fprop", DENSE, {"conv_fprop_algo": "fft_tiling", **STRICT}),
    Group(
        "denormals",
        "3x3, inputs full of denormals, torch flushes them",
        "fprop",
        WINDOW_3[:2],
        GEMM,
        data="denormal",
        batches=(1,),
        opponent={"flush_denormal": True},
    ),
    *(
        Group(f"{how}-{d}", f"`{how}`, {d}, {len(OF_EACH_KIND)} layers", d, OF_EACH_KIND, {f"conv_{d}_algo": how}, batches=(1,))
        for how in ("normal", "performance")
        for d in ("fprop", "dgrad", "wgrad")
    ),
)
OUTDATED = ("depthwise", "depthwise-wgrad", "denormals")
"""Groups whose first results others could not measure again: they have a table of their own, of new results."""
BY_NAME = {group.name: group for group in GROUPS}


def measure(
    group: Group, layer: Layer, batch: int, seconds: float, options: dict[str, Any], with_errors: bool = True
) -> dict[str, Any]:
    """One process's figures for one problem: the fastest runs, in ms, and the errors."""
    import msctx

    run = call(layer, group.direction)
    sets = {f: [tensors(layer, batch, seed, f, group.data) for seed in range(3)] for f in group.formats}
    asked = {name: value(layer) if callable(value) else value for name, value in group.options.items()}
    context = msctx.context(**asked, **options, fallback="silent")

    def contender(side: str, name: str) -> contest.Contender:
        weight = sets[name][0][1]

        def once(number: int) -> None:
            x, _, g = sets[name][number % 3]
            run(x, weight, g)

        def step() -> None:
            weight[0, 0, 0, 0] += 1e-3

        scope = (
            (lambda: context)
            if side == "ours"
            else (lambda: msctx.context(**group.opponent) if group.opponent else nullcontext())
        )
        return contest.Contender(side, name, scope, once, step if group.direction == "dgrad" else lambda: None)

    found = contest.fastest((contender(s, f) for s in ("torch", "ours", "again") for f in group.formats), seconds)
    chosen = fastest_of(found["ours"])
    result, rows, ran = contest.ours(
        context, lambda: run(*sets[chosen][1]), f"{group.name}, {layer.name}", is_tuned=group.is_tuned
    )
    told = {"ms": found, "ran": ran}
    if not with_errors:
        return told
    results = {"ours": result, "torch": run(*sets[fastest_of(found["torch"])][1])}
    truth = run(*(t.double() for t in sets[group.formats[0]][1]))
    error, torch_error = (float((results[side] - truth).abs().max() / truth.abs().max()) for side in ("ours", "torch"))
    within = all(row.provider != "msctx" or error <= row.error for row in rows if row.problem.layout == chosen)
    return told | {"error": error, "torch_error": torch_error, "within": within}


def fastest_of(ms: dict[str, float]) -> str:
    """The memory format."""
    return min(ms, key=lambda name: ms[name])


def work(given: argparse.Namespace) -> None:
    """A process: a line of JSON for each problem of a group."""
    group = BY_NAME[given.work]
    with tempfile.TemporaryDirectory() as folder:
        options = {"tuning_file": f"{folder}/tuning.json"} if group.is_tuned else {}
        for batch in group.batches or given.batches:
            for layer in group.layers:
                found = measure(group, layer, batch, given.seconds, options, not given.without_errors)
                print(json.dumps({"group": group.name, "layer": layer.name, "batch": batch, **found}), flush=True)


def summary(key: tuple[Any, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    each = [contest.ratio(f["ms"]) for f in found]
    return {
        **dict(zip(("group", "layer", "batch", "threads"), key, strict=True)),
        "ratio": statistics.median(each),
        "lower_bound": contest.lower_bound(each),
        "ratios": sorted(each),
        "control": statistics.median(contest.ratio(f["ms"], "again") for f in found),
        "torch_ms": statistics.median(min(f["ms"]["torch"].values()) for f in found),
        **{name: found[0][name] for name in ("error", "torch_error", "within")},
        "ran": sorted({r for f in found for r in f["ran"]}),
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    groups = [BY_NAME[name] for name in contest.asked(BY_NAME, given)]
    per_process = sum(len(group.layers) * len(group.batches or given.batches) for group in groups)
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    result = {"machine": contest.machine(), "processes": 0, "problems": []}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=per_process * given.processes * len(given.threads))
        for number in range(given.processes):
            for threads in given.threads:
                for group in groups:
                    for found in contest.lines_of(__file__, group.name, threads, given, with_errors=number == 0):
                        rows.setdefault((found["group"], found["layer"], found["batch"], threads), []).append(found)
                        progress.advance(bar)
            result |= {"processes": number + 1, "problems": [summary(key, found) for key, found in rows.items()]}
            contest.keep(given.out, result)
    return result


def of_layers(problems: list[dict[str, Any]]) -> tuple[float, list[float], list[float]]:
    """The geometric mean over layers, that of each process, and A/A of each layer. Each problem's processes are kept in order, so
    their range is the widest there can be."""
    each = [contest.geomean(ratios) for ratios in zip(*(p["ratios"] for p in problems), strict=False)]
    each[-1] = contest.geomean([p["ratios"][-1] for p in problems])
    return contest.geomean([p["ratio"] for p in problems]), each, [p["control"] for p in problems]


def figure(problems: list[dict[str, Any]]) -> str:
    return figures.of_processes(*of_layers(problems))


def table(results: list[dict[str, Any]], without: Collection[str] = OUTDATED) -> list[str]:
    """Markdown: a line for each group and number of threads."""
    head = ("what", "threads", "geomean", "from", "to", "lowest bound", "A/A", "error, PyTorch's", "processes")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    problems = [p for result in results for p in result["problems"]]
    for group, threads in itertools.product(GROUPS, sorted({p["threads"] for p in problems})):
        found = [p for p in problems if (p["group"], p["threads"]) == (group.name, threads)]
        if not found or group.name in without:
            continue
        ratios = [p["ratio"] for p in found]
        cells = [group.title, threads, figure(found), f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
        cells += [
            f"{min(p['lower_bound'] for p in found):.2f}",
            " to ".join(f"{end(p['control'] for p in found):.2f}" for end in (min, max)),
        ]
        cells.append(f"{max(p['error'] for p in found):.0e}, {max(p['torch_error'] for p in found):.0e}")
        cells.append(min(len(p["ratios"]) for p in found))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    beyond = sum(not p["within"] for p in problems)
    batches = ", ".join(map(str, sorted({p["batch"] for p in problems})))
    told = f"{len(problems)} problems, {beyond} of them beyond their error bound"
    return [*lines, "", f"{contest.described(results)}; batch {batches}; {told}. {figures.legend(True, least(results))}"]


def least(results: list[dict[str, Any]]) -> int:
    """The fewest processes that a problem was measured in."""
    return min(len(p["ratios"]) for result in results for p in result["problems"])


def of_each_isa(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: what `normal` gives with each instruction set, from results that were measured under MSCTX_ISA."""
    groups = [group for group in GROUPS if group.name.startswith("normal-")]
    lines = ["| `MSCTX_ISA` | " + " | ".join(group.title for group in groups) + " |", "|---" * (len(groups) + 1) + "|"]
    for result in results:
        cells = [f"`{result['machine']['isa']}`"]
        for group in groups:
            found = [p for p in result["problems"] if p["group"] == group.name]
            ratios = [p["ratio"] for p in found]
            again = " to ".join(f"{end(p['control'] for p in found):.2f}" for end in (min, max)) if found else ""
            cells.append(f"{figure(found)}, layers {min(ratios):.2f} to {max(ratios):.2f}, A/A {again}" if ratios else "")
        lines.append("| " + " | ".join(cells) + " |")
    processes = min(result["processes"] for result in results)
    threads, batches = (sorted({p[of] for result in results for p in result["problems"]}) for of in ("threads", "batch"))
    told = f"{' and '.join(map(str, threads))} thread{'s' * (threads != [1])}, batch {' and '.join(map(str, batches))}"
    last = f"{contest.described(results)}; {told}, {processes} or more processes. {figures.legend(True, least(results))}"
    return [*lines, "", last]


def main() -> None:
    parser = contest.arguments(__doc__, BY_NAME, [1, 8])
    parser.add_argument("--docs-isas", type=Path, nargs="+", metavar="FILE", help="the same of results for each MSCTX_ISA")
    parser.add_argument("--docs-again", type=Path, nargs="+", metavar="FILE", help="the table of what was measured again")
    given = parser.parse_args()
    if given.docs_again:
        contest.into_docs("convolutions-again", table(contest.read(given.docs_again), ()))
    elif given.docs_isas:
        contest.into_docs("isas", of_each_isa(contest.read(given.docs_isas)))
    else:
        contest.do(given, "convolutions", work, collect, table)


if __name__ == "__main__":
    main()
