"""The speed of msctx's matrix products: torch's time over ours, shape by shape, with the errors against float64 beside it.

The opponent is torch as it is; torch measured twice in the same way is the control (A/A). Both factors change with every call, three
sets taking turns; in the groups of kept weights the right one stays, in inference. What ``performance`` measures for its choice is
not timed. Groups whose products the processor does not have are left out.

    python bench/products.py --threads 1,2 --processes 3 --out RAW.json
    python bench/products.py --summary RAW.json [more] > bench/results/NAME-products.json
    python bench/products.py --docs bench/results/NAME-products.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import contest
import convolutions
import figures
import summary
from shapes import OF_EACH_KIND, SQUARES, TRANSFORMERS, Shape, tensors

FLOAT16, ANY_UNIT = ("amx_fp16",), ("amx", "amx_fp16")


@dataclass(frozen=True)
class Group:
    """What is measured together: shapes, and what the context requests."""

    name: str
    title: str
    shapes: tuple[Shape, ...]
    options: dict[str, Any]
    units: tuple[str, ...] = ()
    """The instruction sets that have these products; empty: all."""
    keeps_weights: bool = False
    data: str = "normal"

    @property
    def is_tuned(self) -> bool:
        return "performance" in self.options.values()


def _named(algorithm: str, units: tuple[str, ...], shapes: tuple[Shape, ...], what: str, **more: Any) -> Group:
    title, kept = f"`{algorithm}`, {what}", more.get("keeps_weights", False)
    return Group(f"{algorithm}{'-kept' * kept}", title, shapes, {"matmul_algo": algorithm}, units, **more)


PRODUCTS = (("fp16x3", FLOAT16), ("int8x6", ANY_UNIT), ("bf16x6", ANY_UNIT), ("bf16x3", ANY_UNIT), ("tf32", ANY_UNIT))
DENORMAL = (Shape(512, 512, 512, "NN"),)
GROUPS = (
    *(_named(a, units, SQUARES, "1024 to 4096") for a, units in PRODUCTS),
    *(_named(a, units, TRANSFORMERS, "layers of transformers, weights kept", keeps_weights=True) for a, units in PRODUCTS),
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
    contenders = [contest.Contender(side, "", scope, once) for side, scope in scopes.items()]
    found = contest.fastest(contenders, seconds)
    result, rows, ran = contest.ours(context, lambda: once(0), f"{group.name}, {shape.name}", is_tuned=group.is_tuned)
    measured = {"ms": found, "ran": ran}
    if not with_errors:
        return measured
    results = {"ours": result, "torch": once(0)}
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


def of_processes(found: list[dict[str, Any]]) -> dict[str, Any]:
    each = [contest.ratio(f["ms"]) for f in found]
    return {
        "ratio": statistics.median(each),
        "lower_bound": contest.lower_bound(each),
        "ratios": each,
        "control": statistics.median(contest.ratio(f["ms"], "again") for f in found),
        "torch_ms": statistics.median(min(f["ms"]["torch"].values()) for f in found),
        **{name: found[0][name] for name in ("errors", "within")},
        "ran": sorted({r for f in found for r in f["ran"]}),
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    groups = [group.name for group in here() if group.name in contest.requested(BY_NAME, given)]
    return contest.collected(__file__, given, groups, ("group", "layer"), of_processes, "problems")


LEFT = ["torch (torch)"]
SMALL = 0.1
"""Milliseconds below which the cost of a policy for a call shows."""
SLOW = 0.9
"""Problems below this ratio are named in the summary."""


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each group and number of threads, of the shapes that msctx computed: others show only noise."""
    problems, rows, slow = [p for result in results for p in result["problems"]], [], []
    for group, threads in itertools.product(GROUPS, sorted({p["threads"] for p in problems})):
        found = [p for p in problems if (p["group"], p["threads"]) == (group.name, threads)]
        own = [p for p in found if p["ran"] != LEFT]
        if found:
            row: dict[str, Any] = {
                "what": group.title,
                "threads": threads,
                "problems": len(found),
                "left": len(found) - len(own),
            }
            if own:
                names = {"error": "ours", "torch_error": "torch"}
                row |= figures.of_problems(own) | {name: max(p["errors"][side] for p in own) for name, side in names.items()}
            rows.append(row)
        about = ("layer", "threads", "ratio", "control")
        slow += [{"what": group.title, **{name: p[name] for name in about}} for p in own if p["ratio"] < SLOW]
    few, beyond = min(len(p["ratios"]) for p in problems), sum(not p["within"] for p in problems)
    more = {"fewest": few, "problems": len(problems), "beyond": beyond, "cost_us": _cost(problems)}
    return summary.head(results, **more, rows=rows, slow=slow)


def _cost(problems: list[dict[str, Any]]) -> list[float]:
    """By how many µs a small call that is left to torch takes longer than without a policy, and the same for A/A."""
    small = [p for p in problems if p["ran"] == LEFT and p["torch_ms"] < SMALL]
    sides = ("ratio", "control") if small else ()
    return [statistics.median(1e3 * p["torch_ms"] * (1 / p[side] - 1) for p in small) for side in sides]


def tables(of: summary.Summary) -> summary.Tables:
    head = ("what", "threads", "left to PyTorch", "geomean", "from", "to", "lowest bound", "A/A", "error, PyTorch's")
    cells = []
    for row in of["rows"]:
        shown = [*convolutions.cells_of(row), convolutions.error_of(row)] if "ratio" in row else [""] * 6
        cells.append([row["what"], row["threads"], f"{row['left']} of {row['problems']}", *shown])
    problems = f"{of['problems']} problem{'s' * (of['problems'] != 1)}, {of['beyond']} beyond their error bound"
    told = f"{problems}. {figures.legend(True, of['fewest'])}"
    last = f"{summary.described(of)}; {of['processes']} or more processes. {told}"
    if of["cost_us"]:
        cost, control = of["cost_us"]
        last += (
            f" A small product (below {SMALL} ms) that is left to PyTorch takes {cost:.1f} µs longer (A/A: {control:.1f} µs)."
        )
    return {"products": [*summary.markdown(head, cells), "", last]}


def main() -> None:
    summary.do(contest.arguments(__doc__, BY_NAME, [1]).parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
