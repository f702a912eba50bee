"""The table of comparisons in the documentation, from results of msctx compare: several of one comparison are processes of it.

for n in 1 2 3; do msctx compare precision --out DIR$n; done; python bench/compared.py DIR*/result.json
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import contest
import figures

from msctx.compare.result import Result
from msctx.compare.summary import estimate


def table(results: list[Result]) -> list[str]:
    """Markdown: for each comparison the speed of each choice on the whole, and its worst error."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.name, []).append(result)
    lines = ["| comparison | choice | speed (PyTorch = 1) | worst error | rows measured |", "|---|---|---|---|---|"]
    for name, group in groups.items():
        noisy, count = sum(row.noisy for r in group for row in r.rows), sum(len(r.rows) for r in group)
        controls = [control(result) for result in group]
        shown = " to ".join(f"{c:.2f}" for c in sorted({min(controls), max(controls)}))
        lines.append(f"| `{name}` | PyTorch again: A/A | {shown} |  | {count // len(group)} ({noisy / count:.0%} noisy) |")
        for total in sorted(group[0].totals, key=lambda total: -total.ratio):
            error = f"{total.error:.0e}" if total.error else ""
            figure = speed(group, [[total.point] * len(result.rows) for result in group])
            lines.append(f"|  | {total.point} | {figure} | {error} | {total.rows} |")
        if len({*group[0].best.points}) > 1 and len(group[0].rows) > 2:
            lines.append(f"|  | the best of each row | {speed(group, [result.best.points for result in group])} |  | |")
    processors = {f"{result.environment['cpu']} ({result.environment['cpu_capability']})" for result in results}
    versions = {result.environment["libraries"]["torch"] for result in results}
    fewest = min(len(group) for group in groups.values())
    return [
        *lines,
        "",
        f"{', '.join(sorted(processors))}, torch {', '.join(sorted(versions))}; {fewest} or more processes for each comparison. In "
        "brackets: the range over processes, or three standard errors of a single process. Bold: it contains neither 1 nor the "
        f"deviation of A/A, with {figures.LEAST} processes or more.",
    ]


def control(result: Result) -> float:
    """torch's time over torch's again, on the whole."""
    rows = [(row.count * row.baseline.ms, row.control) for row in result.rows if row.baseline.ms]
    return sum(ms for ms, _ in rows) / sum(ms / ratio for ms, ratio in rows)


def speed(group: list[Result], plans: list[list[str]]) -> str:
    """The figure of a choice for each row, over all processes."""
    found = [estimate(result.rows, plan) for result, plan in zip(group, plans, strict=True)]
    off = figures.noise(control(result) for result in group)
    margins = [one.margin if len(group) == 1 else 0.0 for one in found]
    low = min(one.ratio / (1 + margin) for one, margin in zip(found, margins, strict=True))
    high = max(one.ratio * (1 + margin) for one, margin in zip(found, margins, strict=True))
    median = statistics.median(one.ratio for one in found)
    if any(one.margin == float("inf") for one in found):
        return f"{median:.2g} (stopped after its first runs in some rows)"
    return figures.figure(median, low, high, off, len(group) >= figures.LEAST)


def main() -> None:
    files = [Path(word) for word in sys.argv[1:]]
    if not files or any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit(__doc__)
    contest.into_docs("compare", table([Result.model_validate_json(file.read_text()) for file in files]))


if __name__ == "__main__":
    main()
