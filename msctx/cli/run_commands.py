"""The commands that run a program: `msctx run`, `exec`, `compare`, `capture` and `verify`."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import typer
from rich.text import Text

from msctx.cli import output
from msctx.cli.arguments_and_completion import Entry, Json, Texts, Words, argument, complete_setting, complete_subject, option
from msctx.cli.output import emit, print_text
from msctx.context.plans import explain, refuse
from msctx.errors import Diagnostic, MsctxError, OptionError
from msctx.options.layer_sources import flatten, presets
from msctx.run import sweep as sweeping
from msctx.run.experiment_and_entry import file_of, prepare_environment, read, resolve, subject_of
from msctx.run.launch import is_one_of_several, launch, rank
from msctx.run.record import Record, why
from msctx.run.runner import run_experiment, terminable
from msctx.state_and_environment import command_line
from msctx.verify.run_processes import sides

OF_SCRIPT = "Options, args.NAME=…; behind -- the arguments of a script, as they are."
WordsOfScript = Annotated[Texts, argument("[KEY=VALUE]... [-- ARGUMENT...]", OF_SCRIPT, complete_setting)]


def run(
    file: Entry,
    overrides: WordsOfScript = None,
    out: Annotated[str | None, typer.Option(help="The run directory. Default: a new one under record.dir.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and show the plan; run nothing.")] = False,
    sweep: Annotated[Texts, option("KEY=A,B", "Run once per value, or combination of values.", complete_setting)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With --sweep and --out: resume; failed points run again.")] = False,
    engine: Annotated[str, option("ENGINE", "With --sweep: run its points as jobs of slurm, or local at once.")] = "",
    job: Annotated[Texts, option("KEY=VALUE", "With --engine: a parameter of submitit (slurm_partition, …).")] = None,
    nproc: Annotated[int | None, option("N", "Run it as N processes of this node, as torchrun does.", min=1)] = None,
    json_: Json = False,
) -> None:
    """Run an experiment under its options, record it, and restore everything.

    With --nproc N, rank 0 reports, and each rank has its own record in rank_0, rank_1 ….
    """
    words = overrides or []
    source, of_subject = subject_of(file)
    experiment = read(source, [*of_subject, *words], need_entry=True)
    _refuse({} if engine else {"--job": job}, "needs --engine")
    if sweep:
        _refuse({"--sweep": is_one_of_several()}, "a sweep starts a process for each point: run it without torchrun")
        values = sweeping.read(sweep)
        grid = sweeping.points(values)
        # a mistake in the last point is reported before the first has run
        experiments = [read(source, [*of_subject, *words, *sweeping.words_of(point)], need_entry=True) for point in grid]
        if dry_run:
            for one in experiments:
                resolve(one)
            emit(grid, json_, lambda: output.sweep_table(grid, []))
            return
        words += ["--nproc", str(nproc)] if nproc else []
        runs_in = sweeping.jobs(engine, job or [], out or f"{experiment.record_dir}/jobs") if engine else sweeping.in_turn
        run_grid = partial(sweeping.run, file, experiment, words, values, out, engine=runs_in, resume=resume)
        _sweep(grid, run_grid, json_)
        return
    _refuse({"--engine": engine, "--resume": resume}, "needs --sweep")
    prepare_environment(experiment)

    if dry_run:
        plan = explain(experiment.settings)
        resolve(experiment)
        if rank() == 0:
            emit(plan.as_dict(), json_, lambda: output.plan_page(plan))
        refuse(plan)
        return
    if not nproc:
        run_here(experiment, out, json_)
        return
    refuse(explain(experiment.settings))
    _refuse({"--nproc": is_one_of_several()}, "torchrun has started this process already: leave --nproc out")
    words = [file, *words, *["--json"] * json_]
    found = launch(experiment, words, out, nproc=nproc)
    if not json_:
        print_text(f"the records of the ranks are in {found}")


def _refuse(given: dict[str, Any], why: str) -> None:
    if problems := [Diagnostic(flag, why, "command line") for flag, value in given.items() if value]:
        raise OptionError(problems)


def run_here(experiment: Any, out: str | None, json_: bool) -> None:
    """Run it in this process, which may be one of several; the first one reports."""
    console = output.console(sys.stderr if json_ else sys.stdout)
    is_first = rank() == 0
    runs: list[Any] = []

    def announce(running: Any) -> None:
        runs.append(running)
        if is_first:
            with suppress(OSError):  # nobody reads any more: the run goes on
                output.show(console, output.plan_page(running.plan))

    try:
        with redirect_stdout(sys.stderr) if json_ else nullcontext():
            result = run_experiment(experiment, out, output.Progress() if is_first else None, announce)
    except KeyboardInterrupt:
        if not runs:
            raise
        record = runs[0].dir / "result.json"
        _interrupted(f"the record is in {runs[0].dir}, and everything was restored", record, json_ and is_first)
    if is_first:
        emit(result, json_, lambda: output.pairs_table(result, ("result", "")))


def _interrupted(text: str, record: Any, json_: bool) -> None:
    print(f"interrupted; {text}", file=sys.stderr)
    if json_:
        print(record.read_text(), end="")
    raise typer.Exit(130) from None


def _sweep(grid: list[Any], run_grid: Any, json_: bool) -> None:
    """Run it; ends with 1 where a point failed."""
    console = output.console(sys.stderr)

    def done(number: int, result: Any) -> None:
        told = f"{number} of {len(grid)}: {' '.join(sweeping.words_of(grid[number - 1]))}: {result['status']}"
        with suppress(OSError):
            console.print(told + f": {why(result)}" * (result["status"] != "completed"), markup=False, soft_wrap=True)

    try:
        found = run_grid(done)
    except sweeping.Interrupted as interrupted:
        record = interrupted.args[0] / "sweep.json"
        _interrupted(f"{record} holds the finished runs, marked as partial", record, json_)
    results = [point["result"] for point in found["points"]]
    emit(found, json_, lambda: (output.sweep_table(grid, results), Text(f"sweep.json is in {found['dir']}")))
    raise typer.Exit(any(result["status"] != "completed" for result in results))


SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""For typer: what begins with a dash is the command's own."""


def execute(
    words: Annotated[
        list[str],
        argument("[FILE|PRESET|KEY=VALUE]... -- COMMAND...", "Options as of run, and the command.", complete_setting),
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
    from msctx.run.launch import execute as start

    try:
        refuse(plan)
    except MsctxError:  # PyTorch, whose import would double the start, knows whether that is true
        refuse(plan := explain(experiment.settings))
    if verbose:  # PyTorch knows the processor, too
        output.show(output.console(sys.stderr), output.plan_page(explain(experiment.settings)))
    raise typer.Exit(start(command, flatten(experiment.levels), strict=plan.strict))


def compare(
    subject: Annotated[str, argument("SUBJECT", "A YAML file; package.module:function; a shipped name.", complete_subject)],
    overrides: Words = None,
    axis: Annotated[Texts, option("KEY=A,B", "Values of an option to compare; repeatable.", complete_setting)] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds per row.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less time for each row, the largest first.")] = False,
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
    from msctx.compare import report
    from msctx.compare.comparison import run
    from msctx.compare.result_and_recommendation import INTERRUPTED, as_csv, below

    with (
        redirect_stdout(sys.stderr),
        output.console(sys.stderr).status("measuring") as status,
    ):  # what a model prints is no result
        found = run(comparison, lambda done, of, name: status.update(Text(f"{done} of {of}: {name}")))
    told: list[Text] = []
    if record is not None:
        record.json("result.json", found.as_json())
        texts = {"report.html": report.page(found), "result.csv": as_csv(found), "best.yaml": found.recommended}
        written = [name for name, text in texts.items() if text]
        for name in written:
            record.text(name, texts[name])
        told.append(Text(f"wrote {', '.join(str(record.folder / name) for name in (*written, 'result.json'))}"))
    emit(found.as_json(), json_, lambda: (*report.parts(found), *told))
    if found.partial == INTERRUPTED:
        print("interrupted; what was measured so far is marked as partial", file=sys.stderr)
        raise typer.Exit(130)
    if not found.totals:
        print("nothing could be measured", file=sys.stderr)
        raise typer.Exit(1)
    slower = below(found, fail_below) if fail_below is not None else []
    for line in slower:
        print(f"below {fail_below:g}: {line}", file=sys.stderr)
    raise typer.Exit(1 if slower else 0)


def capture(
    model: Annotated[str, typer.Argument(metavar="package.module:function", help="Returns a torch.nn.Module and an input.")],
    json_: Json = False,
) -> None:
    """Run a model once and print its layer problems as a workload, for `msctx compare FILE`."""
    from msctx.compare.layer_workload_file import DTYPES, dump
    from msctx.compare.layers_of_model import capture as captured
    from msctx.compare.timed_cases import load

    with redirect_stdout(sys.stderr):
        workload = captured(load(model))
    text = dump(workload)
    if not workload.layers:
        why = f" that a workload can hold: {', '.join(workload.left_out)}" if workload.left_out else ""
        hint = f"inputs that are not empty, and dtypes of {', '.join(DTYPES)}" if why else ""
        raise OptionError([Diagnostic("", f"the model computes no convolution and no matmul{why}", model, hint)])
    if workload.left_out:
        print(f"not in it, as no layer of a workload computes them: {', '.join(workload.left_out)}", file=sys.stderr)
    data = {"name": workload.name, "layers": len(workload.layers), "left_out": [*workload.left_out], "text": text}
    emit(data, json_, lambda: text.rstrip("\n"))


def verify(
    subject: Entry,
    overrides: WordsOfScript = None,
    against: Annotated[Texts, option("WHAT", "run (default), threads[:N], compiled, or KEY=VALUE of the second run.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare the first steps only. Default: the whole run.")] = None,
    json_: Json = False,
) -> None:
    """Run a training twice, and name the first operator whose inputs agree and whose outputs differ."""
    if is_one_of_several():
        raise OptionError([Diagnostic("", "it starts the processes itself: run it without torchrun", "msctx verify")])
    file, words = subject_of(subject)
    both = sides(against or [], [*words, *(overrides or [])])
    for side in both:
        read(file, side.words, need_entry=True)  # mistakes are reported before anything runs
    from msctx.verify.first_difference import verify as compare

    try:
        with terminable(), output.console(sys.stderr).status("the runs begin") as status:
            result = compare(file, " ".join(against or ["run"]), both, steps, status.update)
    except KeyboardInterrupt:
        _interrupted("the runs have ended", None, False)
    style = "green" if result.finding is None else "red"
    emit(result.as_json(), json_, lambda: (Text(result.sentence, style=style), output.pairs_table(result.facts(), ("", ""))))
    raise typer.Exit(int(result.finding is not None))
