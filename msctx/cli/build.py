"""The commands `msctx build`: the native core, or with --cuda the kernels for NVIDIA GPUs; and `msctx tune`: the tuning file."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.cli import render
from msctx.cli.render import Json, Texts, emit, option
from msctx.errors import Diagnostic, OptionError
from msctx.native import artifacts, core, tuning, tuning_file
from msctx.native import build as native
from msctx.native.build_spec import isas
from msctx.native.cuda import build as kernels
from msctx.native.cuda.manifest import ARCHS
from msctx.run.config import read


def build(
    clean: Annotated[bool, typer.Option("--clean", help="First remove everything that was built before.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each command of the compiler.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="Compile the CUDA kernels instead. Ends with 1 if one fails.")] = False,
    arch: Annotated[Texts, option("sm_80|sm_90a", "With --cuda: for this one alone; may be repeated.")] = None,
    json_: Json = False,
) -> None:
    """Build the native core now rather than when an option first needs it, load it, and check that PyTorch calls it."""
    if arch and not cuda:
        raise OptionError([Diagnostic("--arch", "is given without --cuda", "build", suggestion="give both")])
    if wrong := [a for a in arch or [] if a not in ARCHS]:
        raise OptionError([Diagnostic("--arch", f"{a!r} is not compiled for", "build", ", ".join(ARCHS)) for a in wrong])
    removed = artifacts.remove() if clean else 0
    if cuda:
        _build_cuda(list(dict.fromkeys(arch or ARCHS)), verbose, json_)
        return
    made, library = native.build(verbose), core.load()
    found = {
        "kernels": str(made.kernels),
        "library": str(made.glue),
        "origin": made.origin,
        "seconds": round(made.seconds, 1),
        "compiler": library.c.msctx_compiler(),
        "built_for": list(isas()),
        "processor_has": library.isas(),
        "in_use": library.isa(),
        "bytes_removed": removed,
    }
    emit(found, json_, lambda: render.pairs_table(found, ("native core", "")))


def _build_cuda(archs: list[str], verbose: bool, json_: bool) -> None:
    """Compile every module of the manifest, print the report, and end with 1 where one failed."""
    reports = kernels.build(archs)
    listed = [report.as_dict() for report in reports]
    emit(listed, json_, lambda: render.modules_table(listed))
    for report in reports:
        if text := report.error or report.log * verbose:
            print(f"{report.module} for {report.arch}\n{text}", file=sys.stderr)
    raise typer.Exit(1 if any(report.error for report in reports) else 0)


tune = typer.Typer(help="Show or clear what performance has measured, or is to.", no_args_is_help=True, rich_markup_mode=None)
File = Annotated[str | None, typer.Option(help="The tuning file. Default: that of tuning_file, else the one in the cache.")]


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
