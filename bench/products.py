"""The speed of msctx's matmuls: torch's time over ours, shape by shape, with the errors against float64 beside it.

The opponent is torch as it is; torch measured twice in the same way is the control (A/A). Both factors change with every call, three
sets taking turns; in the groups of kept weights the right one stays, in inference. What ``performance`` measures for its choice is
not timed. Groups whose products the processor does not have are left out.

    python bench/products.py --threads 1,2 --processes 3 --out RAW.json
    python bench/products.py --summary RAW.json [more] > bench/results/NAME-products.json
    python bench/products.py --docs bench/results/NAME-products.json
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import contest
import figures
import summary
import torch
from shapes import KEPT, OF_EACH_KIND, SQUARES, TRANSFORMERS, Shape, tensors

import msctx

FLOAT16, ANY_UNIT = ("amx_fp16",), ("amx", "amx_fp16")


@dataclass(frozen=True)
class Group(contest.Group):
    """What is measured together: shapes, and what the context requests."""

    units: tuple[str, ...] = ()
    """The instruction sets that have these products; empty: all."""
    keeps_weights: bool = False


def _named(algorithm: str, units: tuple[str, ...], shapes: tuple[Shape, ...], what: str, **more: Any) -> Group:
    title, kept = f"`{algorithm}`, {what}", more.get("keeps_weights", False)
    return Group(f"{algorithm}{'-kept' * kept}", title, shapes, {"matmul_algo": algorithm}, units=units, **more)


PRODUCTS = (("fp16x3", FLOAT16), ("int8x6", ANY_UNIT), ("bf16x6", ANY_UNIT), ("bf16x3", ANY_UNIT), ("tf32", ANY_UNIT))
DENORMAL = (Shape(512, 512, 512, "NN"),)
GROUPS = (
    *(_named(a, units, SQUARES, "1024 to 4096") for a, units in PRODUCTS),
    *(_named(a, units, TRANSFORMERS, "layers of transformers, weights kept", keeps_weights=True) for a, units in PRODUCTS),
    _named("strict", (), KEPT, "1 to 197 rows, weights kept", keeps_weights=True),
    Group("strict", "`strict`, 1024 to 4096", SQUARES, {"matmul_algo": "strict"}),
    Group("strict-shapes", f"`strict`, {len(OF_EACH_KIND)} shapes", OF_EACH_KIND, {"matmul_algo": "strict"}),
    *(
        Group(f"{a}-denormals", f"`{a}`, left factors full of denormals", DENORMAL, {"matmul_algo": a}, "denormal", units)
        for a, units in (("strict", ()), *PRODUCTS[:2])
    ),
    *(
        Group(how, f"`{how}`, {len(OF_EACH_KIND)} shapes", OF_EACH_KIND, {"matmul_algo": how})
        for how in ("normal", "performance")
    ),
)
BY_NAME = {group.name: group for group in GROUPS}


def here() -> Iterator[str]:
    """The groups that this processor has."""
    isa = contest.machine()["isa"].removesuffix("_emulated")
    yield from (group.name for group in GROUPS if not group.units or isa in group.units)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.bmm(left, right) if left.dim() == 3 else torch.mm(left, right)


def measure(group: Group, shape: Shape, seconds: float, options: dict[str, Any], with_errors: bool = True) -> dict[str, Any]:
    """One process's figures for one problem: the fastest runs, in ms, and the errors."""
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
    found = contest.beside_peak(contenders, seconds, shape.multiply_adds)
    result, rows, ran = contest.ours(context, lambda: once(0), f"{group.name}, {shape.name}", is_tuned=group.is_tuned)
    told = found | {"ran": ran}
    if not with_errors:
        return told
    results = {"ours": result.detach(), "torch": once(0).detach()}
    left, right = (t.double() for t in sets[0])
    truth = product(left, right)
    errors = {side: contest.error_of(one, truth) for side, one in results.items()}
    lost, sizes = errors["ours"] * float(truth.abs().max()), float(product(left.abs(), right.abs()).max())
    return told | {"errors": errors, "within": all(row.provider != "msctx" or lost <= row.error * sizes for row in rows)}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each shape of a group."""
    group = BY_NAME[given.work]
    with tempfile.TemporaryDirectory() as folder:
        options = {"tuning_file": f"{folder}/tuning.json"} if group.is_tuned else {}
        for shape in group.problems:
            found = measure(group, shape, given.seconds, options, not given.without_errors)
            yield {"group": group.name, "layer": shape.name, "batch": shape.batch, **found}


LEFT = ["torch (torch)"]


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each group and number of threads, of the shapes that msctx computed: others show only noise."""
    rows, problems = [], 0
    for about, found in figures.of_groups(summary.every(results), BY_NAME):
        own = [rows for rows in found if any(row["ran"] != LEFT for row in rows)]
        left = {"problems": len(found), "left": len(found) - len(own)}
        rows.append(about | left | (figures.of_problems(own) if own else {}))
        problems += len(found)
    return summary.head(results, problems=problems, beyond=figures.beyond(summary.every(results)), rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    heads, shown = figures.columns(rows := of["rows"])
    lefts = (f"{row['left']} of {row['problems']}" for row in rows)
    cells = ([row["what"], row["threads"], left, *each] for row, left, each in zip(rows, lefts, shown, strict=True))
    problems = f"{of['problems']} problem{'s' * (of['problems'] != 1)}, {of['beyond']} beyond their error bound"
    last = f"{summary.described(of)}; {of['processes']} or more processes. {problems}. {figures.legend(of['processes'], rows)}"
    return {"products": summary.table(("what", "threads", "left to PyTorch", *heads), cells, last)}


def main() -> None:
    summary.do(contest.arguments(__doc__, BY_NAME).parse_args(), here(), work, reduced, tables)


if __name__ == "__main__":
    main()
