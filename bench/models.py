"""The speed of whole networks under msctx: PyTorch's time over ours, for inference and for a training step, all in float32.

PyTorch's ways are eager code and inductor, for inference also inductor with freezing; ours are eager code and graph mode, under
``normal`` and under ``performance``, for inference with ``frozen_weights=True``. Images go through eager code in both memory formats.
Of a side the fastest way counts. PyTorch's ways run a second time beside the others (A/A). Errors are those of the result against
float64, over its largest value; for a training step those of the first weight's gradient in the first step.

What the processes of a run share lies in a temporary folder: inductor's cache, the networks that other runtimes read, and the tuning
file. Neither compiling nor the measuring for the tuning file is timed.

    python bench/models.py --threads 1,2 --out RAW.json
    python bench/models.py --summary RAW.json > bench/results/NAME-networks.json
    python bench/models.py --docs bench/results/NAME-networks.json
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import contest
import figures
import networks
import runtimes
import summary
import torch
from layers import FORMATS

import msctx

ALGORITHMS = ("conv_fprop_algo", "matmul_algo", "conv_dgrad_algo", "conv_wgrad_algo")
PHASES = ("inference", "training")
TRAINING_BATCH = 4
OURS = ("normal", "performance")
OTHERS = (*OURS, *runtimes.RUNTIMES)
SHARED = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that tells the processes of a run where their folder is: inductor reads it, too."""
Scope = Callable[[], AbstractContextManager[Any]]
Step = Callable[[torch.Tensor], torch.Tensor]


def step_of(model: Any, is_training: bool) -> Step:
    """What is timed: the output of a network, or a step of its training, which gives the first weight's gradient."""
    if not is_training:
        return model  # type: ignore[no-any-return]
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    weight = next(p for p in model.parameters() if p.dim() > 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        scores = model(x).flatten(0, -2)  # of each image, or of each word
        torch.nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long)).backward()
        optimizer.step()
        gradient: torch.Tensor = weight.grad  # the next step makes another
        return gradient

    return step


def left_unmeasured(one: contest.Contender) -> int:
    """Let ``performance`` measure, which a moment of other load puts off by a second. For how many problems it has not."""
    left: set[Any] = set()
    with suppress(Exception):  # the contest reports it
        for _ in range(3):
            with (context := one.scope()):
                one.run(0)
            rows = [((row.direction, row.problem), "not measured" in "".join(row.reasons[:1])) for row in context.choices()]
            rows += [(row.id, "not measured" in row.way) for row in context.graphs()]
            left = {about for about, waits in rows if waits} - {about for about, waits in rows if not waits}
            if not left:
                break
            time.sleep(1.1)
    return len(left)


def measure(name: str, phase: str, batch: int, given: argparse.Namespace) -> dict[str, Any]:
    """One process's figures, and the errors."""
    is_training, folder = phase == "training", Path(os.environ[SHARED])
    torch.manual_seed(0)
    plain = networks.made(name).train(is_training)
    sets = [networks.inputs(name, batch) for _ in range(3)]
    formats = {f: kind for f, kind in FORMATS.items() if sets[0].dim() == 4 or kind is torch.contiguous_format}
    by_format = {f: [x.contiguous(memory_format=kind) for x in sets] for f, kind in formats.items()}
    models = {f: copy.deepcopy(plain).to(memory_format=kind) for f, kind in formats.items()}
    contenders: list[contest.Contender] = []
    first: dict[tuple[str, str], torch.Tensor] = {}  # results of the first call

    def enter(side: str, way: str, f: str, scope: Scope, step: Step) -> None:
        label = way if f == "channels_first" else f"{way}, {f}"

        def run(number: int) -> None:
            if is_training and (side, label) not in first:
                models[f].load_state_dict(plain.state_dict())  # the steps of others have changed it
            with torch.set_grad_enabled(is_training):
                result = step(by_format[f][number % 3])
            if (side, label) not in first:
                first[side, label] = result.detach().clone()

        contenders.append(contest.Contender(side, label, scope, run))

    def compiled(way: str, scope: Scope, **options: Any) -> None:
        """Inductor gives convolutions the format that it likes: in both formats it took the same time."""
        f = [*models][-1]
        model = copy.deepcopy(models[f]) if options else models[f]  # freezing marks weights, for whatever compiles them later
        enter("torch", way, f, scope, step_of(torch.compile(model, options=options), is_training))

    for f, model in models.items():
        enter("torch", "eager", f, nullcontext, step_of(model, is_training))
    if compiles := not given.without_inductor:
        compiled("inductor", nullcontext)
    if compiles and not is_training:  # as an option of torch.compile alone it has no effect: Dynamo looks at the setting
        compiled("inductor with freezing", lambda: torch._inductor.config.patch(freezing=True), freezing=True)
    again = [dataclasses.replace(one, side="again") for one in contenders]
    for how in OURS:
        requested: dict[str, Any] = dict.fromkeys(ALGORITHMS if is_training else ALGORITHMS[:2], how)
        requested |= {"tuning_file": folder / "tuning.json"} if how == "performance" else {}
        for mode, way in (("PYNATIVE_MODE", "eager"), ("GRAPH_MODE", "graph"))[: 1 + compiles]:
            context = msctx.context(mode=mode, fallback="silent", frozen_weights=not is_training, **requested)
            for f in [*models][-1 if way == "graph" else 0 :]:
                enter(how, way, f, lambda made=context: made, step_of(models[f], is_training))
    if not is_training:
        exported = f"{name.replace('/', '-')}-{batch}"
        for other, infer in runtimes.installed(plain, sets[0], torch.get_num_threads(), folder, exported).items():
            enter(other, "", "channels_first", nullcontext, infer)
    unmeasured = sum(left_unmeasured(one) for one in contenders if one.side == "performance")
    first.clear()  # what measured may have computed otherwise than what is timed
    ms = contest.fastest([*contenders, *again], given.seconds)
    told = {"ms": ms, "unmeasured": unmeasured}
    if given.without_errors:
        return told
    with torch.set_grad_enabled(is_training):
        truth = step_of(plain.double(), is_training)(sets[0].double() if sets[0].is_floating_point() else sets[0]).detach()
    return told | {"errors": {s: contest.error_of(first[s, contest.quickest(ms[s])], truth) for s in ms if s != "again"}}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One network in one phase with one batch size."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # else what is said to be compiled would be eager code
    name, phase, batch = given.work.split()
    yield {"network": name, "phase": phase, "batch": int(batch), **measure(name, phase, int(batch), given)}


def fastest(ms: dict[str, float]) -> dict[str, float]:
    return {(way := contest.quickest(ms)): ms[way]}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each network, phase, batch size and number of threads, with each process's fastest way of each side."""
    rows, about = [], ("network", "phase", "batch", "threads")
    for place, all_found in summary.by(summary.every(results), *about).items():
        found = [row for row in all_found if not row["unmeasured"]] or all_found  # other load keeps some from measuring
        kept = [{"ms": {side: fastest(ms) for side, ms in row["ms"].items()}} for row in found]
        told = {"unmeasured": max(row["unmeasured"] for row in found), "errors": figures.errors(found)}
        rows.append({**dict(zip(about, place, strict=True)), **told, "processes": kept})
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    """One for each phase and number of threads, and below it the means."""
    lines: list[str] = []
    for (phase, _), rows in summary.by(of["rows"], "phase", "threads").items():
        for row in rows:  # what failed in one process is no figure
            row["errors"] = {side: e for side, e in row["errors"].items() if all(side in one["ms"] for one in row["processes"])}
        sides = [side for side in OTHERS if any(side in row["errors"] for row in rows)]
        cells: list[list[Any]] = []
        medians: dict[str, list[float]] = {side: [] for side in sides}
        for row in rows:
            each = row["processes"]
            again = figures.of(figures.ratios(each, "again"))
            ways = " or ".join(sorted({way for one in each for way in one["ms"]["torch"]}))
            ms = statistics.median(ms for one in each for ms in one["ms"]["torch"].values())
            own = {side: figures.of(figures.ratios(each, side)) for side in sides if side in row["errors"]}
            for side, figure in own.items():
                medians[side].append(figure["median"])
            shown = [figures.text(own[side], again, len(each)) if side in own else "" for side in sides]
            errors = ", ".join(f"{row['errors'][side]:.0e}" if side in row["errors"] else "-" for side in ("torch", *sides))
            cells.append(
                [row["network"], row["batch"], row["threads"], f"{ms:.3g}, {ways}", figures.ends(again), *shown, errors]
            )
        means = [f"{figures.geomean(found):.2f} ({min(found):.2f})" for found in medians.values()]
        cells.append(["geometric mean (lowest)", *[""] * 4, *means, ""])
        titles = [f"`{side}`" if side in OURS else side for side in sides]
        head = [phase, "batch", "threads", "PyTorch: ms, way", "A/A", *titles, f"errors: PyTorch, {', '.join(titles)}"]
        lines += [*summary.markdown(head, cells), ""]
    processes, unmeasured = min(len(row["processes"]) for row in of["rows"]), sum(row["unmeasured"] for row in of["rows"])
    last = f"Measured on {summary.described(of)}; {processes} or more processes in turns. {figures.legend(processes)}"
    last += f" `performance` left {unmeasured} problems unmeasured, under other load." if unmeasured else ""
    return {"networks": [*lines, last]}


def main() -> None:
    parser = contest.arguments(__doc__, networks.NETWORKS, [1, 8])
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--without-inductor", action="store_true", help="only eager code: compiling takes minutes a process")
    given = parser.parse_args()
    sizes = [(p, batch) for p in given.phases.split(",") for batch in (given.batches if p == "inference" else [TRAINING_BATCH])]
    works = [f"{name} {phase} {batch}" for name in networks.NETWORKS for phase, batch in sizes]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(SHARED, folder)
        summary.do(given, works, work, reduced, tables)


if __name__ == "__main__":
    main()
