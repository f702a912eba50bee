"""The speed of whole networks under msctx: the fastest of torch's own ways over ours, for inference and for a training step.

torch's ways are eager and inductor, in both memory formats, for inference also inductor with freezing; ours are eager code and graph
mode under a context. bf16 autocast and other runtimes stand beside them, and count for neither side. Errors are those of the last
layer against float64, over its largest value; for a training step those of the last weight's gradient in the first step.

    python bench/models.py --threads 1,2 --out RAW.json
    python bench/models.py --summary RAW.json > bench/results/NAME-networks.json
    python bench/models.py --docs bench/results/NAME-networks.json
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import contest
import figures
import runtimes
import summary
import torch
from layers import FORMATS
from networks import NETWORKS

import msctx

CLASSES = {"fp32-grade": {}, "TF32 class": {"conv_allow_tf32": True, "matmul_allow_tf32": True}}
ALGORITHMS = ("conv_fprop_algo", "matmul_algo", "conv_dgrad_algo", "conv_wgrad_algo")
PHASES = ("inference", "training")
TRAINING_BATCH = 4
SIZE = 224
SIDES = (*CLASSES, "bf16 autocast", *runtimes.RUNTIMES)
Scope = Callable[[], AbstractContextManager[Any]]
Step = Callable[[torch.Tensor], torch.Tensor]


def step_of(model: Any, is_training: bool) -> Step:
    """What is timed: the output of a network, or a step of its training, which gives the last weight's gradient."""
    if not is_training:
        return model  # type: ignore[no-any-return]
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    *_, weight = (p for p in model.parameters() if p.dim() > 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        scores = model(x)
        torch.nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long)).backward()
        gradient: torch.Tensor = weight.grad.clone()
        optimizer.step()
        return gradient

    return step


def measure(name: str, phase: str, batch: int, seconds: float, with_inductor: bool, with_errors: bool = True) -> dict[str, Any]:
    """One process's figures, and the errors."""
    is_training = phase == "training"
    torch.manual_seed(0)
    plain = NETWORKS[name]().train(is_training)
    given = [torch.randn(batch, 3, SIZE, SIZE) for _ in range(3)]
    by_format = {f: [x.contiguous(memory_format=kind) for x in given] for f, kind in FORMATS.items()}
    requested = dict.fromkeys(ALGORITHMS if is_training else ALGORITHMS[:2], "normal")
    contenders: list[contest.Contender] = []
    first: dict[tuple[str, str], torch.Tensor] = {}  # results of the first call: training has changed nothing yet

    def context(side: str, mode: str) -> Scope:
        made = msctx.context(mode=mode, **requested, **CLASSES[side], fallback="silent", frozen_weights=not is_training)
        return lambda: made

    def enter_step(side: str, label: str, f: str, scope: Scope, step: Step) -> None:
        def run(number: int) -> None:
            with torch.set_grad_enabled(is_training):
                result = step(by_format[f][number % 3])
            if (side, label) not in first:
                first[side, label] = result.detach().clone()

        contenders.append(contest.Contender(side, label, scope, run))

    def enter(side: str, how: str, f: str, scope: Scope, options: dict[str, Any] | None = None) -> None:
        """A contender; compiled if it has options, be they none."""
        model = copy.deepcopy(plain).to(memory_format=FORMATS[f])
        step = step_of(model if options is None else torch.compile(model, options=options), is_training)
        enter_step(side, f"{how}, {f}", f, scope, step)

    def torchs(side: str) -> None:
        for f in FORMATS:
            enter(side, "eager", f, nullcontext)
        if with_inductor:  # which lays out the tensors between as it likes
            enter(side, "inductor", "channels_last", nullcontext, {})
        if (
            with_inductor and not is_training
        ):  # as an option of torch.compile alone it has no effect: Dynamo looks at the setting
            frozen = {"freezing": True}
            enter(side, "inductor with freezing", "channels_last", lambda: torch._inductor.config.patch(frozen), frozen)

    torchs("torch")
    for f in FORMATS:
        for side in CLASSES:
            enter(side, "eager", f, context(side, "PYNATIVE_MODE"))
        enter("bf16 autocast", "eager", f, lambda: torch.autocast("cpu", torch.bfloat16))
    for side in CLASSES if with_inductor else ():
        enter(side, "graph mode", "channels_last", context(side, "GRAPH_MODE"))
    if not is_training:
        for other, infer in runtimes.installed(plain, given[0], torch.get_num_threads()).items():
            enter_step(other, "", "channels_first", nullcontext, infer)
    torchs("again")
    ms = contest.fastest(contenders, seconds)
    winners = {side: contest.quickest(each) for side, each in ms.items()}
    told = {"ms": ms, "winner": winners["torch"]}
    if not with_errors:
        return told
    with torch.set_grad_enabled(is_training):
        truth = step_of(copy.deepcopy(plain).double(), is_training)(given[0].double()).detach()
    return told | {"errors": {side: contest.error_of(first[side, label], truth) for side, label in winners.items()}}


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each batch size of a network's phases."""
    for phase in given.phases.split(","):
        for batch in given.batches if phase == "inference" else [TRAINING_BATCH]:
            found = measure(given.work, phase, batch, given.seconds, not given.without_inductor, not given.without_errors)
            yield {"network": given.work, "phase": phase, "batch": batch, **found}


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each network, phase, batch size and number of threads."""
    rows, about = [], ("network", "phase", "batch", "threads")
    for place, found in summary.by(summary.every(results), *about).items():
        errors = figures.errors(found)
        sides = [side for side in SIDES if side in errors]
        rows.append(
            {
                **dict(zip(about, place, strict=True)),
                "ms": statistics.median(min(row["ms"]["torch"].values()) for row in found),
                "fastest": sorted({row["winner"] for row in found}),
                "again": figures.of(figures.ratios(found, "again")),
                "ratios": {side: figures.of(figures.ratios(found, side)) for side in sides},
                "errors": {side: errors[side] for side in ("torch", *sides)},
            }
        )
    return summary.head(results, rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    processes = of["processes"]
    cells = []
    for row in of["rows"]:
        ratios = {side: figures.text(ratio, row["again"], processes) for side, ratio in row["ratios"].items()}
        best = f"{row['ms']:.0f} ({' or '.join(row['fastest'])}), {row['errors']['torch']:.0e}"
        sides = [f"{ratios[side]}, {row['errors'][side]:.0e}" if side in ratios else "" for side in SIDES]
        name = f"{row['network']}, {row['phase']}"
        cells.append([name, row["batch"], row["threads"], best, *sides, f"{row['again']['median']:.2f}"])
    head = ["network", "batch", "threads", "PyTorch, ms, error", *(f"{side}, error" for side in SIDES), "A/A"]
    last = f"{summary.described(of)}; {processes} or more processes. {figures.legend(processes)}"
    return {"networks": summary.table(head, cells, last)}


def main() -> None:
    parser = contest.arguments(__doc__, NETWORKS, [1, 8])
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--without-inductor", action="store_true", help="only eager code: compiling takes minutes a process")
    summary.do(parser.parse_args(), NETWORKS, work, reduced, tables)


if __name__ == "__main__":
    main()
