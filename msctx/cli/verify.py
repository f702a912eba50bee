"""`msctx verify`: the same training twice, and the first operator that differs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msctx.cli import completion, render
from msctx.cli.output import Json, emit

if TYPE_CHECKING:
    from msctx.verify.result import Result


def verify(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="FILE|ENTRY",
            help="A YAML file, the name of a shipped experiment, package.module:function, or a script.",
            autocompletion=completion.experiment,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Options and arguments of both runs.", autocompletion=completion.settings
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="run (default), threads[:N], isa[:NAME], KEY=VALUE (repeatable): an option of the second run.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare the first steps only. Default: the whole run.")] = None,
    json_: Json = False,
) -> None:
    """Run a training twice, and name the first operator whose inputs agree and whose outputs differ."""
    from msctx.run.config import read
    from msctx.run.ending import terminable
    from msctx.verify import against as sides
    from msctx.verify.runs import Subject

    is_entry = ":" in subject or subject.endswith(".py")
    words = [f"experiment.entry={subject}"] * is_entry + (overrides or [])
    what = Subject(None if is_entry else subject, words)
    pair = sides.read(against or ["run"])
    for side in pair.sides:
        read(what.file, [*words, *side.words], need_entry=True)  # mistakes are reported before anything runs
    from msctx.verify.verify import verify as run

    with terminable(), _progress() as watch:
        result = run(what, pair, steps, watch, lambda message: None)
    emit(result.as_json(), json_, lambda: _page(result))
    raise typer.Exit(int(result.finding is not None))


@contextmanager
def _progress() -> Iterator[Any]:
    """A line on stderr where that is a terminal."""
    console = render.console(sys.stderr)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("the runs begin") as status:
        yield status.update


def _page(result: Result) -> tuple[Any, ...]:
    from rich.text import Text

    from msctx.verify.table import facts

    table = render.pairs_table(facts(result), ("", ""))
    table.show_header = False
    return Text(result.sentence, style="green" if result.finding is None else "red"), table
