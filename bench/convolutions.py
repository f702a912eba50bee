"""The speed of msctx's convolutions: torch's time over ours, layer by layer, with the error against float64 beside it.

The opponent is torch's default in its faster memory format, and torch measured twice in the same way is the control (A/A). Inputs
change with every call (three sets take turns); weights do before each data gradient, as in a training, and are those of inference
otherwise, which do not. What ``performance`` measures for its choice is not timed.

    python bench/convolutions.py --threads 1,2 --out RAW.json
    python bench/convolutions.py --summary RAW.json [more] [--table NAME] > bench/results/NAME-convolutions.json
    python bench/convolutions.py --docs bench/results/NAME-convolutions.json
    MSCTX_ISA=avx2 python bench/convolutions.py --only normal-fprop,normal-dgrad,normal-wgrad --out RAW-avx2.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import contest
import figures
import summary
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
    """What is measured together: layers, a direction, what the context requests."""

    name: str
    title: str
    direction: str
    layers: tuple[Layer, ...]
    options: dict[str, Any]
    """Values, or what gives them for a layer."""
    data: str = "normal"
    batches: tuple[int, ...] = ()
    """In place of those requested, where these would take long."""
    opponent: dict[str, Any] = field(default_factory=dict)
    """What any user can ask torch for, on such data: options of its context."""

    @property
    def is_tuned(self) -> bool:
        return "performance" in self.options.values()


def winograd(layer: Layer) -> str:
    return "winograd" if layer.c <= 128 else "winograd_nonfused"


FORMATS = ("channels_first", "channels_last")
TF32 = {"conv_allow_tf32": True}
STRICT = {"allow_fp32_emulation": False}
GEMM = {"conv_fprop_algo": "implicit_precomp_gemm"}
LARGE_WGRAD, DENORMALS = "depthwise weight gradient, K >= 27", "3x3, inputs full of denormals, torch flushes them"
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
    Group("depthwise", "depthwise K >= 27", "fprop", DEPTHWISE_LARGE, {"conv_fprop_algo": "direct"}, batches=(1,)),
    Group("depthwise-wgrad", LARGE_WGRAD, "wgrad", DEPTHWISE_LARGE, {"conv_wgrad_algo": "algo_1"}, batches=(1,)),
    Group("depthwise-7", "depthwise K = 7", "fprop", DEPTHWISE_7, {"conv_fprop_algo": "direct"}),
    Group("depthwise-7-wgrad", "depthwise weight gradient, K = 7", "wgrad", DEPTHWISE_7, {"conv_wgrad_algo": "algo_1"}),
    Group("depthwise-3", "depthwise K = 3", "fprop", DEPTHWISE_3, {"conv_fprop_algo": "direct"}),
    Group("strided", "strided data gradient", "dgrad", STRIDED, {"conv_dgrad_algo": "algo_1"}),
    Group("dense", "dense K >= 11, tiled FFT, float32", "fprop", DENSE, {"conv_fprop_algo": "fft_tiling", **STRICT}),
    Group("denormals", DENORMALS, "fprop", WINDOW_3[:2], GEMM, "denormal", batches=(1,), opponent={"flush_denormal": True}),
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
    sets = {f: [tensors(layer, batch, seed, f, group.data) for seed in range(3)] for f in FORMATS}
    requested = {name: value(layer) if callable(value) else value for name, value in group.options.items()}
    context = msctx.context(**requested, **options, fallback="silent")

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

    found = contest.fastest((contender(s, f) for s in ("torch", "ours", "again") for f in FORMATS), seconds)
    chosen = fastest_of(found["ours"])
    result, rows, ran = contest.ours(
        context, lambda: run(*sets[chosen][1]), f"{group.name}, {layer.name}", is_tuned=group.is_tuned
    )
    told = {"ms": found, "ran": ran}
    if not with_errors:
        return told
    results = {"ours": result, "torch": run(*sets[fastest_of(found["torch"])][1])}
    truth = run(*(t.double() for t in sets[FORMATS[0]][1]))
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


def of_processes(found: list[dict[str, Any]]) -> dict[str, Any]:
    each = [contest.ratio(f["ms"]) for f in found]
    return {
        "ratio": statistics.median(each),
        "lower_bound": contest.lower_bound(each),
        "ratios": sorted(each),
        "control": statistics.median(contest.ratio(f["ms"], "again") for f in found),
        "torch_ms": statistics.median(min(f["ms"]["torch"].values()) for f in found),
        **{name: found[0][name] for name in ("error", "torch_error", "within")},
        "ran": sorted({r for f in found for r in f["ran"]}),
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    groups = contest.requested(BY_NAME, given)
    return contest.collected(__file__, given, groups, ("group", "layer", "batch"), of_processes, "problems")


def reduced(results: summary.Results, table: str) -> summary.Summary:
    """A row for each group and number of threads; in the table of instruction sets for each of them, too."""
    rows = []
    of_isa: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        of_isa.setdefault(result["machine"]["isa"] if table == "isas" else "", []).extend(result["problems"])
    for isa, problems in of_isa.items():
        for group, threads in itertools.product(GROUPS, sorted({p["threads"] for p in problems})):
            found = [p for p in problems if (p["group"], p["threads"]) == (group.name, threads)]
            if found and not (table == "convolutions" and group.name in OUTDATED):
                errors = {name: max(p[name] for p in found) for name in ("error", "torch_error")}
                about = {"isa": isa} if isa else {}
                rows.append({**about, "what": group.title, "threads": threads, **figures.of_problems(found), **errors})
    every = [p for problems in of_isa.values() for p in problems]
    about = {"batches": sorted({p["batch"] for p in every}), "problems": len(every)}
    return summary.head(results, table=table, **about, beyond=sum(not p["within"] for p in every), rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    rows, batches = of["rows"], ", ".join(map(str, of["batches"]))
    legend = figures.legend(True, min(row["processes"] for row in rows))
    if of["table"] == "isas":
        threads = summary.threads(*sorted({row["threads"] for row in rows}))
        last = f"{summary.described(of)}; {threads}, batch {batches}, {of['processes']} or more processes. {legend}"
        return {"isas": [*of_each_isa(rows), "", last]}
    head = ("what", "threads", "geomean", "from", "to", "lowest bound", "A/A", "error, PyTorch's", "processes")
    cells = ([row["what"], row["threads"], *cells_of(row), error_of(row), row["processes"]] for row in rows)
    told = f"{of['problems']} problems, {of['beyond']} of them beyond their error bound"
    last = f"{summary.described(of)}; batch {batches}; {told}. {legend}"
    return {of["table"]: [*summary.markdown(head, cells), "", last]}


def cells_of(row: dict[str, Any]) -> list[str]:
    shown = figures.text(row["ratio"], row["again"], row["processes"])
    return [shown, *(f"{row[name]:.2f}" for name in ("from", "to", "lower_bound")), figures.ends(row["again"])]


def error_of(row: dict[str, Any]) -> str:
    return f"{row['error']:.0e}, {row['torch_error']:.0e}"


def of_each_isa(rows: list[dict[str, Any]]) -> list[str]:
    """What `normal` gives with each instruction set, from results that were measured under MSCTX_ISA."""
    isas, groups = (list(dict.fromkeys(row[name] for row in rows)) for name in ("isa", "what"))
    by_place = {(row["isa"], row["what"]): row for row in rows}

    def cell(row: dict[str, Any]) -> str:
        shown, slowest, fastest, _, again = cells_of(row)
        return f"{shown}, layers {slowest} to {fastest}, A/A {again}"

    return summary.markdown(
        ["`MSCTX_ISA`", *groups], ([f"`{isa}`", *(cell(by_place[isa, what]) for what in groups)] for isa in isas)
    )


def main() -> None:
    parser = contest.arguments(__doc__, BY_NAME, [1, 8])
    parser.add_argument("--table", choices=("convolutions", "convolutions-again", "isas"), default="convolutions")
    given = parser.parse_args()
    summary.do(given, work, collect, lambda results: reduced(results, given.table), tables)


if __name__ == "__main__":
    main()
