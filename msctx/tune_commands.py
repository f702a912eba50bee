"""The commands of `msctx tune`: show, export, import and clear the tuning file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.errors import Diagnostic, FileError
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
    from msctx.native import tuning, tuning_file

    path, here = _place(file), tuning.here()
    groups, listed = tuning_file.read(path), []
    for stamp in sorted(groups):
        mine = here.get(stamp.place)
        hard, soft = stamp.differs(mine) if mine else ([], [])
        entries = [asdict(entry) for _, entry in sorted(groups[stamp].items())]
        about = {"place": stamp.place, "used": not hard if mine else None, "differs": hard + soft}  # None: that is not known
        listed.append({"stamp": asdict(stamp), **about, "entries": entries})
    described = {one: asdict(mine) for one, mine in here.items()}
    found = {"file": str(path), "there": path.exists(), "stamps_here": described, "groups": listed}
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
    _copy(_place(file), _place(target), json_)


@tune.command("import")
def tune_import(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Where from.")], file: File = None, json_: Json = False
) -> None:
    """Take the entries of another file, which replace others of the same problem and stamp."""
    _copy(_place(source), _place(file), json_)


@tune.command("clear")
def tune_clear(
    stale: Annotated[bool, typer.Option("--stale", help="Only what this machine does not use.")] = False,
    file: File = None,
    json_: Json = False,
) -> None:
    """Remove the entries: the problems are measured anew."""
    from msctx.native import tuning, tuning_file

    path, stamps = _place(file), None
    if stale:
        here = tuning.here()
        if not here:
            text = "nothing is known to be stale: the native core, with which entries are compared, is not built"
            raise FileError([Diagnostic("", text, str(path), suggestion="run `msctx build` first")])
        stamps = {s for s in tuning_file.read(path) if s.place in here and s.differs(here[s.place])[0]}
    _print({"file": str(path), "removed": tuning_file.remove(path, stamps)}, json_)


def _place(file: str | None) -> Path:
    """The file that a command is about: the one named, that of the option ``tuning_file``, or the one in the cache."""
    from msctx.native import tuning_file

    if file is None:
        from msctx.run.config import read

        setting = read(None, ()).settings.get("tuning_file")
        file = setting.value if setting is not None else None
    return tuning_file.location(file)


def _copy(source: Path, target: Path, json_: bool) -> None:
    from msctx.native import tuning_file

    if not source.exists():
        text, hint = "there is no such file", "performance makes one when it measures"
        raise FileError([Diagnostic("", text, str(source), suggestion=hint)])
    counts = tuning_file.merge(target, tuning_file.read(source), override=True)
    _print({"from": str(source), "to": str(target), **counts._asdict()}, json_)


def _print(found: dict[str, Any], json_: bool) -> None:
    if json_:
        print_json(found)
    else:
        from msctx import render

        render.console().print(render.pairs_table(found, ("tuning", "")))
