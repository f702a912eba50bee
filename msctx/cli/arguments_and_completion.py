"""How commands read and complete words: their arguments and options."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from msctx.options import OPTIONS, find
from msctx.plan import device_named
from msctx.run.experiment_and_entry import WORDS
from msctx.shipped import shipped


def complete_option(incomplete: str) -> list[str]:
    """Names of options; those of groups once a group is named."""
    names = (name for option in OPTIONS.values() for name in option.spellings if "." in incomplete or "." not in name)
    return sorted(name for name in names if name.startswith(incomplete))


def complete_setting(incomplete: str) -> list[str]:
    """What a ``KEY=VALUE`` may go on as: an option, then (but in bash, whose words end at ``=``) one of its values."""
    key, sign, start = incomplete.partition("=")
    if not sign or (option := find(key)) is None:
        return [f"{name}=" for name in complete_option(incomplete) if not sign]
    return [f"{key}={value}" for value in option.kind.form.get("enum", []) if str(value).startswith(start)]


def _shipped(*folders: str) -> Callable[[str], list[str]]:
    """Completes what is shipped in some folders of configs; where nothing fits, the shell completes files."""
    return lambda incomplete: [name for folder in folders for name in shipped(folder) if name.startswith(incomplete)]


complete_subject = _shipped("compare", "experiments", "workloads")
Texts = list[str] | None


def option(metavar: str, help: str, complete: Any = None, **more: Any) -> Any:
    """An option of a command that takes a value."""
    return typer.Option(metavar=metavar, help=help, autocompletion=complete, **more)


def argument(metavar: str, help: str, complete: Any = None) -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ON = "Statuses for cpu, cuda (GPU) or ascend (NPU), present or not. Default: this machine."
Device = Annotated[str | None, typer.Option(help=ON, callback=lambda word: word and device_named(word))]
ENTRY = "A YAML file, the name of a shipped experiment (digits), package.module:function, or a script."
Entry = Annotated[str, argument("FILE|ENTRY", ENTRY, _shipped("experiments"))]
Words = Annotated[Texts, argument("[KEY=VALUE]...", "Options, args.NAME=…", complete_setting)]


class ForScript(TyperCommand):
    """A command whose words behind ``--`` are the arguments of a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [*takewhile("--".__ne__, args)]
        if len(own) < len(args):
            text = yaml.safe_dump(args[len(own) + 1 :], default_flow_style=True, default_style='"', width=float("inf"))
            own.append(f"args.{WORDS}={text.strip()}")
        try:
            return super().parse_args(ctx, own)
        except Exception as error:
            if hasattr(error, "possibilities"):  # an option that does not exist; typer has classes of click's in private
                vars(error)["message"] += "; a script's own arguments follow --"
            raise
