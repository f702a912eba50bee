"""`msctx state` and `msctx diff`: the numerics state, and how two of them differ."""

from __future__ import annotations

from typing import Annotated

import typer

from msctx.cli import render
from msctx.cli.output import Json, Words, emit
from msctx.context.base import BASE
from msctx.inspection import diff as differences
from msctx.inspection import read_record
from msctx.inspection import state as read_state
from msctx.run.config import read


def state(
    overrides: Words = None,
    json_: Json = False,
) -> None:
    """The whole numerics state of a fresh process: every switch of PyTorch and around it."""
    with BASE.laid_under(read(None, overrides or ()).levels):
        found = read_state()
    emit(found, json_, lambda: render.pairs_table(found))


def diff(
    a: Annotated[str, typer.Argument(help="A state saved by `msctx state --json`, or a run directory.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    json_: Json = False,
) -> None:
    """How two states, or the states and environments of two runs, differ. Ends with 1 if they do."""
    found = differences(read_record(a), read_record(b))
    data = {key: {"a": x, "b": y} for key, (x, y) in found.items()}
    emit(data, json_, lambda: render.pairs_table(found, ("switch", a, b)) if found else "no differences")
    raise typer.Exit(bool(found))
