"""`msctx cache`: what the cache of compiled code holds, and moving it between machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.cli import render
from msctx.cli.output import Json, emit, refuse_other

cache = typer.Typer(
    help="What torch.compile keeps under enable_compile_cache: show, export, import or clear it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[
    str | None,
    typer.Option("--path", help="The folder. Default: that of compile_cache_path or op_compiler_cache_dir, else this one."),
]


@cache.command("show")
def show(path: Folder = None, json_: Json = False) -> None:
    """What the cache holds, and what of it this machine uses."""
    from msctx.graph import cache_archive

    found = cache_archive.contents(_place(path))
    emit(found, json_, lambda: render.compile_cache_page(found))


@cache.command("export")
def export(
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to; there must be no such file.")],
    path: Folder = None,
    json_: Json = False,
) -> None:
    """Pack what this machine uses of the cache into one file."""
    from msctx.graph import cache_archive

    refuse_other(Path(target))
    _emit(cache_archive.export(_place(path), Path(target)), json_)


@cache.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Where from.")], path: Folder = None, json_: Json = False
) -> None:
    """Unpack such a file into the cache. It is code: it runs as you. One of another machine or version is refused."""
    from msctx.graph import cache_archive

    _emit(cache_archive.import_(Path(source), _place(path), lambda text: print(f"warning: {text}", file=sys.stderr)), json_)


@cache.command("clear")
def clear(
    stale: Annotated[bool, typer.Option("--stale", help="Only what this machine does not use.")] = False,
    path: Folder = None,
    json_: Json = False,
) -> None:
    """Remove what the cache holds."""
    from msctx.graph import cache_archive

    _emit(cache_archive.clear(_place(path), stale), json_)


def _place(path: str | None) -> Path:
    """The folder that a command applies to."""
    if path is None:
        from msctx.run.config import read

        settings = read(None, ()).settings
        given = (settings.get(name) for name in ("compile_cache_path", "op_compiler_cache_dir"))
        path = next((setting.value for setting in given if setting is not None), ".")
    return Path(path).expanduser().absolute()


def _emit(found: dict[str, Any], json_: bool) -> None:
    emit(found, json_, lambda: render.pairs_table(found, ("compile cache", "")))
