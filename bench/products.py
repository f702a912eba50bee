"""The speed of msctx's matrix products: torch's time over ours, shape by shape, with the errors against float64 beside it.

The opponent is torch as it is; torch measured twice in the same way is the control (A/A). Both factors change with every call, three
sets taking turns; in the groups of kept weights the right one stays, in inference. What ``performance`` measures for its choice is
not timed. Groups whose products the processor does not have are left out. Beside them stand what torch has with less precision:
oneDNN's conversion to bfloat16, and, on one thread, products of `brgemm` (bench/brgemm.py) from one or three parts.

    python bench/products.py --threads 1,2 --processes 3 --out bench/results/NAME-products.json
    python bench/products.py --only performance --processes 3 --out bench/results/NAME-products.json
    python bench/products.py --docs bench/results/NAME-products.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import contest
import convolutions
import figures
from shapes import OF_EACH_KIND, SQUARES, TRANSFORMERS, Shape, tensors

FLOAT16, ANY_UNIT = ("amx_fp16",), ("amx", "amx_fp16")


@dataclass(frozen=True)
class Group:
    """What is measured together: shapes, and what the context asks for."""

    name: str
    title: str
    shapes: tuple[Shape, ...]
    options: dict[str, Any]
    units: tuple[str, ...] = ()
    """The instruction sets that have these products; empty: all."""
    keeps_weights: bool = False
    opponents: tuple[str, ...] = ()
    data: str = "normal"

    @property
    def is_tuned(self) -> bool:
        return "performance" in self.options.values()


ROUNDED, ONE_PART, THREE_PARTS = "oneDNN, bf16", "brgemm, bf16", "brgemm, bf16x3"
ENGINES = (ROUNDED, ONE_PART, THREE_PARTS)


def _named(algorithm: str, units: tuple[str, ...], shapes: tuple[Shape, ...], what: str, **more: Any) -> Group:
    title, kept = f"`{algorithm}`, {what}", more.get("keeps_weights", False)
    return Group(f"{algorithm}{'-kept' * kept}", title, shapes, {"matmul_algo": algorithm}, units, **more)


PRODUCTS = (("fp16x3", FLOAT16), ("int8x6", ANY_UNIT), ("bf16x6", ANY_UNIT), ("bf16x3", ANY_UNIT), ("tf32", ANY_UNIT))
DENORMAL = (Shape(512, 512, 512, "NN"),)
GROUPS = (
    *(_named(a, units, SQUARES, "1024 to 4096", opponents=ENGINES) for a, units in PRODUCTS),
    *(
        _named(a, units, TRANSFORMERS, "layers of transformers, weights kept", keeps_weights=True, opponents=ENGINES)
        for a, units in PRODUCTS
    ),
    Group("strict", "`strict`, 1024 to 4096", SQUARES, {"matmul_algo": "strict"}),
    Group("strict-shapes", f"`strict`, {len(OF_EACH_KIND)} shapes", OF_EACH_KIND, {"matmul_algo": "strict"}),
    *(
        Group(f"{a}-denormals", f"`{a}`, left factors full of denormals", DENORMAL, {"matmul_algo": a}, units, data="denormal")
        for a, units in (("strict", ()), *PRODUCTS[:2])
    ),
    *(
        Group(how, f"`{how}`, {len(OF_EACH_KIND)} shapes", OF_EACH_KIND, {"matmul_algo": how})
        for how in ("normal", "performance")
    ),
)
BY_NAME = {group.name: group for group in GROUPS}


def here() -> list[Group]:
    """The groups that this processor has."""
    isa = contest.machine()["isa"].removesuffix("_emulated")
    return [group for group in GROUPS if not group.units or isa in group.units]


def product(left: Any, right: Any) -> Any:
    import torch

    return torch.bmm(left, right) if left.dim() == 3 else torch.mm(left, right)


@contextmanager
def rounded() -> Iterator[None]:
    """oneDNN's products round to bfloat16."""
    import torch

    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def beside(group: Group, right: Any) -> dict[str, Callable[[Any], Any]]:
    """Name → what multiplies by the right factor of the first set, of those that this machine has."""
    import brgemm
    import torch

    found: dict[str, Callable[[Any], Any]] = {}
    if ROUNDED in group.opponents and torch.ops.mkldnn._is_mkldnn_bf16_supported():

        def by_onednn(left: Any) -> Any:
            with rounded():
                return product(left, right)

        found[ROUNDED] = by_onednn
    if right.dim() == 2 and torch.get_num_threads() == 1 and not brgemm.obstacle(torch.bfloat16):
        parts = {ONE_PART: 1, THREE_PARTS: 2}
        found |= {name: brgemm.product(right, torch.bfloat16, n) for name, n in parts.items() if name in group.opponents}
    return found


def measure(group: Group, shape: Shape, seconds: float, options: dict[str, Any], with_errors: bool = True) -> dict[str, Any]:
    """One process's figures for one problem: the fastest runs, in ms, and the errors."""
    import torch

    import msctx

    sets = [tensors(shape, seed, group.data) for seed in range(3)]
    weight = torch.nn.Parameter(sets[0][1]) if group.keeps_weights else None
    kept = {"frozen_weights": True} if group.keeps_weights else {}
    context = msctx.context(**group.options, **kept, **options, fallback="silent")

    def once(number: int) -> Any:
        left, right = sets[number % 3]
        with torch.set_grad_enabled(weight is None):  # weights are kept in inference alone
            return product(left, right if weight is None else weight)

    scopes = {"torch": nullcontext, "ours": lambda: context, "again": nullcontext}
    others = beside(group, sets[0][1])
    contenders = [contest.Contender(side, "", scope, once) for side, scope in scopes.items()]
    contenders += [
        contest.Contender(name, "", nullcontext, lambda number, run=run: run(sets[number % 3][0]))
        for name, run in others.items()
    ]
    found = contest.fastest(contenders, seconds)
    result, rows, ran = contest.ours(context, lambda: once(0), f"{group.name}, {shape.name}", is_tuned=group.is_tuned)
    measured = {"ms": found, "ran": ran}
    if not with_errors:
        return measured
    results = {"ours": result, "torch": once(0), **{name: run(sets[0][0]) for name, run in others.items()}}
    left, right = (t.double() for t in sets[0])
    truth, sizes = product(left, right), float(product(left.abs(), right.abs()).max())
    lost = {side: float((result.detach() - truth).abs().max()) for side, result in results.items()}
    scale = float(truth.abs().max())
    within = all(row.provider != "msctx" or lost["ours"] <= row.error * sizes for row in rows)
    return measured | {"errors": {side: each / scale for side, each in lost.items()}, "within": within}


def work(given: argparse.Namespace) -> None:
    """A process: a line of JSON for each shape of a group."""
    group = BY_NAME[given.work]
    with tempfile.TemporaryDirectory() as folder:
        options = {"tuning_file": f"{folder}/tuning.json"} if group.is_tuned else {}
        for shape in group.shapes:
            found = measure(group, shape, given.seconds, options, not given.without_errors)
            print(json.dumps({"group": group.name, "layer": shape.name, **found}), flush=True)


def summary(key: tuple[Any, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    each = {side: [contest.ratio(f["ms"], side) for f in found] for side in found[0]["ms"] if side != "torch"}
    return {
        **dict(zip(("group", "layer", "threads"), key, strict=True)),
        "ratio": statistics.median(each["ours"]),
        "lower_bound": contest.lower_bound(each["ours"]),
        "ratios": each["ours"],
        "control": statistics.median(each["again"]),
        "others": {side: statistics.median(ratios) for side, ratios in each.items() if side in ENGINES},
        "torch_ms": statistics.median(min(f["ms"]["torch"].values()) for f in found),
        **{name: found[0][name] for name in ("errors", "within")},
        "ran": sorted({r for f in found for r in f["ran"]}),
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    groups = [group for group in here() if group.name in contest.asked(BY_NAME, given)]
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    result = {"machine": contest.machine(), "processes": 0, "problems": []}
    with Progress(console=Console(stderr=True)) as progress:
        each = sum(len(group.shapes) for group in groups)
        bar = progress.add_task("measuring", total=each * given.processes * len(given.threads))
        for number in range(given.processes):
            for threads, group in itertools.product(given.threads, groups):
                for found in contest.lines_of(__file__, group.name, threads, given, with_errors=number == 0):
                    rows.setdefault((found["group"], found["layer"], threads), []).append(found)
                    progress.advance(bar)
            result |= {"processes": number + 1, "problems": [summary(key, found) for key, found in rows.items()]}
            contest.keep(given.out, result)
    return result


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each group and number of threads, of the shapes that msctx computed: others show noise alone."""
    head = ("what", "threads", "left to PyTorch", "geomean", "from", "to", "lowest bound", "A/A", "error, PyTorch's")
    problems = [p for result in results for p in result["problems"]]
    engines = [engine for engine in ENGINES if any(engine in p["others"] for p in problems)]
    head = (*head, *(f"{engine}, error" for engine in engines))
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for group, threads in itertools.product(GROUPS, sorted({p["threads"] for p in problems})):
        found = [p for p in problems if (p["group"], p["threads"]) == (group.name, threads)]
        own = [p for p in found if p["ran"] != LEFT]
        if found:
            cells = [group.title, threads, f"{len(found) - len(own)} of {len(found)}", *(_figures(own) if own else [""] * 6)]
            cells += [_of_engine(found, engine) for engine in engines]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    beyond = sum(not p["within"] for p in problems)
    measured = f"{len(problems)} problem{'s' * (len(problems) != 1)}, {beyond} beyond their error bound"
    last = f"{contest.last_line(results)} {measured}. {figures.legend(True, convolutions.least(results))}"
    return [*lines, "", " ".join([last, *_cost(problems)]), *_slow(problems)]


LEFT = ["torch (torch)"]
SMALL = 0.1
"""Milliseconds below which what a policy costs a call shows."""


def _figures(own: list[dict[str, Any]]) -> list[str]:
    ratios, controls = [p["ratio"] for p in own], [p["control"] for p in own]
    errors = ", ".join(f"{max(p['errors'][side] for p in own):.0e}" for side in ("ours", "torch"))
    bounds = f"{min(p['lower_bound'] for p in own):.2f}", f"{min(controls):.2f} to {max(controls):.2f}"
    return [convolutions.figure(own), f"{min(ratios):.2f}", f"{max(ratios):.2f}", *bounds, errors]


def _of_engine(found: list[dict[str, Any]], engine: str) -> str:
    """The geometric mean over the shapes that it has, and its worst error."""
    has = [p for p in found if engine in p["others"]]
    if not has:
        return ""
    return f"{contest.geomean(p['others'][engine] for p in has):.2f}, {max(p['errors'][engine] for p in has):.0e}"


def _cost(problems: list[dict[str, Any]]) -> list[str]:
    """What a call that is left to torch takes longer than without a policy."""
    more = [1e3 * p["torch_ms"] * (1 / p["ratio"] - 1) for p in problems if p["ran"] == LEFT and p["torch_ms"] < SMALL]
    if not more:
        return []
    again = [1e3 * p["torch_ms"] * (1 / p["control"] - 1) for p in problems if p["ran"] == LEFT and p["torch_ms"] < SMALL]
    cost, control = statistics.median(more), statistics.median(again)
    return [f"A small product (below {SMALL} ms) that is left to PyTorch takes {cost:.1f} µs longer (A/A: {control:.1f} µs)."]


LEAST = 0.97


def _slow(problems: list[dict[str, Any]]) -> list[str]:
    """The shapes that ``normal`` and ``performance`` make slower than torch, by more than it differs from itself."""

    def is_slow(p: dict[str, Any]) -> bool:
        decided = p["group"] in ("normal", "performance") and p["ran"] != LEFT
        return bool(decided and p["ratio"] < LEAST / figures.noise([p["control"]]))

    each = [
        f"{p['layer']} ({p['group']}, {p['threads']} thread{'s' * (p['threads'] > 1)}): {p['ratio']:.2f}, A/A {p['control']:.2f}, "
        f"by {' and '.join(p['ran'])}"
        for p in sorted(filter(is_slow, problems), key=lambda p: p["ratio"])
    ]
    return ["", f"Below {LEAST}: {'; '.join(each)}."] if each else []


def main() -> None:
    contest.do(contest.arguments(__doc__, BY_NAME, [1]).parse_args(), "products", work, collect, table)


if __name__ == "__main__":
    main()
