"""`msctx exec`: a command of the user's under options."""

from __future__ import annotations

import sys
from itertools import takewhile
from typing import Annotated

import typer

from msctx.cli import completion, render
from msctx.context.base import explain, refuse
from msctx.errors import Diagnostic, MsctxError, OptionError
from msctx.options.layers import flatten, presets
from msctx.run.config import file_of, prepare_environment, read

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""For typer: what begins with a dash is the command's own."""


def execute(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE.yaml] [PRESET] [KEY=VALUE]... -- COMMAND...",
            help="Options, as `msctx run` takes them, and the command.",
            autocompletion=completion.settings,
        ),
    ],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="First show what each option is likely to do here.")] = False,
) -> None:
    """Run any command; its Python processes compute under options from their first import of torch on.

    That holds for what the command starts, too: torchrun, accelerate, spawned workers, `python -m`. It ends with the command's exit
    code. Python processes that run with -S, or in an environment without msctx, are not reached.
    """
    own = [*takewhile(lambda word: "=" in word or word.endswith((".yaml", ".yml")) or word in presets(), words)]
    command = words[len(own) :][words[len(own) : len(own) + 1] == ["--"] :]
    if not command or command[0].startswith("-"):
        text = f"{command[0]} is no command; flags stand before the options" if command else "there is no command to run"
        raise OptionError(
            [Diagnostic("exec", text, "command line", suggestion="msctx exec -v deterministic=ON -- python train.py")]
        )
    experiment = read(*file_of(own, "exec"))
    plan = prepare_environment(experiment)
    from msctx.run.execution import execute

    try:
        refuse(plan)
    except MsctxError:  # PyTorch, whose import would double the start, knows whether that is true
        refuse(plan := explain(experiment.settings))
    if verbose:  # PyTorch knows the processor, too
        render.show(render.console(sys.stderr), render.plan_page(explain(experiment.settings)))
    raise typer.Exit(execute(command, flatten(experiment.levels), strict=plan.strict))
