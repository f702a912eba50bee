"""Data on standard output: JSON for programs, tables for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx.cli import completion, render
from msctx.errors import Diagnostic, FileError
from msctx.plan import Plan
from msctx.run.record import plain, unwritten

Texts = list[str] | None


def option(metavar: str, help: str, complete: Any = None, **more: Any) -> Any:
    """An option of a command that takes a value."""
    return typer.Option(metavar=metavar, help=help, autocompletion=complete, **more)


def argument(metavar: str, help: str, complete: Any = None) -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Device = Annotated[str | None, typer.Option(help="Statuses for cpu, cuda or ascend, present or not. Default: this machine.")]
ENTRY = "A YAML file, the name of a shipped experiment (digits), package.module:function, or a script."
Entry = Annotated[str, argument("FILE|ENTRY", ENTRY, completion.experiment)]
Words = Annotated[Texts, argument("[KEY=VALUE]...", "Options, args.NAME=…, experiment.seed=…", completion.settings)]

NO_CANN = "source CANN's set_env.sh; without CANN: set TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_npu"


def emit(data: Any, as_json: bool, view: Callable[[], Any]) -> None:
    """Print *data* as JSON, or what *view* makes of it: text or something that rich can render."""
    if as_json:
        print_json(data)
    elif isinstance(shown := view(), str):
        print_text(shown)
    else:
        render.show(render.console(), shown)


def emit_plan(plan: Plan, as_json: bool) -> None:
    emit(plan.as_dict(), as_json, lambda: render.plan_page(plan))


def print_text(text: str) -> None:
    """Print data. A reader that stops early (``| head``) is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        raise typer.Exit from None


def print_json(data: Any) -> None:
    print_text(json.dumps(plain(data), indent=2))


def only_json(as_json: bool) -> AbstractContextManager[Any]:
    """Where JSON is requested, what the user's code prints goes to stderr."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def write_new(path: Path, text: str) -> None:
    """Write a file for the user, never over another one.

    Raises:
        FileError: the file exists already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileError([Diagnostic("", "exists already; nothing was written: choose another name", str(path))]) from None
    except (OSError, ValueError) as error:
        raise unwritten(path, error) from None
