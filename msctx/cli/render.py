"""How plans, states and progress look on a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from msctx.plan import Plan

T = TypeVar("T")

COLOURS = {"honoured": "green", "approximated": "yellow", "inert": "dim", "refused": "red"}


MEANINGS = {
    "approximated": "it takes effect, with the difference stated",
    "inert": "it has no meaning on this device, or nothing to do here",
    "refused": "it cannot take effect, for the reason stated",
}
"""A legend of the statuses that say less than `honoured`."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process; whoever prints decides that here."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # Python flushes once more at its end
        raise BrokenPipeError


def console(stream: Any = None) -> Console:
    """A console for *stream* (stdout); where that is no terminal, lines are as long as they need to be."""
    stream = stream or sys.stdout or io.StringIO()  # a process may have no output at all
    columns = os.environ.get("COLUMNS", "")
    is_given = columns.isdecimal() and int(columns) > 0
    width = None if is_given or (stream.isatty() and not columns) else 160
    return _Console(file=stream, width=width, soft_wrap=False, highlight=False)


def show(console: Console, shown: Any) -> None:
    """Print something that rich can render, or several; lines of text are not wrapped."""
    for part in shown if isinstance(shown, tuple) else (shown,):
        console.print(part, soft_wrap=isinstance(part, Text))


def plan_page(plan: Plan) -> tuple[Group, Text]:
    """A plan, and below it in one line how many of its options are applied."""
    return plan_table(plan), _applied(plan)


def plan_table(plan: Plan) -> Group:
    """Each option with its value and where that came from; below it, per device, its status and the switches or the reason."""
    blocks: dict[tuple[str, str, str], Table] = {}
    for row in plan.rows:
        text = str(row.value)
        key = (row.spelling, text if text.isprintable() else repr(text), row.origin)
        if key not in blocks:
            blocks[key] = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
            blocks[key].add_column(width=8, justify="right")  # device
            blocks[key].add_column(width=12)  # status
            blocks[key].add_column(overflow="fold")  # what it does, or why not
        does = [Text(f"{switch} = {value}") for switch, value in row.assignments.items()]
        if row.reason:
            does.append(Text(row.reason, style="italic"))
        blocks[key].add_row(row.device, Text(row.status, style=COLOURS[row.status]), Text("\n").join(does))
    lines: list[Any] = []
    for (spelling, value, origin), table in blocks.items():
        lines += [Text.assemble((f"{spelling} = {value}", "bold"), (f"  from {origin}", "dim")), table]
    return Group(*lines)


def _applied(plan: Plan) -> Text:
    spellings = dict.fromkeys(row.spelling for row in plan.rows)
    text = Text(f"{len(plan.applied)} of {len(spellings)} options applied")
    if left := [s for s in spellings if s not in plan.applied]:
        text.append(f"; not: {', '.join(left)}", style="yellow")
    if plan.strict and (plan.failing or plan.incomplete):
        text.append("\nstrict=True: entering this would be refused", style="red")
    if plan.missing:
        text.append(f"\npreview only: no {plan.target} here", style="red")
    for status in (status for status in MEANINGS if any(row.status == status for row in plan.rows)):
        text.append(f"\n{status}: {MEANINGS[status]}", style="dim")
    return text


DEVICE_WORDS = {"cpu": "CPU", "cuda": "CUDA", "ascend": "Ascend"}


def catalogue_page(rows: Sequence[Mapping[str, Any]], device: str) -> tuple[Table, Text]:
    """Every path of the catalogue with the value set, or a typical one, and its status on one device; below it the counts."""
    table = _table("path", "value", "from", "status", "switches, or why")
    for row in rows:
        value, origin = (row["value"], row["origin"]) if row["typical"] is None else (row["typical"], "typical")
        why = "; ".join([", ".join(row["switches"]) or row["reason"], *(f"{s} {how}" for s, how in row["otherwise"].items())])
        table.add_row(
            row["path"],
            Text("" if value is None else str(value)),
            Text(origin, style="dim"),
            Text(row["status"], style=COLOURS[row["status"]]),
            Text(why),
        )
    counts = Counter(row["status"] for row in rows)
    return table, Text(
        f"{sum(counts.values())} paths on {device}: " + ", ".join(f"{counts[s]} {s}" for s in COLOURS if counts[s])
    )


def options_table(options: Iterable[Mapping[str, Any]]) -> Table:
    """Every option in a line: what it takes, and its status on each device."""
    table = _table("option", "takes", *DEVICE_WORDS.values())
    for option in options:
        values = ", ".join(str(v["value"]) for v in option["values"]) or option["allowed"]
        table.add_row(option["name"], Text(values), *(_status(option["status"][device]["status"]) for device in DEVICE_WORDS))
    return table


def option_page(option: Mapping[str, Any]) -> Group:
    """All about one option."""
    parts: list[Any] = [Text(option["name"], style="bold"), Text(option["help"]), Text("")]
    if option["values"]:
        values = _table("value", "means", *DEVICE_WORDS.values())
        for v in option["values"]:
            name = str(v["value"]) + (f" ({', '.join(map(str, v['also']))})" if v["also"] else "")
            values.add_row(Text(name), Text(v["means"]), *(_status(v["status"][device]) for device in DEVICE_WORDS))
        parts += [values, Text("")]
    facts = {} if option["values"] else {"takes": option["allowed"]}
    facts |= {"default": option["default_in_words"] or "unset"}
    facts |= {f"default in {group}": value for group, value in option["defaults_in_words"].items()}
    facts |= {"example": f"{option['name']}={option['example']}"}
    facts |= {"also written": ", ".join(option["aliases"])} if option["aliases"] else {}
    facts |= {"CANN's key": option["ge"]} if option["ge"] else {}
    facts |= {"keys in it": ", ".join(option["keys"])} if option["keys"] else {}
    facts |= {"instead": option["replaced_by"]} if option["replaced_by"] else {}
    facts |= {"source": option["source"]}
    for device, word in DEVICE_WORDS.items():
        found = option["status"][device]
        facts[f"on {word}"] = "; ".join(filter(None, [found["status"], ", ".join(found["switches"]), found["reason"]]))
    table = _table("", "")
    table.show_header = False
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(str(value)))
    for i, sentence in enumerate(option["interactions"]):
        table.add_row(Text("" if i else "with others", style="dim"), Text(sentence))
    if option["file"]:
        table.add_row(Text("such a file", style="dim"), Text(option["file"].rstrip()))
    return Group(*parts, table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _status(status: str) -> Text:
    return Text(status, style=COLOURS[status])


def pairs_table(data: Mapping[str, Any], columns: Iterable[str] = ("switch", "value")) -> Table:
    """A table of names and one value, or several."""
    table = _table(*columns)
    for name, value in data.items():
        values = value if isinstance(value, tuple) else (value,)
        table.add_row(str(name), *(Text(str(v)) for v in values))
    return table


def sweep_table(points: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]) -> Table:
    """A line for each run of a grid: its point, and the numbers of its result."""
    points, results = list(points), list(results)
    names = list(
        dict.fromkeys(k for r in results for k, v in r.items() if isinstance(v, int | float) and not isinstance(v, bool))
    )
    table = _table(*(points[0] if points else ()), *(("status", *names) if results else ()))
    for number, point in enumerate(points):
        cells = [str(value) for value in point.values()]
        if number < len(results):
            result = results[number]
            cells += [str(result["status"])] + [
                f"{result[n]:.4g}" if isinstance(result.get(n), float) else str(result.get(n, "")) for n in names
            ]
        table.add_row(*map(Text, cells))
    return table


def tuning_page(found: Mapping[str, Any]) -> Group:
    """A tuning file: each stamp, whether it is used here, and its entries."""
    entries = sum(len(group["entries"]) for group in found["groups"])
    parts: list[Any] = [Text(f"{found['file']}: {entries} entries" if found["there"] else f"{found['file']}: not there yet")]
    if not found["stamps_here"]:
        parts.append(Text("the native core is not built: which entries this machine uses is known after `msctx build`"))
    for group in found["groups"]:
        differs = ", ".join(group["differs"])
        used = {
            True: "used here" + f" (another {differs})" * bool(differs),
            False: f"not used here: another {differs}",
            None: f"of {group['place']}, which cannot be asked here" * bool(found["stamps_here"]),
        }
        parts += [Text(""), Text(used[group["used"]], style="bold"), pairs_table(group["stamp"], ("stamp", ""))]
        table = _table(
            "direction", "problem", "threads", "permissions", "ran", "math", "torch takes", "A/A", "agree", "measured"
        )
        for e in group["entries"]:
            ran = e["ran"] or "not measured yet"
            figures = (f"{e['measured'].get('torch', 1):.2f}x", f"{e['again']:.2f}x") if e["measured"] else ("", "")
            words = [e["direction"], e["problem"], str(e["threads"]), e["permissions"], ran, e["math"], *figures]
            table.add_row(*map(Text, [*words, str(max(map(e["votes"].count, e["votes"]), default="")), e["when"]]))
        parts.append(table)
    return Group(*parts)


def modules_table(reports: Sequence[Mapping[str, Any]]) -> Group:
    """The modules of CUDA kernels as they were compiled; below, how many were."""
    table = _table("module", "arch", "bytes", "status")
    for r in reports:
        status = Text("not compiled", style="red") if r["error"] else Text("compiled", style="green")
        table.add_row(r["module"], r["arch"], str(r["bytes"] or ""), status)
    good, by = sum(not r["error"] for r in reports), ", ".join(dict.fromkeys(r["compiler"] for r in reports))
    return Group(table, Text(f"{good} of {len(reports)} modules compiled by {by}"))


class Progress:
    """A progress bar on a terminal (stderr), a line per :meth:`log` elsewhere."""

    def __init__(self) -> None:
        self.console = console(sys.stderr)
        self.bar: Bar | None = None

    def track(self, steps: Iterable[T], description: str) -> Iterator[T]:
        if not self.console.is_terminal:
            yield from steps
            return
        total = len(steps) if isinstance(steps, Sized) else None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
        )
        with Bar(*columns, console=self.console) as self.bar:
            task = self.bar.add_task(description, total=total, last="")
            for step in steps:
                yield step
                self.bar.advance(task)
        self.bar = None

    def log(self, metrics: Mapping[str, Any]) -> None:
        line = "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], last=line)
        else:
            with suppress(OSError):  # nobody reads any more: the run goes on
                self.console.print(Text(line))
