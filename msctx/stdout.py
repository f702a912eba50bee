"""Data on standard output, for programs and pipes."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print data for programs.")]


def print_text(text: str) -> None:
    """Print data; that nobody reads it to the end (``| head``) is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        raise typer.Exit from None


def print_json(data: Any) -> None:
    from msctx.run.record import plain

    print_text(json.dumps(plain(data), indent=2))
