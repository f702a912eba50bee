"""`msctx tune`: what the tuning file holds, and what of it this machine uses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.cli import render
from msctx.cli.output import Json, emit
from msctx.native import tuning, tuning_file
from msctx.run.config import read

tune = typer.Typer(
    help="What performance has measured, or is to measure: show or clear the tuning file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
File = Annotated[
    str | None, typer.Option("--file", help="The tuning file. Default: that of tuning_file, else the one in the cache.")
]


@tune.command("show")
def show(file: File = None, json_: Json = False) -> None:
    """What the tuning file holds, and which entries this machine uses."""
    found = contents(_place(file))
    emit(found, json_, lambda: render.tuning_page(found))


@tune.command("clear")
def clear(file: File = None, json_: Json = False) -> None:
    """Remove the entries, so that their problems are measured again."""
    path = _place(file)
    found = {"file": str(path), "removed": tuning_file.clear(path)}
    emit(found, json_, lambda: render.pairs_table(found, ("tuning", "")))


def _place(file: str | None) -> Path:
    """The file that a command applies to: the one named, that of the option ``tuning_file``, or the one in the cache."""
    if file is None:
        setting = read(None, ()).settings.get("tuning_file")
        file = setting.value if setting is not None else None
    return tuning_file.location(file)


def contents(path: Path) -> dict[str, Any]:
    """A group for each stamp, and whether this machine uses it (``None``: unknown)."""
    stamps, groups, listed = tuning.here(), tuning_file.read(path), []
    for stamp in sorted(groups):
        mine = stamps.get(stamp.place)
        hard, soft = stamp.differs(mine) if mine else ([], [])
        entries = [asdict(entry) for _, entry in sorted(groups[stamp].items())]
        group = {"stamp": asdict(stamp), "place": stamp.place, "used": not hard if mine else None, "differs": hard + soft}
        listed.append({**group, "entries": entries})
    described = {place: asdict(mine) for place, mine in stamps.items()}
    return {"file": str(path), "there": path.exists(), "stamps_here": described, "groups": listed}
