"""The commands of `msctx tune`: show, export, import and clear."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from msctx.stdout import Json, print_json

tune = typer.Typer(
    help="What performance has measured: show, export, import or clear the tuning file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
File = Annotated[
    str | None, typer.Option("--file", help="The tuning file. Default: that of tuning_file, else the one in the cache.")
]


@tune.command("show")
def tune_show(file: File = None, json_: Json = False) -> None:
    """What the tuning file holds, and which of it this machine uses."""
    from msctx import tune as tuning

    found = tuning.show(tuning.place(file))
    if json_:
        print_json(found)
    else:
        from msctx import render

        render.console().print(render.tuning_table(found))


@tune.command("export")
def tune_export(
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to; a tuning file that is there is added to.")],
    file: File = None,
    json_: Json = False,
) -> None:
    """Copy the entries into another file, where they replace others of the same problem and stamp."""
    from msctx import tune as tuning

    _show_counts(tuning.copy(tuning.place(file), tuning.place(target)), json_)


@tune.command("import")
def tune_import(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Where from.")], file: File = None, json_: Json = False
) -> None:
    """Take the entries of another file, which replace others of the same problem and stamp."""
    from msctx import tune as tuning

    _show_counts(tuning.copy(tuning.place(source), tuning.place(file)), json_)


@tune.command("clear")
def tune_clear(
    stale: Annotated[bool, typer.Option("--stale", help="Only what this machine does not use.")] = False,
    file: File = None,
    json_: Json = False,
) -> None:
    """Remove the entries: the problems are measured anew."""
    from msctx import tune as tuning

    _show_counts(tuning.clear(tuning.place(file), stale), json_)


def _show_counts(found: dict[str, Any], json_: bool) -> None:
    if json_:
        print_json(found)
    else:
        from msctx import render

        render.console().print(render.pairs_table(found, ("tuning", "")))
