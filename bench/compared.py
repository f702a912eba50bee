"""The table of comparisons in the README, from results of msctx compare.

msctx compare precision --out DIR && python bench/compared.py DIR/result.json …
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import contest


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: for each comparison the speed of each choice on the whole, and its worst error."""
    lines = ["| comparison | choice | speed, torch's own path is 1 | worst error | rows measured |", "|---|---|---|---|---|"]
    for result in results:
        for number, total in enumerate(sorted(result["totals"], key=lambda total: -total["ratio"])):
            error = f"{total['error']:.0e}" if total["error"] else ""
            name = f"`{result['name']}`" if number == 0 else ""
            noisy = sum(row.get("noisy", False) for row in result["rows"]) if number == 0 else 0
            rows = f"{total['rows']}" + f" ({noisy} noisy)" * bool(noisy)
            lines.append(f"| {name} | {total['point']} | **{total['ratio']:.2f}** | {error} | {rows} |")
        if len(result["rows"]) > 2:
            best = result["best"]
            lines.append(f"|  | the fastest of each row | **{best['ratio']:.2f}** |  | {len(best['points'])} |")
        for cost in result["costs"]:
            lines.append(
                f"|  | cost of {cost['with']} | {cost['geometric_mean']:.2f} times as long as {cost['without']} |  |  |"
            )
    processors = {f"{result['environment']['cpu']} ({result['environment']['cpu_capability']})" for result in results}
    return [
        *lines,
        "",
        f"{', '.join(sorted(processors))}, torch {results[0]['environment']['libraries']['torch']}; one run each.",
    ]


def main() -> None:
    files = [Path(word) for word in sys.argv[1:]]
    if not files or any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit(__doc__)
    contest.into_readme("compare", table(contest.read(files)), by="bench/compared.py")


if __name__ == "__main__":
    main()
