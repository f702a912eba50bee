"""The table of comparisons in the documentation, from results of msctx compare: several of one comparison are processes of it.

for n in 1 2 3; do msctx compare precision --out DIR$n; done
python bench/compared.py --summary DIR*/result.json > bench/results/NAME-compare.json
python bench/compared.py --docs bench/results/NAME-compare.json
"""

from __future__ import annotations

import sys
from datetime import date
from typing import Any

import contest
import figures
import summary

from msctx.compare.result import Result, estimate


def reduced(files: summary.Results) -> summary.Summary:
    """For each comparison a row of A/A, and one for each choice: its speed on the whole, and its worst error."""
    groups = {name: [*map(Result.model_validate, group)] for (name,), group in summary.by(files, "name").items()}
    rows: list[dict[str, Any]] = []
    for name, group in groups.items():
        noisy, count = sum(row.noisy for r in group for row in r.rows), sum(len(r.rows) for r in group)
        controls = figures.of([control(result) for result in group])
        rows.append({"comparison": name, "again": controls, "rows": count // len(group), "noisy": noisy / count})
        for total in sorted(group[0].totals, key=lambda total: -total.ratio):
            plans = [[total.point] * len(result.rows) for result in group]
            rows.append({"choice": total.point, **speed(group, plans), "error": total.error, "rows": total.rows})
        if len({*group[0].best.points}) > 1 and len(group[0].rows) > 2:
            plans = [result.best.points for result in group]
            rows.append({"choice": "the best of each row", **speed(group, plans), "error": None, "rows": None})
    about = [result.environment for group in groups.values() for result in group]
    machine = {"cpu": sorted({f"{of['cpu']} ({of['cpu_capability']})" for of in about})}
    machine["torch"] = sorted({of["libraries"]["torch"] for of in about})
    found = {"machine": machine, "date": f"{date.today()}", "rows": rows}
    return found | {"processes": min(len(group) for group in groups.values())}


def control(result: Result) -> float:
    """torch's time over torch's again, on the whole."""
    rows = [(row.count * row.baseline.ms, row.control) for row in result.rows if row.baseline.ms]
    return sum(ms for ms, _ in rows) / sum(ms / ratio for ms, ratio in rows)


def speed(group: list[Result], plans: list[list[str]]) -> dict[str, Any]:
    """The figure of a choice for each row, over all processes."""
    found = [estimate(result.rows, plan) for result, plan in zip(group, plans, strict=True)]
    return {"ratio": figures.of([one.ratio for one in found]), "stopped": any(one.margin == float("inf") for one in found)}


def tables(of: summary.Summary) -> summary.Tables:
    lines = []
    again: figures.Figure = {}
    for row in of["rows"]:
        if "comparison" in row:
            again = row["again"]
            shown = " to ".join(f"{c:.2f}" for c in sorted({again["low"], again["high"]}))
            noisy = f"{row['rows']} ({row['noisy']:.0%} noisy)"
            lines.append([f"`{row['comparison']}`", "PyTorch again: A/A", shown, "", noisy])
            continue
        shown = figures.text(row["ratio"], again, of["processes"], with_dash=False)
        if row["stopped"]:
            shown = f"{row['ratio']['median']:.2g} (stopped after its first runs in some rows)"
        lines.append(["", row["choice"], shown, f"{row['error']:.0e}" if row["error"] else "", row["rows"] or ""])
    where = f"{', '.join(of['machine']['cpu'])}, torch {', '.join(of['machine']['torch'])}, {of['date']}"
    last = (
        f"{where}; {of['processes']} or more processes for each comparison. In brackets: the range over processes. Bold: it contains "
        f"neither 1 nor the deviation of A/A, with {figures.LEAST} processes or more."
    )
    return {
        "compare": summary.table(("comparison", "choice", "speed (PyTorch = 1)", "worst error", "rows measured"), lines, last)
    }


def main() -> None:
    given = contest.parser(__doc__).parse_args()
    if not summary.of_files(given, reduced, tables):
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
