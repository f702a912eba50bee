"""The command line: thin, each command a few lines that call the rest.

Data goes to stdout, messages to stderr. Exit codes: 0 done; 1 a check failed or two states differ; 2 wrong options or usage;
3 a file; 4 the entry cannot be imported; 5 the entry raised; 6 a device is not here; 7 strict; 8 the native core
cannot be built; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, NoReturn

import typer

from msctx._version import __version__
from msctx.at_start import refuse_other_torch
from msctx.cli import machine_commands as machine
from msctx.cli import option_file_and_state_commands as options
from msctx.cli import run_commands as runs
from msctx.cli.arguments_and_completion import ForScript
from msctx.cli.output import NO_CANN
from msctx.errors import DeviceError, FileError, MsctxError, MsctxWarning, StrictError, _ProblemsError
from msctx.run.launch import RUN_ID

app = typer.Typer(
    name="msctx",
    help="One context for how PyTorch executes: MindSpore's context options, scoped, explained, restored with few exceptions.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
COMMANDS: dict[Callable[..., None], tuple[str, str | None]] = {
    runs.run: ("Run an experiment under its options and record it.", "msctx run digits deterministic=ON args.epochs=5"),
    runs.execute: ("Run any command under options.", "msctx exec deterministic=ON -- torchrun --nproc-per-node 2 train.py"),
    options.explain: ("What options would do here, and why.", "msctx explain conv_allow_tf32=false --device cuda"),
    options.init: ("Write an experiment to start from.", "msctx init mine.yaml && msctx run mine.yaml"),
    options.options: ("The reference of all options, or of one.", "msctx options conv_fprop_algo"),
    runs.compare: ("Measure which choice is fastest and still right.", "msctx compare resnet50 --quick --out compared"),
    runs.verify: ("Run a training twice; name the first operator that differs.", "msctx verify digits --against threads"),
    runs.capture: ("Write down the layers of a model.", "msctx capture mymodel:make > mine.yaml"),
    machine.build: ("Build the native core now.", "msctx build"),
    options.migrate: ("Translate what a MindSpore script sets.", "msctx migrate train_mindspore.py > train.yaml"),
    options.state: ("Show every switch of a fresh process.", None),
    options.diff: ("Compare the states of two runs.", None),
    machine.doctor: ("Check what this machine can do.", None),
    options.schema: ("Print the JSON Schema of experiments.", None),
}
"""Each command with what ``msctx --help`` shows of it, and an example, in the order shown there."""
for command, (short, example) in COMMANDS.items():
    name, settings = ("exec", runs.SETTINGS) if command is runs.execute else (None, None)
    kind = ForScript if command in (runs.run, runs.verify) else None
    app.command(name, cls=kind, context_settings=settings, short_help=short, epilog=example and f"Example: {example}")(command)
app.add_typer(machine.tune, name="tune", short_help="Show or clear what was measured.")


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """See `msctx COMMAND --help`."""


NOT_LOADED = "Failed to load the backend extension:"
"""How torch begins where it cannot import a device's package, which is installed."""
UNWRITTEN = {errno.EAGAIN, errno.EBADF, errno.ECONNRESET, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.ESTALE}
"""The errors of a stream, or file, that cannot be written."""


def main(argv: list[str] | None = None) -> None:
    """Run a command; a user's mistake ends in a message and an exit code, never in a traceback of ours."""
    argv = sys.argv[1:] if argv is None else argv
    is_rank = os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID  # the launching process reports
    as_json = "--json" in takewhile("--".__ne__, argv) and not is_rank
    for stream in (sys.stdout, sys.stderr):  # what an old terminal cannot show is spelt out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    plain_format = warnings.formatwarning
    warnings.formatwarning = lambda message, kind, *place, **more: (
        f"warning: {message}\n" if issubclass(kind, MsctxWarning) else plain_format(message, kind, *place, **more)
    )
    try:
        try:
            code = app(args=argv, standalone_mode=False)
        except Exception:
            refuse_other_torch()
            raise
        sys.exit(code or 0)
    except MsctxError as error:
        _end(error, str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        print("interrupted; everything was restored", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # a reader that stops early (``| head``) is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        sys.stderr.close()
        sys.exit(0)
    except MsctxWarning as warning:  # python -W error
        _end(warning, str(warning), StrictError.exit_code)
    except OSError as error:
        if error.filename is None and error.errno in UNWRITTEN:
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
            os._exit(FileError.exit_code)  # Python would try to write the rest once more
        message = f"{error.filename}  " * bool(error.filename) + (error.strerror or str(error))
        _end(error, message, FileError.exit_code, as_json)
    except Exception as error:
        if str(error).startswith(f"{NOT_LOADED} torch_npu"):
            found = DeviceError(f"torch cannot be imported: {NOT_LOADED} torch_npu; {NO_CANN}")
            _end(found, str(found), found.exit_code, as_json)
        if (show := getattr(error, "show", None)) is None:  # not one of click's own: a bug of ours, shown whole
            raise
        show()
        _end(error, getattr(error, "message", str(error)) * as_json, getattr(error, "exit_code", 2), as_json)
    finally:
        warnings.formatwarning = plain_format


def _end(error: BaseException, message: str, code: int, as_json: bool = False) -> NoReturn:
    """Report an error, as JSON on stdout where that is wanted, and end with its exit code."""
    problems = [
        {"path": p.path, "where": str(p.mark or p.where), "problem": p.text, "allowed": p.allowed, "hint": p.suggestion}
        for p in (error.problems if isinstance(error, _ProblemsError) else ())
    ]
    if as_json:
        print(
            json.dumps({"error": type(error).__name__, "message": message, "problems": problems, "exit_code": code}, indent=2)
        )
    elif message:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
