"""The command `msctx build`: the native core, or with --cuda the kernels for NVIDIA GPUs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from msctx.cli import render
from msctx.cli.output import Json, emit
from msctx.errors import Diagnostic, OptionError
from msctx.native import artifacts, core
from msctx.native import build as native
from msctx.native.build_spec import isas
from msctx.native.cuda import build as kernels
from msctx.native.cuda.manifest import ARCHS


def build(
    clean: Annotated[bool, typer.Option("--clean", help="First remove everything that was built before.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each command of the compiler.")] = False,
    cuda: Annotated[
        bool,
        typer.Option(
            "--cuda", help="Compile the CUDA kernels instead and report on each. Takes no GPU. Ends with 1 if one fails."
        ),
    ] = False,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="sm_80|sm_90a", help="With --cuda: for this one alone; may be repeated."),
    ] = None,
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
    found = {**_build_core(verbose), "bytes_removed": removed}
    emit(found, json_, lambda: render.pairs_table(found, ("native core", "")))


def _build_core(verbose: bool) -> dict[str, Any]:
    made, library = native.build(verbose), core.load()
    return {
        "kernels": str(made.kernels),
        "library": str(made.glue),
        "origin": made.origin,
        "seconds": round(made.seconds, 1),
        "compiler": library.c.msctx_compiler(),
        "built_for": list(isas()),
        "processor_has": library.isas(),
        "in_use": library.isa(),
    }


def _build_cuda(archs: list[str], verbose: bool, json_: bool) -> None:
    """Compile every module of the manifest, print the report, and end with 1 where one failed."""
    reports = kernels.build(archs)
    listed = [report.as_dict() for report in reports]
    emit(listed, json_, lambda: render.modules_table(listed))
    for report in reports:
        if text := report.error or report.log * verbose:
            print(f"{report.module} for {report.arch}\n{text}", file=sys.stderr)
    raise typer.Exit(1 if any(report.error for report in reports) else 0)
