"""`msctx verify`: the same training twice, and the first operator that differs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from msctx.cli import render
from msctx.cli.render import Entry, Json, Texts, Words, emit, option
from msctx.errors import Diagnostic, OptionError
from msctx.run.config import read, subject_of
from msctx.run.ending import terminable
from msctx.run.launch import is_one_of_several
from msctx.verify.runs import sides

if TYPE_CHECKING:
    pass


def verify(
    subject: Entry,
    overrides: Words = None,
    against: Annotated[Texts, option("WHAT", "run (default), threads[:N], compiled, or KEY=VALUE of the second run.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare the first steps only. Default: the whole run.")] = None,
    json_: Json = False,
) -> None:
    """Run a training twice, and name the first operator whose inputs agree and whose outputs differ."""
    if is_one_of_several():
        raise OptionError([Diagnostic("", "it starts the processes itself: run it without torchrun", "msctx verify")])
    file, words = subject_of(subject)
    both = sides(against or [], [*words, *(overrides or [])])
    for side in both:
        read(file, side.words, need_entry=True)  # mistakes are reported before anything runs
    from msctx.verify.verify import verify as compare

    try:
        with terminable(), render.console(sys.stderr).status("the runs begin") as status:
            result = compare(file, " ".join(against or ["run"]), both, steps, status.update)
    except KeyboardInterrupt:
        print("interrupted; the runs have ended", file=sys.stderr)
        raise typer.Exit(130) from None
    style = "green" if result.finding is None else "red"
    emit(result.as_json(), json_, lambda: (Text(result.sentence, style=style), render.pairs_table(result.facts(), ("", ""))))
    raise typer.Exit(int(result.finding is not None))
