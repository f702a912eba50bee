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
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import contest
import figures
import layers
import summary
from layers import DENSE, DEPTHWISE_3, DEPTHWISE_7, DEPTHWISE_LARGE, OF_EACH_KIND, STRIDED, WINDOW_1, WINDOW_3, Layer

import msctx


@dataclass(frozen=True)
class Group(contest.Group):
    """What is measured together: layers, a direction, what the context requests (values, or what gives them for a layer)."""

    direction: str = "fprop"
    batches: tuple[int, ...] = ()
    """In place of those requested, where these would take long."""
    opponent: dict[str, Any] = field(default_factory=dict)
    """What any user can ask torch for, on such data: options of its context."""


def winograd(layer: Layer) -> str:
    return "winograd" if layer.c <= 128 else "winograd_nonfused"


TF32 = {"conv_allow_tf32": True}
STRICT = {"allow_fp32_emulation": False}
GEMM, DIRECT = {"conv_fprop_algo": "implicit_precomp_gemm"}, {"conv_fprop_algo": "direct"}
WGRAD, WINOGRAD_WGRAD = {"conv_wgrad_algo": "algo_1"}, {"conv_wgrad_algo": "winograd_nonfused"}
LARGE_WGRAD, DENORMALS = "depthwise weight gradient, K >= 27", "3x3, inputs full of denormals, torch flushes them"
COUNT = len(OF_EACH_KIND)
GROUPS = (
    Group("gemm", "3x3, implicit GEMM, fp32-grade", WINDOW_3, GEMM),
    Group("gemm-tf32", "3x3, implicit GEMM, TF32 class", WINDOW_3, {**GEMM, **TF32}),
    Group("winograd-strict", "3x3, Winograd F(4,3), float32", WINDOW_3, {"conv_fprop_algo": winograd, **STRICT}),
    Group("winograd", "3x3, Winograd F(4,3), emulated float32", WINDOW_3, {"conv_fprop_algo": winograd}),
    Group("dgrad", "3x3, data gradient, fp32-grade", WINDOW_3, {"conv_dgrad_algo": "algo_1"}, direction="dgrad"),
    Group("wgrad", "3x3, weight gradient, fp32-grade", WINDOW_3, WGRAD, direction="wgrad"),
    Group("wgrad-tf32", "3x3, weight gradient, TF32 class", WINDOW_3, {**WGRAD, **TF32}, direction="wgrad"),
    Group("wgrad-winograd", "3x3, weight gradient, Winograd, float32", WINDOW_3, WINOGRAD_WGRAD, direction="wgrad"),
    Group("1x1", "1x1, fp32-grade", WINDOW_1, GEMM),
    Group("1x1-tf32", "1x1, TF32 class", WINDOW_1, {**GEMM, **TF32}),
    Group("depthwise", "depthwise K >= 27", DEPTHWISE_LARGE, DIRECT, batches=(1,)),
    Group("depthwise-wgrad", LARGE_WGRAD, DEPTHWISE_LARGE, WGRAD, direction="wgrad", batches=(1,)),
    Group("depthwise-7", "depthwise K = 7", DEPTHWISE_7, DIRECT),
    Group("depthwise-7-wgrad", "depthwise weight gradient, K = 7", DEPTHWISE_7, WGRAD, direction="wgrad"),
    Group("depthwise-3", "depthwise K = 3", DEPTHWISE_3, DIRECT),
    Group("strided", "strided data gradient", STRIDED, {"conv_dgrad_algo": "algo_1"}, direction="dgrad"),
    Group("dense", "dense K >= 11, tiled FFT, float32", DENSE, {"conv_fprop_algo": "fft_tiling", **STRICT}),
    Group("denormals", DENORMALS, WINDOW_3[:2], GEMM, "denormal", batches=(1,), opponent={"flush_denormal": True}),
    *(
        Group(f"{how}-{d}", f"`{how}`, {d}, {COUNT} layers", OF_EACH_KIND, {f"conv_{d}_algo": how}, "normal", d, (1,))
        for how in ("normal", "performance")
        for d in ("fprop", "dgrad", "wgrad")
    ),
)
BY_NAME = {group.name: group for group in GROUPS}


def measure(
    group: Group, layer: Layer, batch: int, seconds: float, options: dict[str, Any], with_errors: bool = True
) -> dict[str, Any]:
    """One process's figures for one problem: the fastest runs, in ms, and the errors."""
    run = layers.call(layer, group.direction)
    sets = {f: [layers.tensors(layer, batch, seed, f, group.data) for seed in range(3)] for f in layers.FORMATS}
    requested = {name: value(layer) if callable(value) else value for name, value in group.options.items()}
    context = msctx.context(**requested, **options, fallback="silent")
    opponent = msctx.context(**group.opponent) if group.opponent else nullcontext()

    def contender(side: str, name: str) -> contest.Contender:
        weight = sets[name][0][1]

        def once(number: int) -> None:
            x, _, g = sets[name][number % 3]
            run(x, weight, g)

        def step() -> None:
            weight[0, 0, 0, 0] += 1e-3

        scope = context if side == "ours" else opponent
        return contest.Contender(side, name, lambda: scope, once, step if group.direction == "dgrad" else lambda: None)

    contenders = [contender(s, f) for s in ("torch", "ours", "again") for f in layers.FORMATS]
    found = contest.beside_peak(contenders, seconds, batch * layer.multiply_adds)
    chosen = contest.quickest(found["ms"]["ours"])
    problem = f"{group.name}, {layer.name}"
    result, rows, ran = contest.ours(context, lambda: run(*sets[chosen][1]), problem, is_tuned=group.is_tuned)
    told = found | {"ran": ran}
    if not with_errors:
        return told
    results = {"ours": result, "torch": run(*sets[contest.quickest(found["ms"]["torch"])][1])}
    truth = run(*(t.double() for t in sets["channels_first"][1]))
    errors = {side: contest.error_of(one, truth) for side, one in results.items()}
    within = all(row.provider != "msctx" or errors["ours"] <= row.error for row in rows if row.problem.layout == chosen)
    return told | {"errors": errors, "within": within}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each problem of a group."""
    group = BY_NAME[given.work]
    with tempfile.TemporaryDirectory() as folder:
        options = {"tuning_file": f"{folder}/tuning.json"} if group.is_tuned else {}
        for batch, layer in itertools.product(group.batches or given.batches, group.problems):
            found = measure(group, layer, batch, given.seconds, options, not given.without_errors)
            yield {"group": group.name, "layer": layer.name, "batch": batch, **found}


def reduced(results: summary.Results, table: str) -> summary.Summary:
    """A row for each group and number of threads; in the table of instruction sets for each of them, too."""
    measured: dict[str, summary.Rows] = {}
    for result in results:
        measured.setdefault(result["machine"]["isa"] if table == "isas" else "", []).extend(result["rows"])
    rows, problems = [], 0
    for isa, of_isa in measured.items():
        for about, found in figures.of_groups(of_isa, BY_NAME):
            rows.append(({"isa": isa} if isa else {}) | about | figures.of_problems(found))
            problems += len(found)
    every = summary.every(results)
    more = {"batches": sorted({row["batch"] for row in every}), "problems": problems}
    return summary.head(results, table=table, **more, beyond=figures.beyond(every), rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    rows, batches = of["rows"], ", ".join(map(str, of["batches"]))
    legend = figures.legend(min(row["processes"] for row in rows), rows)
    if of["table"] == "isas":
        threads = summary.threads(*sorted({row["threads"] for row in rows}))
        last = f"{summary.described(of)}; {threads}, batch {batches}, {of['processes']} or more processes. {legend}"
        return {"isas": [*of_each_isa(rows), "", last]}
    heads, shown = figures.columns(rows)
    cells = ([row["what"], row["threads"], *each, row["processes"]] for row, each in zip(rows, shown, strict=True))
    told = f"{of['problems']} problems, {of['beyond']} of them beyond their error bound"
    last = f"{summary.described(of)}; batch {batches}; {told}. {legend}"
    return {of["table"]: summary.table(("what", "threads", *heads, "processes"), cells, last)}


def of_each_isa(rows: summary.Rows) -> list[str]:
    """What `normal` gives with each instruction set, from results that were measured under MSCTX_ISA."""

    def cell(row: dict[str, Any]) -> str:
        shown, slowest, fastest, again, _, shares = figures.cells(row)
        return f"{shown}, layers {slowest} to {fastest}, A/A {again}{', share of peak (PyTorch) ' * bool(shares)}{shares}"

    groups = dict.fromkeys(row["what"] for row in rows)
    lines = ([f"`{isa}`", *map(cell, found)] for (isa,), found in summary.by(rows, "isa").items())
    return summary.markdown(["`MSCTX_ISA`", *groups], lines)


def main() -> None:
    parser = contest.arguments(__doc__, BY_NAME, [1, 8])
    parser.add_argument("--table", choices=("convolutions", "convolutions-again", "isas"), default="convolutions")
    given = parser.parse_args()
    summary.do(given, BY_NAME, work, lambda results: reduced(results, given.table), tables)


if __name__ == "__main__":
    main()
