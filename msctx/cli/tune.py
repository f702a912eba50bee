"""`msctx tune`: what the tuning file holds, what of it this machine uses, moving entries between files, and measuring some."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.cli import render
from msctx.cli.output import Json, emit
from msctx.errors import Diagnostic, FileError
from msctx.native import tuning, tuning_file
from msctx.native.tuning_file import Groups

tune = typer.Typer(
    help="What performance has measured, or is to measure: run, show, export, import or clear the tuning file.",
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


@tune.command("run")
def run(
    place: Annotated[
        str,
        typer.Argument(metavar="PATH", help='What aoe_tune_mode="offline" wrote: the folder of work_path, or a file of it.'),
    ] = ".",
    file: File = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="For how long to measure in all; what takes most time in the program comes first."),
    ] = None,
    json_: Json = False,
) -> None:
    """Measure the problems that aoe_tune_mode="offline" has recorded, and keep the results in the tuning file."""
    from msctx.compare.offline import Bench, by_cost
    from msctx.native import untuned

    problems, files = untuned.read(Path(place))
    bench = Bench(_place(file), seconds)
    progress, results, interrupted = render.Progress(), [], False
    try:
        with bench.open():
            for one in progress.track(by_cost(problems), "measuring"):
                results.append(bench.result(one))
                progress.log(_shown(results[-1]))
    except KeyboardInterrupt:
        interrupted = True
    found = {"records": list(map(str, files)), "file": str(bench.file), "problems": [one.as_dict() for one in results]}
    emit(found, json_, lambda: render.tuned_page(found))
    if interrupted:
        print(f"interrupted; {len(results)} of {len(problems)} problems are done, the same command goes on", file=sys.stderr)
        raise typer.Exit(130)


def _shown(result: Any) -> dict[str, Any]:
    """A problem for the bar, or for its line where there is none."""
    one = result.problem
    chosen = result.entry.ran if result.entry is not None else result.why
    return {one.direction: one.problem, result.status: chosen} | ({"gain": result.gain} if result.gain else {})


@tune.command("export")
def export(
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to; entries are added to an existing tuning file.")],
    file: File = None,
    json_: Json = False,
) -> None:
    """Copy the entries into another file, where they replace entries with the same problem and stamp."""
    _copy(_place(file), _place(target), json_)


@tune.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Where from.")], file: File = None, json_: Json = False
) -> None:
    """Copy the entries of another file, which replace entries with the same problem and stamp."""
    _copy(_place(source), _place(file), json_)


@tune.command("clear")
def clear(
    stale: Annotated[bool, typer.Option("--stale", help="Only the entries that this machine does not use.")] = False,
    file: File = None,
    json_: Json = False,
) -> None:
    """Remove the entries, so that their problems are measured again."""
    path, stamps = _place(file), None
    if stale:
        mine = tuning.here()
        if not mine:
            text = "cannot tell which entries are stale: the native core, which they are compared with, is not built"
            raise FileError([Diagnostic("", text, str(path), suggestion="run `msctx build` first")])
        stamps = {w for w in tuning_file.read(path) if w.place in mine and w.differs(mine[w.place])[0]}
    _emit_counts({"file": str(path), "removed": tuning_file.remove(path, stamps)}, json_)


def _place(file: str | None) -> Path:
    """The file that a command applies to: the one named, that of the option ``tuning_file``, or the one in the cache."""
    if file is None:
        from msctx.run.config import read

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


def _copy(source: Path, target: Path, json_: bool) -> None:
    counts = tuning_file.merge(target, _existing(source), override=True)
    _emit_counts({"from": str(source), "to": str(target), **counts._asdict()}, json_)


def _existing(path: Path) -> Groups:
    if not path.exists():
        hint = "performance makes one when it measures"
        raise FileError([Diagnostic("", "there is no such file", str(path), suggestion=hint)])
    return tuning_file.read(path)


def _emit_counts(found: dict[str, Any], json_: bool) -> None:
    emit(found, json_, lambda: render.pairs_table(found, ("tuning", "")))
