"""The command line: thin, each command a few lines that call the rest.

Data goes to stdout, messages to stderr. Exit codes: 0 done; 1 a check failed or two states differ; 2 wrong options or usage;
3 a file; 4 the entry cannot be imported; 5 the entry raised; 6 a device is not here; 7 strict; 8 the native core
cannot be built; 130 Ctrl-C.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import warnings
from contextlib import nullcontext, redirect_stdout, suppress
from typing import Annotated, Any

import typer

from msctx._version import __version__
from msctx.build_commands import build
from msctx.compare_commands import capture, compare
from msctx.errors import Diagnostic, FileError, MsctxError, MsctxWarning, OptionError, StrictError, _ProblemsError
from msctx.stdout import Json
from msctx.stdout import print_json as _print_json
from msctx.stdout import print_text as _print
from msctx.tune_commands import tune

app = typer.Typer(
    name="msctx",
    help="One context for how PyTorch executes: MindSpore's context options, scoped, explained and restored exactly.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(tune, name="tune")
app.command(epilog="Example: msctx compare conv --workload resnet50 --quick --out compared")(compare)
app.command(epilog="Example: msctx capture mymodel:make --out mine.yaml")(capture)
app.command(epilog="Example, in a container's recipe: msctx build")(build)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """See `msctx COMMAND --help`."""


@app.command(epilog="Example: msctx run configs/experiments/digits.yaml deterministic=ON args.epochs=5 --out runs/first")
def run(
    file: Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped experiment (digits).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options, args.NAME=…, experiment.seed=…")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run directory. Default: a new one under record.dir.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and show the plan; run nothing.")] = False,
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B", help="Run with each value, and with each of several such keys.")
    ] = None,
    json_: Json = False,
) -> None:
    """Run an experiment under its options, record it, and put everything back."""
    from msctx.run.config import read

    experiment = read(file, overrides or (), need_entry=True)
    if sweep:
        _sweep(file, overrides or (), sweep, experiment, out, dry_run, json_)
        return
    from msctx.run.runner import prepare_environment  # from here on torch is imported

    prepare_environment(experiment)
    from msctx import render
    from msctx.context import explain as explain_settings
    from msctx.process_scope import refuse
    from msctx.run import run_experiment
    from msctx.run.entry import resolve

    if dry_run:
        plan = explain_settings(experiment.settings)
        resolve(experiment)
        _show_plan(plan, json_)
        refuse(plan)
        return
    console = render.console(sys.stderr if json_ else sys.stdout)

    runs: list[Any] = []

    def announce(running: Any) -> None:
        runs.append(running)
        with suppress(OSError):  # nobody reads any more: the run goes on
            console.print(render.plan_table(running.plan))
            console.print(render.plan_footer(running.plan), soft_wrap=True)

    try:
        with redirect_stdout(sys.stderr) if json_ else nullcontext():  # what the entry prints is not JSON
            result = run_experiment(experiment, out, render.Progress(), announce)
    except KeyboardInterrupt:
        if not runs:
            raise
        print(f"interrupted; the record is in {runs[0].dir}, and everything was put back", file=sys.stderr)
        if json_:
            print((runs[0].dir / "result.json").read_text(), end="")
        raise typer.Exit(130) from None
    if json_:
        _print_json(result)
    else:
        console.print(render.pairs_table(result, ("result", "")))


def _sweep(
    file: str, overrides: list[str] | tuple[()], words: list[str], experiment: Any, out: str | None, dry_run: bool, json_: bool
) -> None:
    """A run for each point of a grid; ends with 1 where one of them failed."""
    from msctx import render
    from msctx.run import sweep as sweeping
    from msctx.run.config import read

    values = sweeping.read(words)
    grid = sweeping.points(values)
    # a mistake in the last point is reported before the first has run
    experiments = [read(file, [*overrides, *sweeping.words_of(point)], need_entry=True) for point in grid]
    if dry_run:
        from msctx.run.entry import resolve

        for one in experiments:
            resolve(one)
        _print_json(grid) if json_ else render.console().print(render.sweep_table(grid, []))
        return
    console = render.console(sys.stderr)

    def told(number: int, count: int, point: Any, result: Any) -> None:
        with suppress(OSError):
            console.print(sweeping.line(number, count, point, result), markup=False, soft_wrap=True)

    try:
        found = sweeping.sweep(file, experiment.name, overrides, values, out, experiment.record_dir, told)
    except sweeping.Interrupted as interrupted:
        print(f"interrupted; sweep.json in {interrupted.folder} holds what was run, marked as partial", file=sys.stderr)
        if json_:
            print((interrupted.folder / "sweep.json").read_text(), end="")
        raise typer.Exit(130) from None
    results = [point["result"] for point in found["points"]]
    if json_:
        _print_json(found)
    else:
        render.console().print(render.sweep_table(grid, results))
        print(f"sweep.json and sweep.csv are in {found['dir']}")
    raise typer.Exit(1 if any(result["status"] != "completed" for result in results) else 0)


@app.command(epilog="Example: msctx explain deterministic=ON conv_allow_tf32=false --device cuda")
def explain(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|KEY=VALUE...", help="A YAML file, options, or a file and options.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Plan for cpu, cuda or ascend, whatever is here. Default: this machine.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="MindSpore's, CANN's and ATC's options, set or not: a row for each path.")
    ] = False,
    json_: Json = False,
) -> None:
    """What options would do: value, origin, status, switches, and why what is refused is refused. Changes nothing."""
    from msctx.context import explain as explain_settings
    from msctx.run.config import is_file, read

    files, overrides = [w for w in words or () if is_file(w)], [w for w in words or () if not is_file(w)]
    if len(files) > 1:
        raise OptionError([Diagnostic(files[1], "a second file; explain takes one", "command line")])
    if not words and not all_:
        raise OptionError([Diagnostic("", "give a file, options (key=value), or --all", "explain")])
    experiment = read(files[0] if files else None, overrides)
    plan = explain_settings(experiment.settings, device)
    if not all_:
        _show_plan(plan, json_)
        return
    from msctx.reference import catalogue

    rows = catalogue(device or plan.main_device, experiment.settings)
    if json_:
        _print_json(rows)
    else:
        from msctx import render

        render.console().print(render.catalogue_table(rows), render.catalogue_footer(rows, device or plan.main_device))


@app.command(epilog="Example: msctx options conv_fprop_algo")
def options(
    name: Annotated[str | None, typer.Argument(help="An option, or a group such as gpu_config, by any of its names.")] = None,
    write_ini: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of op_select_implmode: write its list, to be edited for op_precision_mode."),
    ] = None,
    json_: Json = False,
) -> None:
    """The reference: every option; of one its values, devices, status, interactions and an example."""
    if write_ini is not None:
        _write_ini(name, write_ini, json_)
        return
    from msctx import reference, render
    from msctx.options import OPTIONS, is_dictionary
    from msctx.options.registry import named

    console = render.console()
    if name is None or (is_dictionary(name) and name not in OPTIONS):
        found = reference.listing(reference.members(name) if name else None)
        _print_json(found) if json_ else console.print(render.options_table(found))
        return
    page = reference.describe(named(name))
    _print_json(page) if json_ else console.print(render.option_page(page))


def _write_ini(name: str | None, file: str, json_: bool) -> None:
    from msctx import implementations
    from msctx.options.registry import named

    if name is None or named(name).name not in ("op_select_implmode", "op_precision_mode", "atc.builtin_impl_mode_ini"):
        raise typer.BadParameter("only op_select_implmode and op_precision_mode have a list to write", param_hint="--write-ini")
    path = str(implementations.write(file))
    _print_json({"written": [path]}) if json_ else print(f"wrote {path}; edit it, then: op_precision_mode={shlex.quote(path)}")


@app.command()
def schema(
    result: Annotated[bool, typer.Option("--result", help="Of the result.json of msctx compare.")] = False, json_: Json = False
) -> None:
    """The JSON Schema of experiment files, for editors: completion, hover texts and checks. It is JSON in any case."""
    if result:
        from msctx.compare.result import schema as schema_of_result

        _print_json(schema_of_result())
        return
    from msctx.schema import dump

    _print(dump().rstrip("\n"))


@app.command(epilog="Example: msctx init mine.yaml && msctx explain mine.yaml")
def init(
    file: Annotated[str, typer.Argument(help="The file to write; it must not be there yet.")] = "experiment.yaml",
    json_: Json = False,
) -> None:
    """Write a commented experiment file to start from, and beside it the schema with which editors check it."""
    from msctx.starter import write

    written = [str(path) for path in write(file)]
    if json_:
        _print_json({"written": written})
    else:
        print(f"wrote {' and '.join(written)}; next: msctx explain {shlex.quote(file)}")


def _show_plan(plan: Any, json_: bool) -> None:
    if json_:
        _print_json(plan.as_dict())
        return
    from msctx import render

    console = render.console()
    console.print(render.plan_table(plan))
    console.print(render.plan_footer(plan), soft_wrap=True)


@app.command(epilog="Example: msctx migrate train_mindspore.py --as yaml > train.yaml")
def migrate(
    file: Annotated[str, typer.Argument(help="A Python script that sets MindSpore's context. It is read, not run.")],
    device: Annotated[str | None, typer.Option(help="Statuses for cpu, cuda or ascend. Default: this machine.")] = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="yaml|block", help="Print the YAML, or the with-block, alone.")
    ] = None,
    json_: Json = False,
) -> None:
    """What a MindSpore script sets, as YAML and as a with-block, with a status for each option. Ends with 1 if it sets nothing."""
    from msctx import migrate as migrating

    forms = {"yaml": migrating.as_yaml, "block": migrating.as_with_block}
    if as_ is not None and as_ not in forms:
        raise OptionError([Diagnostic("--as", f"{as_!r} is not a form", "migrate", ", ".join(forms))])
    if as_ is not None and json_:
        raise OptionError([Diagnostic("--as", "--json prints all forms: give one of the two", "migrate")])
    found = migrating.read(file)
    plan = migrating.planned(found, device)
    if json_:
        _print_json(migrating.as_dict(found, plan))
    elif as_ is not None:
        _print(forms[as_](found).rstrip("\n"))
    else:
        _print(f"{migrating.as_yaml(found)}\n{migrating.as_with_block(found)}")
        _show_plan(plan, False)
    notes = [((c.line, c.column), f"{file}:{c.line}:{c.column}  {note}") for c in found.calls for note in c.notes]
    notes += [((p.mark.line, p.mark.column) if p.mark else (0, 0), str(p)) for p in found.problems]
    for _, note in () if json_ else sorted(notes):
        print(f"note: {note}", file=sys.stderr)
    raise typer.Exit(0 if found.options else 1)


@app.command()
def state(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Show the state under these options.")
    ] = None,
    json_: Json = False,
) -> None:
    """The whole numerics state of a fresh process: every switch of torch and around it."""
    from msctx.inspection import state as read_state
    from msctx.process_scope import BASE
    from msctx.run.config import read

    with BASE.laid_under(read(None, overrides or ()).levels):
        found = read_state()
    if json_:
        _print_json(found)
    else:
        from msctx import render

        render.console().print(render.pairs_table(found))


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A state saved by `msctx state --json`, or a run directory.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    json_: Json = False,
) -> None:
    """How two states, or the states and environments of two runs, differ. Ends with 1 if they do."""
    from msctx.inspection import diff as differences
    from msctx.inspection import read_record

    found = differences(read_record(a), read_record(b))
    if json_:
        _print_json({key: {"a": x, "b": y} for key, (x, y) in found.items()})
    elif not found:
        print("no differences")
    else:
        from msctx import render

        render.console().print(render.pairs_table(found, ("switch", a, b)))
    raise typer.Exit(1 if found else 0)


@app.command()
def doctor(json_: Json = False) -> None:
    """What this machine can do: torch, devices, compilers, libraries; one line to fix each thing missing."""
    from msctx.doctor import checks

    found = list(checks())
    if json_:
        _print_json([check.as_dict() for check in found])
    else:
        from msctx import render

        rows = {c.name: (c.status, c.found, c.fix) for c in found}
        render.console().print(render.pairs_table(rows, ("", "status", "found", "fix")))
    raise typer.Exit(1 if any(c.status == "broken" for c in found) else 0)


def main(argv: list[str] | None = None) -> None:
    """Run a command; a user's mistake ends in a message and an exit code, never in a traceback of ours."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # what an old terminal cannot show is spelt out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    plain_format = warnings.formatwarning
    warnings.formatwarning = lambda message, kind, *place, **more: (
        f"warning: {message}\n" if issubclass(kind, MsctxWarning) else plain_format(message, kind, *place, **more)
    )
    try:
        code = app(args=argv, standalone_mode=False)
        sys.exit(code or 0)
    except MsctxError as error:
        _report(error, "--json" in argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; everything was put back", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except MsctxWarning as warning:  # python -W error
        print(f"error: {warning}", file=sys.stderr)
        sys.exit(StrictError.exit_code)
    except OSError as error:
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        os._exit(FileError.exit_code)  # Python would try to write the rest once more
    except Exception as error:
        if (show := getattr(error, "show", None)) is None:  # not one of click's own: a bug of ours, shown whole
            raise
        show()
        code = getattr(error, "exit_code", 2)
        if "--json" in argv:
            _report_json(type(error).__name__, getattr(error, "message", str(error)), [], code)
        sys.exit(code)
    finally:
        warnings.formatwarning = plain_format


def _report(error: MsctxError, as_json: bool) -> None:
    if not as_json:
        print(f"error: {error}", file=sys.stderr)
        return
    problems = error.problems if isinstance(error, _ProblemsError) else ()
    listed = [
        {"path": p.path, "where": str(p.mark or p.where), "problem": p.text, "allowed": p.allowed, "hint": p.suggestion}
        for p in problems
    ]
    _report_json(type(error).__name__, str(error), listed, error.exit_code)


def _report_json(kind: str, message: str, problems: list[dict[str, str]], code: int) -> None:
    print(json.dumps({"error": kind, "message": message, "problems": problems, "exit_code": code}, indent=2))
