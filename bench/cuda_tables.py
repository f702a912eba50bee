"""The tables of the report on a GPU: short, since the end of a long output may be all that is seen; the JSON has everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import contest
from rich.console import Console
from rich.table import Table

Rows = list[dict[str, Any]]
Lines = Iterator[str | Table]
WIDTH = 118
SHORT = {
    "implicit_precomp_gemm": "precomp",
    "implicit_gemm": "implicit",
    "winograd_nonfused": "wino_nf",
    "channels_first": "first",
    "channels_last": "last",
}
MOST_MODES = 3
"""Columns of arithmetic and layout in the table of layers."""
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
        if "kernels" in row:
            text += f"; {row['within_budget']} of {row['kernels']} within their budgets"
            text += "".join(f"\n  {name}: {why}" for name, why in row["beyond"].items())
        yield text


def checks(rows: Rows) -> Lines:
    def of(outcome: str) -> Rows:
        return [row for row in rows if row["outcome"] == outcome]

    yield ", ".join(f"{len(of(outcome))} {outcome}" for outcome in ("passed", "failed", "skipped"))
    yield from some([f"{row['test'].partition('::')[2]}: {row['why']}" for row in of("failed")])
    whys = [row["why"] for row in of("skipped")]
    for why in sorted(set(whys), key=whys.count, reverse=True)[:3]:
        yield f"{whys.count(why)} skipped: {why}"[:WIDTH]


def figures(rows: Rows) -> Lines:
    yield from by_layer(rows)
    yield from by_algorithm(rows)


def modes(rows: Rows) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["arithmetic"], row["layout"]) for row in rows))


def by_name(row: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure for figure in row["figures"]}


def by_layer(rows: Rows) -> Lines:
    """The fastest that was named, beside what torch needs and what cudnn.benchmark makes of it."""
    shown = modes(rows)[:MOST_MODES]
    yield "torch's time over that of the fastest by name; b: over that with cudnn.benchmark"
    made = table("channels first or last", *(f"{arithmetic}, {SHORT[layout]}" for arithmetic, layout in shown))

    def cell(row: dict[str, Any]) -> str:
        of = by_name(row)
        if of[TORCH]["ms"] is None:
            return of[TORCH]["why"][:24]
        named = [f for name, f in of.items() if name not in (TORCH, AGAIN, BENCHMARK, "normal", "performance") and f["ratio"]]
        best = max(named, key=lambda figure: figure["ratio"], default=None)
        text = f"{best['ratio']:.2f} {SHORT.get(best['name'], best['name'])}" if best else "none"
        return text + (f" b{of[BENCHMARK]['ratio']:.2f}" if of[BENCHMARK]["ratio"] else "")

    for layer, direction in dict.fromkeys((row["layer"], row["direction"]) for row in rows):
        mine = {(r["arithmetic"], r["layout"]): r for r in rows if (r["layer"], r["direction"]) == (layer, direction)}
        made.add_row(f"{layer}, {direction}", *(cell(mine[mode]) if mode in mine else "" for mode in shown))
    yield made


def by_algorithm(rows: Rows) -> Lines:
    """The geometric mean of its ratios, of how many problems it was timed on, its largest error there, and how many were wrong."""
    arithmetics = list(dict.fromkeys(row["arithmetic"] for row in rows))
    again = [by_name(row)[AGAIN]["ratio"] for row in rows if by_name(row)[AGAIN]["ratio"]]
    if again:
        yield f"torch's time over torch's own once more: {min(again):.2f} to {max(again):.2f}, geomean {contest.geomean(again):.3f}"
    yield f"float64 computed on: {', '.join(sorted({row['float64 on'] for row in rows}))}"
    yield "torch's time over its own: geomean, (problems timed / asked), largest error"
    made = table("", *arithmetics)

    def cell(found: Rows) -> str:
        right = [figure for figure in found if figure["ratio"]]
        wrong = sum(figure["why"].startswith("wrong") for figure in found)
        text = (
            f"{contest.geomean(f['ratio'] for f in right):.2f} ({len(right)}/{len(found)})" if right else f"- (0/{len(found)})"
        )
        text += f" {max(f['error'] for f in right):.0e}" if right else ""
        return text + (f" {wrong} wrong" if wrong else "")

    for direction in dict.fromkeys(row["direction"] for row in rows):
        mine = [row for row in rows if row["direction"] == direction]
        for name in dict.fromkeys(name for row in mine for name in by_name(row) if name not in (TORCH, AGAIN)):
            found = {a: [by_name(row)[name] for row in mine if row["arithmetic"] == a] for a in arithmetics}
            made.add_row(f"{direction} {SHORT.get(name, name)}", *(cell(found[a]) if found[a] else "" for a in arithmetics))
    yield made


def kernels(rows: Rows) -> Lines:
    """Of each algorithm the kernel that took the most time."""
    made = table("the kernels of", "", "of the family", "most of the time")
    seen = set()
    for row in rows:
        key = row["direction"], row["algorithm"], row["math"]
        if key not in seen:
            seen.add(key)
            fits = {True: "yes", False: "NO", None: ""}[row["fits"]]
            name = next(iter(row["kernels"]), "none seen").removeprefix("void ")
            arithmetic = row["arithmetic"] if row["math"] == "torch" else row["math"]
            made.add_row(f"{row['direction']} {row['algorithm']}", arithmetic, fits, name[:50])
    yield made


def depthwise(rows: Rows) -> Lines:
    made = table("torch's time / ours, / cuDNN's best (ours error)", "fprop", "dgrad", "wgrad")

    def cell(row: dict[str, Any]) -> str:
        of = by_name(row)
        own = of.pop("msctx")
        best = max((f["ratio"] for name, f in of.items() if not name.startswith("torch") and f["ratio"]), default=None)
        ratios = [f"{own['ratio']:.2f}" if own["ratio"] else own["why"], f"{best:.2f}" if best else "-"]
        return f"{', '.join(ratios)} ({own['error']:.0e})"

    for layer, arithmetic, layout in dict.fromkeys((row["layer"], row["arithmetic"], row["layout"]) for row in rows):
        key = (layer, arithmetic, layout)
        mine = {row["direction"]: row for row in rows if (row["layer"], row["arithmetic"], row["layout"]) == key}
        made.add_row(
            f"{layer}, {arithmetic}, {SHORT[layout]}",
            *(cell(mine[d]) if d in mine else "" for d in ("fprop", "dgrad", "wgrad")),
        )
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


NAMES = (AGAIN, BENCHMARK, "normal", "performance")
NOTABLE = 1.05
"""From this ratio on a choice of ``performance`` has a row in the documentation."""


def for_docs(result: dict[str, Any]) -> list[str]:
    """Markdown: how torch's own time compares with that of each, by arithmetic and direction; and what performance chose."""
    parts = result["parts"]
    rows: Rows = parts["figures"]["rows"]
    lines = ["| torch's time over that of | " + " | ".join(NAMES) + " |", "|---" * (1 + len(NAMES)) + "|"]
    for arithmetic, direction in dict.fromkeys((row["arithmetic"], row["direction"]) for row in rows):
        mine = [by_name(row) for row in rows if (row["arithmetic"], row["direction"]) == (arithmetic, direction)]
        cells = [_range([of[name]["ratio"] for of in mine if of[name]["rounds"] > 1]) for name in NAMES]
        lines.append(f"| {direction}, {arithmetic}, {len(mine)} problems | {' | '.join(cells)} |")
    lines += [
        "",
        "| `performance` chose | torch, ms | with benchmark | `performance` | error, torch's |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        of = by_name(row)
        chosen, own = of["performance"], of[TORCH]
        if (chosen["ratio"] or 0) >= NOTABLE and chosen["ran"] != "torch":
            what = f"`{chosen['ran']}` for {row['layer']}, {row['direction']}, {row['arithmetic']}, {row['layout']}"
            errors = f"{chosen['error']:.0e}, {own['error']:.0e}"
            lines.append(f"| {what} | {own['ms']:.2f} | {of[BENCHMARK]['ratio']:.2f} | {chosen['ratio']:.2f} | {errors} |")
    about = next(iter(parts["environment"]["rows"]))
    where = f"{about['GPU']}, torch {about['torch']}, cuDNN {about['cuDNN']}"
    return [*lines, "", f"{where}, {about['date'][:10]}; batches of 16 to 64. Geometric mean (smallest to largest)."]


def _range(ratios: list[float]) -> str:
    return f"{contest.geomean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""


TABLES: dict[str, Callable[[Rows], Iterable[str | Table]]] = {
    "environment": pairs,
    "build": builds,
    "checks": checks,
    "figures": figures,
    "kernels": kernels,
    "depthwise": depthwise,
    "overhead": overhead,
    "costs": costs,
    "more checks": checks,
}
