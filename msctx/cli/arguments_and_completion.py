"""How commands read and complete words: their arguments and options."""

from __future__ import annotations

from collections.abc import Callable
from glob import escape, glob
from itertools import takewhile
from os.path import isdir
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from msctx.options import OPTIONS, find
from msctx.plan import device_named
from msctx.run.experiment_and_entry import ALL_ARGUMENTS
from msctx.shipped import shipped


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """What a ``KEY=VALUE`` may go on as.

    bash makes three words of it and completes the last; other shells complete all of it. Of the only option that fits, the values
    are offered at once: bash puts a space behind a word that can only go on in one way.
    """
    before = [word for words in context.params.values() if isinstance(words, list | tuple) for word in words]
    while before and before[-1] == "=":
        before.pop()
    if before and find(before[-1]):
        return _values_of(before[-1], incomplete)
    key, sign, start = incomplete.partition("=")
    if sign:
        return [f"{key}={value}" for value in _values_of(key, start)]
    names = complete_option(incomplete)
    if len(names) == 1 and (values := _values_of(names[0], "")):
        return [f"{names[0]}={value}" for value in values]
    return [f"{name}=" for name in names]


def complete_option(incomplete: str) -> list[str]:
    """Names of options; those of groups once a group is named."""
    names = (name for option in OPTIONS.values() for name in option.spellings if "." in incomplete or "." not in name)
    return sorted(name for name in names if name.startswith(incomplete))


def _complete_shipped(*folders: str) -> Callable[[str], list[str]]:
    """Offers what is shipped in some folders of configs, YAML files, and folders."""

    def complete(incomplete: str) -> list[str]:
        names = {name for folder in folders for name in shipped(folder) if name.startswith(incomplete)}
        files = [path for path in glob(f"{escape(incomplete)}*") if path.endswith((".yaml", ".yml")) or isdir(path)]
        return sorted(names) + sorted(f"{path}/" if isdir(path) else path for path in files)

    return complete


complete_experiment = _complete_shipped("experiments")
complete_subject = _complete_shipped("compare", "experiments", "workloads")


def _values_of(key: str, start: str) -> list[str]:
    found = find(key)
    schema = found.kind.form if found else {}
    values = [True, False] if schema.get("type") == "boolean" else schema.get("enum", [])
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return [word for word in dict.fromkeys(words) if word.startswith(start)]


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
Entry = Annotated[str, argument("FILE|ENTRY", ENTRY, complete_experiment)]
Words = Annotated[Texts, argument("[KEY=VALUE]...", "Options, args.NAME=…, experiment.seed=…", complete_setting)]


class ForScript(TyperCommand):
    """A command whose words behind ``--`` are the arguments of a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [*takewhile("--".__ne__, args)]
        if len(own) < len(args):
            text = yaml.safe_dump(args[len(own) + 1 :], default_flow_style=True, default_style='"', width=float("inf"))
            own.append(f"{ALL_ARGUMENTS}={text.strip()}")
        try:
            return super().parse_args(ctx, own)
        except Exception as error:
            if hasattr(error, "possibilities"):  # an option that does not exist; typer has classes of click's in private
                error.message += "; a script's own arguments follow --"  # type: ignore[attr-defined]
            raise
