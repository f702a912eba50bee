"""`msctx compare` and `msctx capture`."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from msctx.cli import completion, render
from msctx.cli.render import Json, Texts, Words, argument, option, print_json, print_text, write_new
from msctx.errors import Diagnostic, OptionError
from msctx.recorded import command_line
from msctx.run.record import Record

if TYPE_CHECKING:
    from msctx.compare.result import Result


def compare(
    subject: Annotated[str, argument("SUBJECT", "A YAML file; package.module:function; a shipped name.", completion.subject)],
    overrides: Words = None,
    axis: Annotated[Texts, option("KEY=A,B", "Values of an option to compare; repeatable.", completion.settings)] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds per row.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: less time for each row, the largest first.")] = False,
    out: Annotated[str | None, option("DIR", "Write report.html, result.json, result.csv and best.yaml.")] = None,
    fail_below: Annotated[float | None, option("RATIO", "End with 1 if a choice fails, or is slower by more.")] = None,
    json_: Json = False,
) -> None:
    """Which algorithm, precision and determinism to use, and what each costs: measured beside torch's own path."""
    from msctx.compare import config

    command = shlex.join(command_line(["msctx", *sys.argv[1:]]))
    comparison = config.read(subject, config.Given(overrides or (), axis or (), seconds, quick, command))
    if fail_below is not None and not 0 < fail_below < 100:
        raise OptionError([Diagnostic("--fail-below", f"{fail_below} is not a ratio", "command line", "such as 0.95")])
    record = Record.create(out, "", "") if out is not None else None  # now: hours later it would be too late to fail
    from msctx.compare import report, summary
    from msctx.compare.comparison import run

    console = render.console(sys.stderr if json_ else sys.stdout)
    with (
        redirect_stdout(sys.stderr),
        render.console(sys.stderr).status("measuring") as status,
    ):  # what a model prints is no result
        found = run(comparison, lambda done, of, name: status.update(Text(f"{done} of {of}: {name}")))
    written = _write(found, record) if record is not None else ""
    if json_:
        print_json(found.as_json())
    else:
        for part in report.parts(found):
            console.print(part)
        if written:
            console.print(f"wrote {written}", markup=False)
    if found.interrupted:
        print("interrupted; what was measured so far is marked as partial", file=sys.stderr)
        raise typer.Exit(130)
    if not found.totals:
        print("nothing could be measured", file=sys.stderr)
        raise typer.Exit(1)
    slower = summary.below(found, fail_below) if fail_below is not None else []
    for line in slower:
        print(f"below {fail_below:g}: {line}", file=sys.stderr)
    raise typer.Exit(1 if slower else 0)


def _write(found: Result, record: Record) -> str:
    """Write it; returns what was written, for the user."""
    from msctx.compare import report, result

    best = {"best.yaml": found.recommended} if found.recommended else {}
    texts = {"report.html": report.page(found), "result.csv": result.as_csv(found), **best}
    record.json("result.json", found.as_json())
    for name, text in texts.items():
        record.text(name, text)
    return ", ".join(str(record.folder / name) for name in (*texts, "result.json"))


def capture(
    model: Annotated[str, typer.Argument(metavar="package.module:function", help="Returns a torch.nn.Module and an input.")],
    out: Annotated[str | None, option("FILE", "The workload file to write; it must not be there yet.")] = None,
    json_: Json = False,
) -> None:
    """Run a model once and write down its layer problems as a workload, for `msctx compare FILE`."""
    from msctx.compare.model import capture as captured
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
