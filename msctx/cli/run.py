"""`msctx run`: an experiment, or a grid of them; `msctx exec`: a command of the user's under options."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import typer

from msctx.cli import completion, render
from msctx.cli.render import Entry, Json, Texts, Words, argument, emit, emit_plan, only_json, option, print_json, print_text
from msctx.context.base import explain, refuse
from msctx.errors import Diagnostic, MsctxError, OptionError
from msctx.options.layers import flatten, presets
from msctx.run import run_experiment
from msctx.run import sweep as sweeping
from msctx.run.config import file_of, prepare_environment, read, subject_of
from msctx.run.entry import resolve
from msctx.run.launch import is_one_of_several, launch, rank


def run(
    file: Entry,
    overrides: Words = None,
    out: Annotated[str | None, typer.Option(help="The run directory. Default: a new one under record.dir.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and show the plan; run nothing.")] = False,
    sweep: Annotated[Texts, option("KEY=A,B", "Run once per value, or combination of values.", completion.settings)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With --sweep and --out: go on; what failed runs again.")] = False,
    engine: Annotated[str, option("ENGINE", "With --sweep: run its points as jobs of slurm, or local at once.")] = "",
    job: Annotated[Texts, option("KEY=VALUE", "With --engine: a parameter of submitit (slurm_partition, …).")] = None,
    nproc: Annotated[int | None, option("N", "Run it as N processes of this node, as torchrun does.", min=1)] = None,
    nnodes: Annotated[str, typer.Option(metavar="M", help="With --nproc: nodes, or MIN:MAX of them.")] = "1",
    rdzv: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where several nodes find each other, the same on all.")] = "",
    max_restarts: Annotated[int, typer.Option(min=0, help="How often a rank of this node may fail: all start anew.")] = 0,
    json_: Json = False,
) -> None:
    """Run an experiment under its options, record it, and restore everything.

    With --nproc N, rank 0 reports, each rank has its own record in rank_0, rank_1 …, and ranks.json shows how each ended.
    """
    words = overrides or []
    source, of_subject = subject_of(file)
    experiment = read(source, [*of_subject, *words], need_entry=True)
    of_nodes = {"--nnodes": nnodes != "1", "--rdzv": rdzv}
    _refuse({} if nproc else {"--max-restarts": max_restarts}, "needs --nproc")
    _refuse({} if engine else {"--job": job}, "needs --engine")
    if sweep:
        _refuse(of_nodes, "does not go with --sweep, whose points run on one node each")
        _refuse({"--sweep": is_one_of_several()}, "a sweep starts a process for each point: run it without torchrun")
        values = sweeping.read(sweep)
        grid = sweeping.points(values)
        # a mistake in the last point is reported before the first has run
        experiments = [read(source, [*of_subject, *words, *sweeping.words_of(point)], need_entry=True) for point in grid]
        if dry_run:
            for one in experiments:
                resolve(one)
            emit(grid, json_, lambda: render.sweep_table(grid, []))
            return
        words += ["--nproc", str(nproc), "--max-restarts", str(max_restarts)] if nproc else []
        runs_in = sweeping.engine(engine, job or []) if engine else sweeping.in_turn
        run_grid = partial(sweeping.run, file, experiment, words, values, out, engine=runs_in, resume=resume)
        _sweep(grid, run_grid, json_)
        return
    _refuse({"--engine": engine, "--resume": resume}, "needs --sweep")
    if not nproc:
        _refuse(of_nodes, "needs --nproc")

    prepare_environment(experiment)

    if dry_run:
        plan = explain(experiment.settings)
        resolve(experiment)
        if rank() == 0:
            emit_plan(plan, json_)
        refuse(plan)
        return
    if not nproc:
        run_here(experiment, out, json_)
        return
    refuse(explain(experiment.settings))
    _refuse({"--nproc": is_one_of_several()}, "torchrun has started this process already: leave --nproc out")
    words = [file, *words, *["--json"] * json_]
    found = launch(experiment, words, out, nproc=nproc, nnodes=nnodes, rdzv=rdzv, max_restarts=max_restarts)
    if not json_:
        print_text(f"ranks.json is in {found['run_dir']}")


def _refuse(given: dict[str, Any], why: str) -> None:
    if problems := [Diagnostic(flag, why, "command line") for flag, value in given.items() if value]:
        raise OptionError(problems)


def run_here(experiment: Any, out: str | None, json_: bool) -> None:
    """Run it in this process, which may be one of several; the first one reports."""
    console = render.console(sys.stderr if json_ else sys.stdout)
    is_first = rank() == 0
    runs: list[Any] = []

    def announce(running: Any) -> None:
        runs.append(running)
        if is_first:
            with suppress(OSError):  # nobody reads any more: the run goes on
                render.show(console, render.plan_page(running.plan))

    try:
        with only_json(json_):
            result = run_experiment(experiment, out, render.Progress() if is_first else None, announce)
    except KeyboardInterrupt:
        if not runs:
            raise
        record = runs[0].dir / "result.json"
        _interrupted(f"the record is in {runs[0].dir}, and everything was restored", record, json_ and is_first)
    if is_first:
        emit(result, json_, lambda: render.pairs_table(result, ("result", "")))


def _interrupted(text: str, record: Any, json_: bool) -> None:
    print(f"interrupted; {text}", file=sys.stderr)
    if json_:
        print(record.read_text(), end="")
    raise typer.Exit(130) from None


def _sweep(grid: list[Any], run_grid: Any, json_: bool) -> None:
    """Run it; ends with 1 where a point failed."""
    console = render.console(sys.stderr)

    def done(number: int, result: Any) -> None:
        told = f"{number} of {len(grid)}: {' '.join(sweeping.words_of(grid[number - 1]))}: {result['status']}"
        with suppress(OSError):
            console.print(told + f": {sweeping.why(result)}" * (result["status"] != "completed"), markup=False, soft_wrap=True)

    try:
        found = run_grid(done)
    except sweeping.Interrupted as interrupted:
        record = interrupted.args[0] / "sweep.json"
        _interrupted(f"{record} holds the finished runs, marked as partial", record, json_)
    results = [point["result"] for point in found["points"]]
    if json_:
        print_json(found)
    else:
        render.console().print(render.sweep_table(grid, results))
        print(f"sweep.json is in {found['dir']}")
    raise typer.Exit(any(result["status"] != "completed" for result in results))


SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""For typer: what begins with a dash is the command's own."""


def execute(
    words: Annotated[
        list[str],
        argument("[FILE|PRESET|KEY=VALUE]... -- COMMAND...", "Options as of run, and the command.", completion.settings),
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
    from msctx.run.execution import execute as start

    try:
        refuse(plan)
    except MsctxError:  # PyTorch, whose import would double the start, knows whether that is true
        refuse(plan := explain(experiment.settings))
    if verbose:  # PyTorch knows the processor, too
        render.show(render.console(sys.stderr), render.plan_page(explain(experiment.settings)))
    raise typer.Exit(start(command, flatten(experiment.levels), strict=plan.strict))
