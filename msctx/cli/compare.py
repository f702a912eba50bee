"""`msctx compare` and `msctx capture`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msctx.cli import completion, render
from msctx.cli.output import Job, Json, print_json, print_text, write_new
from msctx.errors import Diagnostic, FileError, OptionError
from msctx.recorded import command_line

if TYPE_CHECKING:
    from msctx.compare.comparison import Watch
    from msctx.compare.result import Result
    from msctx.run.jobs import Jobs


def compare(
    context: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            help="A YAML file; conv or matmul; package.module:function; a shipped comparison, workload or experiment.",
            autocompletion=completion.subject,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options that hold for all.",
            autocompletion=completion.settings,
        ),
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Of conv and matmul: a shipped workload, or its YAML file.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="MxKxN", help="For matmul: the shape of a product; repeatable.")
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of an option to compare; repeatable.",
            autocompletion=completion.settings,
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds per row.")] = None,
    batch: Annotated[int | None, typer.Option(help="Multiplies a workload's images or rows.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: less time for each row, the largest first.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write report.html, result.json, result.csv and best.yaml.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(metavar="FILE", help="An earlier result.json to stand beside.")] = None,
    fail_below: Annotated[
        float | None, typer.Option(metavar="RATIO", help="End with 1 if a choice is slower: than torch, or than in --baseline.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="Measure all of it as one job of slurm, or local, and wait for it.")
    ] = "",
    job: Job = None,
    row_lines: Annotated[
        bool, typer.Option("--row-lines", hidden=True, help="Progress as lines: a job has no terminal.")
    ] = False,
    json_: Json = False,
) -> None:
    """Which algorithm, precision and determinism to use, and what each costs: measured beside torch's own path."""
    from msctx.compare import config

    keys = {"workload": workload, "seconds": seconds, "batch": batch}
    command = shlex.join(command_line(["msctx", *(word for word in sys.argv[1:] if word != "--row-lines")]))
    given = config.Given(overrides or (), axis or (), shape or (), keys, quick, command)
    comparison = config.read(subject, given)
    if fail_below is not None and not 0 < fail_below < 100:
        raise OptionError([Diagnostic("--fail-below", f"{fail_below} is not a ratio", "command line", "such as 0.95")])
    from msctx.compare import result, summary

    earlier = result.read(baseline) if baseline else None
    runs_in = _engine(engine, job or [])
    is_new = out is not None and not Path(out).exists()
    folder = _folder(out)
    if runs_in is not None:
        try:
            raise typer.Exit(_as_job(runs_in, context))
        finally:
            if folder is not None and is_new:
                with suppress(OSError):  # it is not empty: the job has written its result
                    folder.rmdir()
    from msctx.compare.run import run

    console = render.console(sys.stderr if json_ else sys.stdout)
    with redirect_stdout(sys.stderr), _bar(row_lines) as watch:  # what a model prints is no result
        found = run(comparison, watch)
    if earlier is not None:
        found.against, found.elsewhere = summary.against(found, earlier), summary.elsewhere(found, earlier)
    if folder is not None:
        _write(found, folder)
    if json_:
        print_json(found.as_json())
    else:
        from msctx.compare import terminal

        for part in terminal.parts(found):
            console.print(part)
        if folder is not None:
            names = ["result.json", "result.csv", *["best.yaml"] * bool(found.recommended), *found.files]
            console.print(f"wrote {folder / 'report.html'}, {', '.join(names)}", markup=False)
    if found.interrupted:
        print("interrupted; what was measured so far is marked as partial", file=sys.stderr)
        raise typer.Exit(130)
    if not found.totals:
        print("nothing could be measured", file=sys.stderr)
        raise typer.Exit(1)
    slower = summary.below(found, fail_below, beside_earlier=earlier is not None) if fail_below is not None else []
    for line in slower:
        print(f"below {fail_below:g}: {line}", file=sys.stderr)
    raise typer.Exit(1 if slower else 0)


def _folder(out: str | None) -> Path | None:
    """The folder for the result, made now: hours later it would be too late to fail."""
    if out is None:
        return None
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be made: {error.strerror}", out)]) from None
    if used := sorted(p.name for p in folder.iterdir()):
        text = f"is not empty ({', '.join(used[:4])}{' …' if len(used) > 4 else ''}); a result never overwrites another"
        raise FileError([Diagnostic("", text, out, suggestion="name a folder that is empty or not there yet")])
    return folder


def _write(found: Result, folder: Path) -> None:
    from msctx.compare import report, result
    from msctx.run.record import Record

    record = Record(folder.absolute())
    record.json("result.json", found.as_json())
    best = {"best.yaml": found.recommended} if found.recommended else {}
    for name, text in {"result.csv": result.as_csv(found), **best, **found.files, "report.html": report.page(found)}.items():
        record.text(name, text)


def _engine(name: str, words: list[str]) -> Jobs | None:
    if not name and not words:
        return None
    from msctx.run.jobs import engine

    return engine(name, words)


def _as_job(engine: Jobs, context: typer.Context) -> int:
    """The same command as a job, whose output and exit code are ours."""
    command = [sys.executable, "-m", "msctx", "compare", "--row-lines"]
    arguments = []
    for parameter in context.command.params:
        given = context.params.get(parameter.name or "")
        values = given if isinstance(given, list | tuple) else [given]
        if parameter.param_type_name == "argument":
            arguments += [str(value) for value in values]
        elif parameter.name not in ("engine", "job", "row_lines"):
            flag = parameter.opts[0]
            command += [flag if value is True else f"{flag}={value}" for value in values if value not in (None, False)]

    def report(text: str) -> None:
        with suppress(OSError):  # nobody reads any more
            print(text, end="", file=sys.stderr, flush=True)

    width = {"COLUMNS": str(render.console().width)}
    try:
        code, out = engine.one([*command, "--", *arguments], width, report)
    except KeyboardInterrupt:
        print("interrupted; the job was cancelled", file=sys.stderr)
        return 130
    print(out, end="", flush=True)
    return code


@contextmanager
def _bar(as_lines: bool = False) -> Iterator[Any]:
    """Progress on stderr where that is a terminal, or a line for each row."""
    from msctx.compare.comparison import Watch

    console = render.console(sys.stderr)
    if as_lines:
        yield _lines()
        return
    if not console.is_terminal:
        yield Watch()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("measuring", total=None)
        yield Watch(
            begin=lambda rows: bar.update(task, total=rows),
            row=lambda name: bar.update(task, description=name[:40]),
            end_row=lambda: bar.advance(task),
        )


def _lines() -> Watch:
    from msctx.compare.comparison import Watch

    counts = {"of": 0, "row": 0}

    def row(name: str) -> None:
        counts["row"] += 1
        print(f"{counts['row']} of {counts['of']}: {name}", file=sys.stderr, flush=True)

    return Watch(begin=lambda rows: counts.update(of=rows), row=row)


def capture(
    model: Annotated[str, typer.Argument(metavar="package.module:function", help="Returns a torch.nn.Module and an input.")],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="The workload file to write; it must not be there yet.")
    ] = None,
    json_: Json = False,
) -> None:
    """Run a model once and write down its layer problems as a workload, for `msctx compare FILE`."""
    from msctx.compare.capture import capture as captured
    from msctx.compare.model import load
    from msctx.compare.workload import DTYPES, dump

    with redirect_stdout(sys.stderr):
        workload = captured(load(model))
    text = dump(workload)
    if not workload.layers:
        why = f" that a workload can hold: {', '.join(workload.left_out)}" if workload.left_out else ""
        hint = f"inputs that are not empty, and dtypes of {', '.join(DTYPES)}" if why else ""
        raise OptionError([Diagnostic("", f"the model computes no convolution and no product of matrices{why}", model, hint)])
    if out is not None:
        write_new(Path(out), text)
    if workload.left_out:
        print(f"not in it, as no layer of a workload computes them: {', '.join(workload.left_out)}", file=sys.stderr)
    if json_:
        head = {"name": workload.name, "layers": len(workload.layers), "left_out": list(workload.left_out)}
        print_json({**head, "written": [out] if out else [], "text": text})
    elif out is not None:
        kinds, count = len(workload.layers), sum(layer.count for layer in workload.layers)
        print(f"wrote {out}: {kinds} kinds of layers, {count} in all; next: msctx compare {shlex.quote(out)}")
    else:
        print_text(text.rstrip("\n"))
