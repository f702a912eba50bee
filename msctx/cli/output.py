"""What commands print: tables, JSON, progress."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, TypeVar

import typer
from rich.console import Console, Group
from rich.progress import track
from rich.table import Table
from rich.text import Text

from msctx.plan import UNTRIED, Plan
from msctx.run.record import plain
from msctx.themes.base import STAYS

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
    environment = {name: value for name, value in os.environ.items() if (name, value) != ("COLUMNS", "0")}
    width = None if stream.isatty() or environment.get("COLUMNS", "").isdecimal() else 160
    return _Console(file=stream, width=width, soft_wrap=False, highlight=False, _environ=environment)


def show(console: Console, shown: Any) -> None:
    """Print something that rich can render, or several; lines of text are not wrapped."""
    for part in shown if isinstance(shown, tuple) else (shown,):
        console.print(part, soft_wrap=isinstance(part, Text))


def plan_page(plan: Plan) -> tuple[Group, Text]:
    """Each option with value and origin, and per device its status and the switches or the reason; then how many are applied."""
    blocks: dict[tuple[str, str, str], Table] = {}
    for row in plan.rows:
        key = (row.spelling, row.shown if row.shown.isprintable() else repr(row.shown), row.origin)
        if key not in blocks:
            blocks[key] = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
            blocks[key].add_column(width=8, justify="right")  # device
            blocks[key].add_column(width=12)  # status
            blocks[key].add_column(overflow="fold")  # what it does, or why not
        does = [Text(line) for line in row.does()]
        if row.reason:
            does.append(Text(row.reason, style="italic"))
        blocks[key].add_row(row.device, Text(row.status, style=COLOURS[row.status]), Text("\n").join(does))
    lines: list[Any] = []
    for (spelling, value, origin), table in blocks.items():
        lines += [Text.assemble((f"{spelling} = {value}", "bold"), (f"  from {origin}", "dim")), table]
    return Group(*lines), _applied(plan)


def _applied(plan: Plan) -> Text:
    text = Text(plan.counts)
    if left := [s for s in dict.fromkeys(row.spelling for row in plan.rows) if s not in plan.applied]:
        text.append(f"; not: {', '.join(left)}", style="yellow")
    if plan.strict and (plan.failing or plan.incomplete):
        text.append("\nstrict=True: entering this would be refused", style="red")
    lasting = dict.fromkeys(row.spelling for row in plan.rows if STAYS in row.reason) if plan.strict else ()
    notes = [f"strict=True: a with-block refuses what stays after it; msctx.set_context sets it: {', '.join(lasting)}"]
    for note in [*notes * bool(lasting), *plan._notes()]:
        text.append(f"\n{note}", style="red")
    for status in (status for status in MEANINGS if any(row.status == status for row in plan.rows)):
        text.append(f"\n{status}: {MEANINGS[status]}", style="dim")
    return text


DEVICE_WORDS = {"cpu": "CPU", "cuda": "CUDA", "ascend": "Ascend"}


def catalogue_page(rows: Sequence[Mapping[str, Any]], device: str) -> tuple[Table, Text]:
    """Every path of the catalogue with the value set, or a typical one, and its status on one device; below it the counts."""
    lines = []
    for row in rows:
        value, origin = (row["value"], row["origin"]) if row["typical"] is None else (row["typical"], "typical")
        why = "; ".join([", ".join(row["switches"]) or row["reason"], *(f"{s} {how}" for s, how in row["otherwise"].items())])
        lines.append((row["path"], "" if value is None else value, Text(origin, style="dim"), _status(row["status"]), why))
    counts = Counter(row["status"] for row in rows)
    told = ", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status])
    return _table(("path", "value", "from", "status", "switches, or why"), lines), Text(
        f"{len(rows)} paths on {device}: {told}{f'; {UNTRIED}' * (device == 'ascend')}"
    )


def options_table(options: Iterable[Mapping[str, Any]]) -> tuple[Table, Text]:
    """Every option in a line: what it takes, and its status on each device."""
    lines = []
    for option in options:
        values = ", ".join(str(v["value"]) for v in option["values"]) or option["allowed"]
        lines.append((option["name"], values, *(_status(option["status"][device]["status"]) for device in DEVICE_WORDS)))
    return _table(("option", "takes", *DEVICE_WORDS.values()), lines), Text(UNTRIED)


def option_page(option: Mapping[str, Any]) -> Group:
    """All about one option."""
    parts: list[Any] = [Text(option["name"], style="bold"), Text(option["help"]), Text("")]
    if option["values"]:
        lines = []
        for v in option["values"]:
            also = f" ({', '.join(map(str, v['also']))})" if v["also"] else ""
            lines.append((f"{v['value']}{also}", v["means"], *(_status(v["status"][device]) for device in DEVICE_WORDS)))
        parts += [_table(("value", "means", *DEVICE_WORDS.values()), lines), Text("")]
    facts = {
        "takes": "" if option["values"] else option["allowed"],
        "default": option["default_in_words"] or "unset",
        **{f"default in {group}": value for group, value in option["defaults_in_words"].items()},
        "example": f"{option['name']}={option['example']}",
        "also written": ", ".join(option["aliases"]),
        "CANN's key": option["ge"],
        "keys in it": ", ".join(option["keys"]),
        "instead": option["replaced_by"],
        "source": option["source"],
    }
    for device, word in DEVICE_WORDS.items():
        found = option["status"][device]
        facts[f"on {word}"] = "; ".join(filter(None, [found["status"], ", ".join(found["switches"]), found["reason"]]))
    facts |= {"with others": "\n".join(option["interactions"]), "such a file": (option["file"] or "").rstrip()}
    lines = [(Text(name, style="dim"), value) for name, value in facts.items() if value]
    return Group(*parts, _table(("", ""), lines), Text(UNTRIED))


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table of values, which are shown as they are written."""
    columns = [*columns]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return table


def _status(status: str) -> Text:
    return Text(status, style=COLOURS[status])


def pairs_table(data: Mapping[str, Any], columns: Iterable[str] = ("switch", "value")) -> Table:
    """A table of names and one value, or several."""
    return _table(columns, ((name, *(value if isinstance(value, tuple) else (value,))) for name, value in data.items()))


def sweep_table(points: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each run of a grid: its point, and the numbers of its result."""
    names = dict.fromkeys(name for result in results for name, value in result.items() if type(value) in (int, float))
    shown = ("status", *names) if results else ()
    lines = []
    for point, result in zip(points, chain(results, repeat({})), strict=False):
        numbers = [result.get(name, "") for name in shown]
        lines.append([*point.values(), *(f"{one:.4g}" if isinstance(one, float) else one for one in numbers)])
    return _table((*points[0], *shown), lines)


def tuning_page(found: Mapping[str, Any]) -> Group:
    """A tuning file: each stamp, whether it is used here, and its entries."""
    entries = sum(len(group["entries"]) for group in found["groups"])
    parts: list[Any] = [Text(f"{found['file']}: {entries} entries" if found["there"] else f"{found['file']}: not there yet")]
    if not found["stamps_here"]:
        parts.append(Text("the native core is not built: which entries this machine uses is known after `msctx build`"))
    for group in found["groups"]:
        used = {
            True: "used here",
            False: f"not used here: another {', '.join(group['differs'])}",
            None: f"of {group['place']}, which cannot be read here" * bool(found["stamps_here"]),
        }
        parts += [Text(""), Text(used[group["used"]], style="bold")]
        rows = []
        for entry in group["entries"]:
            measured = entry["measured"]
            figures = (f"{measured.get('torch', 1):.2f}x", f"{entry['again']:.2f}x") if measured else ("", "")
            words = [entry[name] for name in ("direction", "problem", "threads", "permissions")]
            rows.append([*words, entry["ran"] or "not measured yet", entry["math"], *figures, entry["when"]])
        columns = ("direction", "problem", "threads", "permissions", "ran", "math", "torch takes", "A/A", "measured")
        parts.append(_table(columns, rows))
    return Group(*parts)


def modules_table(reports: Sequence[Mapping[str, Any]]) -> Group:
    """The modules of CUDA kernels as they were compiled; below, how many were."""
    failed, made = Text("not compiled", style="red"), Text("compiled", style="green")
    lines = [(r["module"], r["arch"], r["bytes"] or "", failed if r["error"] else made) for r in reports]
    good, by = sum(not r["error"] for r in reports), ", ".join(dict.fromkeys(r["compiler"] for r in reports))
    told = Text(f"{good} of {len(reports)} modules compiled by {by}")
    return Group(_table(("module", "arch", "bytes", "status"), lines), told)


class Progress:
    """A progress bar on a terminal (stderr), and a line per :meth:`log`."""

    def __init__(self) -> None:
        self.console = console(sys.stderr)

    def track(self, steps: Iterable[T], description: str) -> Iterable[T]:
        return track(steps, description, console=self.console, disable=not self.console.is_terminal)

    def log(self, metrics: Mapping[str, Any]) -> None:
        line = "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())
        with suppress(OSError):  # nobody reads any more: the run goes on
            self.console.print(Text(line))


NO_CANN = "source CANN's set_env.sh; without CANN: set TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_npu"


def emit(data: Any, as_json: bool, view: Callable[[], Any]) -> None:
    """Print *data* as JSON, or what *view* makes of it: text or something that rich can"""
    if as_json:
        print_text(json.dumps(plain(data), indent=2))
    elif isinstance(shown := view(), str):
        print_text(shown)
    else:
        show(console(), shown)


def print_text(text: str) -> None:
    """Print data. A reader that stops early (``| head``) is no failure, as which click ends."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        raise typer.Exit from None
