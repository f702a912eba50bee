"""`msctx verify`: the same training twice, and the first operator that differs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msctx.cli import completion, render
from msctx.cli.output import Json, emit, refuse_other, write_new
from msctx.errors import Diagnostic, OptionError
from msctx.recorded import command_line

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
            help="run (default), threads[:N], isa[:NAME], compiled, ranks[:N], deterministic, KEY=VALUE (of the "
            "second run; repeatable), or a certificate.",
        ),
    ] = None,
    save: Annotated[
        str | None, typer.Option(metavar="CERT.json", help="Write a certificate of the run, if both agree.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="PAGE.html", help="Write the result as a page.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare the first steps only. Default: the whole run.")] = None,
    json_: Json = False,
) -> None:
    """Run a training twice, and name the first operator whose inputs agree and whose outputs differ."""
    from msctx.run.config import read
    from msctx.run.ending import terminable
    from msctx.run.ranks import is_one_of_several
    from msctx.verify import against as others
    from msctx.verify import certificate
    from msctx.verify.runs import Side, Subject

    if is_one_of_several():
        text = "it starts the processes itself: run it without torchrun (--against ranks:N compares N ranks)"
        raise OptionError([Diagnostic("", text, "msctx verify")])
    is_entry = ":" in subject or subject.endswith(".py")
    words = [f"experiment.entry={subject}"] * is_entry + (overrides or [])
    what = Subject(None if is_entry else subject, words)
    named = against or ["run"]
    replayed = certificate.read(named[0]) if len(named) == 1 and named[0].endswith(".json") else None
    what_else = None if replayed else others.read(named)
    if save is not None and what_else is not None and (what_else.are_ranks or what_else.what in others.ALONE):
        raise OptionError(
            [Diagnostic("--save", f"no certificate is made against {what_else.what}", "command line", "other runs")]
        )
    for side in [Side("this run")] if what_else is None else what_else.sides:
        read(what.file, [*words, *side.words], need_entry=True)  # mistakes are reported before anything runs
    for path in filter(None, (save, html)):
        refuse_other(Path(path))
    from msctx.verify import verify as runs
    from msctx.verify.candidates import candidates

    writer = certificate.Writer()
    try:
        with terminable(), _progress() as watch:
            if replayed is not None:
                result = runs.replay(what, replayed, named[0], steps, watch, writer.keep)
            elif what_else is not None and what_else.what == "compiled":
                result = runs.compiled(what, what_else, steps, watch)
            elif what_else is not None and what_else.what == "deterministic":
                result = candidates(what, steps, watch)
            elif what_else is not None:
                result = runs.verify(what, what_else, steps, watch, writer.keep)
    except KeyboardInterrupt:
        print("interrupted; the runs have ended, and nothing was written", file=sys.stderr)
        raise typer.Exit(130) from None
    if save is not None and result.finding is None:
        write_new(Path(save), writer.text())
    if html is not None:
        from msctx.verify.page import page

        write_new(Path(html), page(result, shlex.join(command_line(["msctx", *sys.argv[1:]]))))
    emit(result.as_json(), json_, lambda: _page(result))
    if save is not None and result.finding is not None:
        print(f"{save} is not written: a certificate is of a run that repeats", file=sys.stderr)
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

    from msctx.verify.table import facts, settings

    tables = [render.pairs_table(pairs, ("", "")) for pairs in (settings(result), facts(result))]
    for table in tables:
        table.show_header = False
    before, after = tables
    return *[before] * bool(result.settings), Text(result.sentence, style="green" if result.finding is None else "red"), after
