"""From raw results to a table: ``--summary`` reduces raw files to the numbers that a table shows, and ``--docs`` makes the table.

A summary in bench/results has the machine, torch's version, the date, the commit, the processes, and a row a line.
Raw files stay with whoever measured. A figure is the median, with the lowest and the highest of the processes if they are known.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from contest import ROOT, collected

Rows = list[dict[str, Any]]
Results = list[dict[str, Any]]
"""Raw: the machine, the commit, the processes, and the rows that these printed."""
Summary = dict[str, Any]
Reduced = Callable[[Results], Summary]
Tables = dict[str, list[str]]
"""Name of a place in the documentation → Markdown."""


def head(results: Results, **more: Any) -> Summary:
    """The one machine on which all was measured, and the fewest processes."""
    machine = {name: each for name, each in results[0]["machine"].items() if all(r["machine"][name] == each for r in results)}
    if several := results[0]["machine"].keys() - machine.keys() - {"isa"}:
        sys.exit(f"a table is of one machine, these are results of several: they differ in {', '.join(sorted(several))}")
    commits = sorted({result["commit"] for result in results if result.get("commit")})
    processes = [result["processes"] for result in results if "processes" in result]
    found: Summary = {"machine": machine, "date": max(result["date"] for result in results)}
    return found | ({"commit": commits} if commits else {}) | ({"processes": min(processes)} if processes else {}) | more


ISAS = {"generic": "no vectors", "avx2": "AVX2", "avx512": "AVX-512", "amx": "AMX", "amx_fp16": "AMX-FP16"}


def described(of: Summary) -> str:
    m = of["machine"]
    isa = f" ({ISAS[m['isa']]})" if "isa" in m else ""
    return f"{m['cpu']}{isa}, {m['cores']} cores, torch {m['torch']}, {of['date']}"


def threads(*numbers: int) -> str:
    return f"{', '.join(map(str, numbers))} thread{'s' * (numbers != (1,))}"


def rounded(value: Any) -> Any:
    """Eight digits of each number: far more than any table shows."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def written(of: Summary) -> str:
    """JSON, a row a line."""

    def one(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(f"  {one(row)}" for row in value) + "\n ]"
        return json.dumps(value, ensure_ascii=False)

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {one(value)}" for key, value in rounded(of).items()) + "\n}\n"


def by(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The values of these fields → the rows that have them."""
    found: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def every(results: Results) -> Rows:
    return [row for result in results for row in result["rows"]]


def of_files(given: argparse.Namespace, reduced: Reduced, tables: Callable[[Summary], Tables]) -> bool:
    """Write a summary of raw results, or tables into the documentation, if that is requested."""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in given.summary or given.docs or ()]
    if given.summary:
        print(written(reduced(files)), end="")
    elif given.docs:
        into_docs(map(tables, files))
    return bool(files)


def do(
    given: argparse.Namespace,
    works: Iterable[str],
    work: Callable[[argparse.Namespace], Iterable[dict[str, Any]]],
    reduced: Reduced,
    tables: Callable[[Summary], Tables],
) -> None:
    """Be a process that measures the rows of one of *works*, do what is to be done with files, or measure all and print tables."""
    if given.work:
        torch.set_num_threads(given.on_threads)
        for row in work(given):
            print(json.dumps(row), flush=True)
    elif not of_files(given, reduced, tables):
        found = tables(rounded(reduced([collected(given, works)])))
        print("\n\n".join("\n".join(lines) for lines in found.values()))


def into_docs(found: Iterable[Tables]) -> None:
    """Puts tables between the markers of their names, wherever these stand; the first marker says by which command."""
    lines: Tables = {}
    for tables in found:
        for name, table in tables.items():
            lines[name] = [*lines[name], "", *table] if name in lines else table
    for name, table in lines.items():
        _put(name, table)


def _put(name: str, lines: list[str]) -> None:
    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if found := re.search(rf"<!-- {name}: .*? -->\n.*?<!-- /{name} -->", text, re.DOTALL):
            table = "\n".join([f"<!-- {name}: {command} -->", *lines, f"<!-- /{name} -->"])
            page.write_text(text[: found.start()] + table + text[found.end() :], encoding="utf-8")
            return
    sys.exit(f"no page has a place for this table: add the lines <!-- {name}: --> and <!-- /{name} -->")


def markdown(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    heads = [*head]
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (heads, *rows))
    return [first, "|---" * len(heads) + "|", *others]


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], last: str) -> list[str]:
    """With the sentences that stand below it."""
    return [*markdown(head, rows), "", last]
