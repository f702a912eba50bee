"""The tables of the report on a GPU: short, since the end of a long output may be all that is seen; the JSON has everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import figures
import summary
from rich.console import Console
from rich.table import Table

Rows = list[dict[str, Any]]
Lines = Iterator[str | Table]
WIDTH = 118
MOST_FAILURES = 12
TORCH, AGAIN, BENCHMARK = "torch", "torch again", "torch, benchmark"


def show(part: str, found: dict[str, Any]) -> None:
    """Print what a part found, and what became of the rest of it."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    with console.capture() as printed:
        console.print(f"--- {part}, {found['seconds']:.0f} s")
        for line in TABLES[part](found["rows"]) if found["rows"] else ():
            console.print(line)
        if found["note"]:
            console.print(found["note"])
        if found["begun"] < found["cases"]:
            console.print(f"{found['cases'] - found['begun']} of {found['cases']} cases left out: there was no time")
        console.print("\n".join(some([f"FAILED {f['case'] or 'before the first case'}: {f['why']}" for f in found["failed"]])))
    print("\n".join(line.rstrip() for line in printed.get().splitlines() if line.strip()), flush=True)


def some(lines: list[str]) -> list[str]:
    """The first, and how many more there are."""
    more = len(lines) - MOST_FAILURES
    return [line[: 2 * WIDTH] for line in lines[:MOST_FAILURES]] + ([f"and {more} more"] if more > 0 else [])


def table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=True)
    return made


def pairs(rows: Rows) -> Lines:
    for row in rows:
        yield ", ".join(f"{name} {value}" for name, value in row.items())


def builds(rows: Rows) -> Lines:
    for row in rows:
        text = f"{row['what']}: {row['seconds']} s, {'from the cache' if row['cached'] else 'compiled'}, {row['compiler']}"
        if "modules" in row:
            text += f"; {row['modules'] - len(row['failed'])} of {row['modules']} modules compiled"
            text += "".join(f"\n  {name}: {why}" for name, why in row["failed"].items())
        yield text


def checks(rows: Rows) -> Lines:
    def of(outcome: str) -> Rows:
        return [row for row in rows if row["outcome"] == outcome]

    yield ", ".join(f"{len(of(outcome))} {outcome}" for outcome in ("passed", "failed", "skipped"))
    yield from some([f"{row['test'].partition('::')[2]}: {row['why']}" for row in of("failed")])
    whys = [row["why"] for row in of("skipped")]
    for why in sorted(set(whys), key=whys.count, reverse=True)[:3]:
        yield f"{whys.count(why)} skipped: {why}"[:WIDTH]


def by_name(row: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure for figure in row["figures"]}


def by_algorithm(rows: Rows) -> Lines:
    """The geometric mean of its ratios, of how many problems it was timed on, its largest error there, and how many were wrong."""
    arithmetics = list(dict.fromkeys(row["arithmetic"] for row in rows))
    again = [by_name(row)[AGAIN]["ratio"] for row in rows if by_name(row)[AGAIN]["ratio"]]
    if again:
        yield f"torch's time over torch's own once more: {min(again):.2f} to {max(again):.2f}, geomean {figures.geomean(again):.3f}"
    yield "torch's time over its own: geomean, (problems timed / asked), largest error"
    made = table("", *arithmetics)

    def cell(found: Rows) -> str:
        right = [figure for figure in found if figure["ratio"]]
        wrong = sum(figure["why"].startswith("wrong") for figure in found)
        text = (
            f"{figures.geomean(f['ratio'] for f in right):.2f} ({len(right)}/{len(found)})" if right else f"- (0/{len(found)})"
        )
        text += f" {max(f['error'] for f in right):.0e}" if right else ""
        return text + (f" {wrong} wrong" if wrong else "")

    for direction in dict.fromkeys(row["direction"] for row in rows):
        mine = [row for row in rows if row["direction"] == direction]
        for name in dict.fromkeys(name for row in mine for name in by_name(row) if name not in (TORCH, AGAIN)):
            found = {a: [by_name(row)[name] for row in mine if row["arithmetic"] == a] for a in arithmetics}
            made.add_row(f"{direction} {name}", *(cell(found[a]) if found[a] else "" for a in arithmetics))
    yield made


def overhead(rows: Rows) -> Lines:
    made = table("the smallest conv2d, µs of the host a call", "alone", "waiting for the device")
    for row in rows:
        made.add_row(f"{row['what']}, {row['how']}", f"{row['us']:.1f}", f"{row['us_waiting']:.1f}")
    yield made


def costs(rows: Rows) -> Lines:
    for row in rows:
        if row["what"] == "memory":
            peak = "" if row["peak"] is None else f", {row['peak'] / 2**20:.1f} MiB beside its tensors"
            limit = "no limit" if row["limit"] is None else f"conv_workspace_limit={row['limit']}"
            yield f"{limit}: {row['ran']} ran, workspace {row['workspace'] / 2**20:.1f} MiB{peak}; {row['why']}"
        else:
            of = row["of"]
            yield (
                f"a training step with deterministic=ON takes {row['cost']:.2f} of {of['off']['seconds'] * 1e3:.2f} ms without; "
                f"off again {1 / of['off again']['ratio']:.2f}"
            )


NAMES = (AGAIN, BENCHMARK, "performance")
NOTABLE = 1.05
"""From this ratio on a choice of ``performance`` has a row in the documentation."""


def reduced(results: summary.Results) -> summary.Summary:
    """How torch's time compares with that of each, by arithmetic and direction; the choices of performance; the kernels of msctx,
    and the host's time for the smallest convolution."""
    (result,) = results
    parts, found, chosen = result["parts"], [], []
    rows: Rows = parts["figures"]["rows"]
    for arithmetic, direction in dict.fromkeys((row["arithmetic"], row["direction"]) for row in rows):
        mine = [by_name(row) for row in rows if (row["arithmetic"], row["direction"]) == (arithmetic, direction)]
        ratios = {name: [of[name]["ratio"] for of in mine if of[name]["rounds"] > 1] for name in NAMES}
        each = {name: figures.of(some, figures.geomean(some)) for name, some in ratios.items() if some}
        found.append({"what": f"{direction}, {arithmetic}", "problems": len(mine), **each})
    for row in rows:
        of, best = by_name(row), by_name(row)["performance"]
        if (best["ratio"] or 0) >= NOTABLE and best["ran"] != "torch":
            about = {
                "ran": best["ran"],
                "torch_ms": of[TORCH]["ms"],
                BENCHMARK: of[BENCHMARK]["ratio"],
                "performance": best["ratio"],
            }
            chosen.append({"what": problem(row), **about, "error": best["error"], "torch_error": of[TORCH]["error"]})
    direct = [(row, by_name(row)["direct"]) for row in rows if "direct" in by_name(row)]
    own = [{"what": problem(row), "ratio": of["ratio"]} for row, of in direct if of["ratio"] and of["provider"] == "msctx"]
    (machine,) = parts["environment"]["rows"]
    return {"machine": machine, "rows": found, "chosen": chosen, "depthwise": own, "overhead": parts["overhead"]["rows"]}


def problem(row: dict[str, Any]) -> str:
    return ", ".join(row[name] for name in ("layer", "direction", "arithmetic", "layout"))


def for_docs(of: summary.Summary) -> summary.Tables:
    head = ["torch's time over that of", *NAMES]
    lines = [
        [f"{row['what']}, {row['problems']} problems", *(figures.span(row[name]) if name in row else "" for name in NAMES)]
        for row in of["rows"]
    ]
    chosen = [
        [
            f"`{row['ran']}` for {row['what']}",
            *(f"{row[name]:.2f}" for name in ("torch_ms", BENCHMARK, "performance")),
            f"{row['error']:.0e}, {row['torch_error']:.0e}",
        ]
        for row in of["chosen"]
    ]
    chose = ("`performance` chose", "torch, ms", "with benchmark", "`performance`", "error, torch's")
    m = of["machine"]
    where = f"{m['GPU']}, torch {m['torch']}, cuDNN {m['cuDNN']}, {m['date'][:10]}"
    last = f"{where}; batches of 16 to 64. Geometric mean (smallest to largest)."
    return {"cuda-figures": [*summary.markdown(head, lines), "", *summary.markdown(chose, chosen), "", last]}


TABLES: dict[str, Callable[[Rows], Iterable[str | Table]]] = {
    "environment": pairs,
    "build": builds,
    "checks": checks,
    "figures": by_algorithm,
    "overhead": overhead,
    "costs": costs,
    "more checks": checks,
}
