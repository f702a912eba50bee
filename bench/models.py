"""The speed of whole networks under msctx: the fastest of torch's own ways over ours, for inference and for a training step.

torch's ways are eager and inductor, in both memory formats, for inference also inductor with freezing; ours are eager and inductor
under a context. bf16 autocast and other runtimes stand beside them, and count for neither side. Errors are those of the last layer
against float64, over its largest value; for a training step those of the last weight's gradient in the first step.

    python bench/models.py --threads 1,2 --out bench/results/NAME.json
    python bench/models.py --readme bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import contest
import runtimes
from networks import NETWORKS

CLASSES = {"fp32-grade": {}, "TF32 class": {"conv_allow_tf32": True}}
DIRECTIONS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo")
PHASES = ("inference", "training")
TRAINING_BATCH = 4
FORMATS = ("channels_first", "channels_last")


Step = Callable[[Any], Any]


def step_of(model: Any, is_training: bool) -> Step:
    """What is timed: the output of a network, or a step of its training, which gives the last weight's gradient."""
    import torch

    if not is_training:
        return model

    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    *_, weight = (p for p in model.parameters() if p.dim() > 1)

    def step(images: Any) -> Any:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long)).backward()
        gradient = weight.grad.clone()
        optimizer.step()
        return gradient

    return step


def measure(name: str, phase: str, batch: int, seconds: float, with_inductor: bool) -> dict[str, Any]:
    import torch

    import msctx

    is_training = phase == "training"
    formats = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
    torch.manual_seed(0)
    plain = NETWORKS[name]().train(is_training)
    images = [torch.randn(batch, 3, 224, 224) for _ in range(3)]
    by_format = {f: [i.contiguous(memory_format=kind) for i in images] for f, kind in formats.items()}
    models = {f: copy.deepcopy(plain).to(memory_format=kind) for f, kind in formats.items()}
    asked = dict.fromkeys(DIRECTIONS if is_training else DIRECTIONS[:1], "normal")
    contexts = {
        math: msctx.context(**asked, **options, fallback="silent", frozen_weights=not is_training)
        for math, options in CLASSES.items()
    }
    contenders: list[contest.Contender] = []
    first: dict[tuple[str, str], Any] = {}  # results of the first call: training has changed nothing yet

    def enter_step(side: str, label: str, f: str, scope: Callable[[], AbstractContextManager[Any]], step: Step) -> None:
        def run(number: int) -> Any:
            with torch.set_grad_enabled(is_training):
                result = step(by_format[f][number % 3])
            if (side, label) not in first:
                first[side, label] = result.detach().clone()

        contenders.append(contest.Contender(side, label, scope, run))

    def enter(
        side: str, how: str, f: str, scope: Callable[[], AbstractContextManager[Any]], options: dict[str, Any] | None
    ) -> None:
        """A contender; compiled unless its options are None."""
        model = copy.deepcopy(models[f])
        step = step_of(model if options is None else torch.compile(model, options=options), is_training)
        enter_step(side, f"{how}, {f}", f, scope, step)

    for f in FORMATS:
        enter("torch", "eager", f, nullcontext, None)
        for math, context in contexts.items():
            enter(math, "eager", f, lambda context=context: context, None)
        enter("bf16 autocast", "eager", f, lambda: torch.autocast("cpu", torch.bfloat16), None)
    if with_inductor:  # which lays out the tensors between as it likes
        enter("torch", "inductor", FORMATS[1], nullcontext, {})
        for math, context in contexts.items():
            enter(math, "inductor", FORMATS[1], lambda context=context: context, {})
        if not is_training:
            enter("torch", "inductor with freezing", FORMATS[1], nullcontext, {"freezing": True})
    if not is_training:
        for other, infer in runtimes.installed(plain, images[0], torch.get_num_threads()).items():
            enter_step(other, "", FORMATS[0], nullcontext, infer)
    for f in FORMATS:  # the control
        enter("again", "eager", f, nullcontext, None)
    found = contest.fastest(contenders, seconds)
    with torch.set_grad_enabled(is_training):
        truth = step_of(copy.deepcopy(plain).double(), is_training)(images[0].double()).detach()
    scale = float(truth.abs().max())
    winners = {side: min(ms, key=lambda label: ms[label]) for side, ms in found.items()}
    return {
        "ms": found,
        "winners": winners,
        "errors": {side: float((first[side, label] - truth).abs().max()) / scale for side, label in winners.items()},
    }


def work(what: str, batches: list[int], threads: int, seconds: float) -> None:
    """A process: a line of JSON for each batch size of a network's phase."""
    import torch

    torch.set_num_threads(threads)
    name, phase, compiled = what.split(":")
    for batch in batches if phase == "inference" else [TRAINING_BATCH]:
        found = measure(name, phase, batch, seconds, with_inductor=compiled == "inductor")
        print(json.dumps({"network": name, "phase": phase, "batch": batch, **found}), flush=True)


def summary(key: tuple[Any, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    def median(side: str, theirs: str = "torch") -> float:
        return statistics.median(contest.ratio(f["ms"], side, theirs) for f in found)

    return {
        **dict(zip(("network", "phase", "batch", "threads"), key, strict=True)),
        "ratios": {side: median(side) for side in found[0]["ms"] if side not in ("torch", "again")},
        "control": statistics.median(
            f["ms"]["torch"][how] / f["ms"]["again"][how] for f in found for how in f["ms"]["again"] if how in f["ms"]["torch"]
        ),
        "ms": {side: statistics.median(min(f["ms"][side].values()) for f in found) for side in found[0]["ms"]},
        "winners": {side: sorted({f["winners"][side] for f in found}) for side in found[0]["winners"]},
        "errors": {side: max(f["errors"][side] for f in found) for side in found[0]["errors"]},
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    names = [name for name in NETWORKS if not given.only or name in given.only.split(",")]
    phases = given.phases.split(",")
    compiled = "eager" if given.without_inductor else "inductor"
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    result = {"machine": contest.machine(), "inductor": not given.without_inductor, "processes": 0, "networks": []}
    with Progress(console=Console(stderr=True)) as progress:
        each = len(names) * sum(len(given.batches) if phase == "inference" else 1 for phase in phases)
        bar = progress.add_task("measuring", total=each * given.processes * len(given.threads))
        for number in range(given.processes):
            for threads in given.threads:
                for name, phase in itertools.product(names, phases):
                    for found in contest.lines_of(__file__, f"{name}:{phase}:{compiled}", threads, given):
                        rows.setdefault((name, phase, found["batch"], threads), []).append(found)
                        progress.advance(bar)
            result |= {"processes": number + 1, "networks": [summary(key, found) for key, found in rows.items()]}
            contest.keep(given.out, result)
    return result


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each network, phase, batch size and number of threads."""
    sides = [*CLASSES, "bf16 autocast", *runtimes.RUNTIMES]
    lines = ["| network | batch | threads | torch, ms, error | " + " | ".join(f"{s}, error" for s in sides) + " | A/A |"]
    lines.append("|---" * (5 + len(sides)) + "|")
    for row in (row for result in results for row in result["networks"]):
        best = f"{row['ms']['torch']:.0f} ({' or '.join(row['winners']['torch'])}), {row['errors']['torch']:.0e}"
        cells = [f"{row['network']}, {row['phase']}", row["batch"], row["threads"], best]
        cells += [
            f"**{row['ratios'][side]:.2f}**, {row['errors'][side]:.0e}" if side in row["ratios"] else "" for side in sides
        ]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['control']:.2f}"])) + " |")
    processes = min(result["processes"] for result in results)
    return [*lines, "", f"{contest.described(*(result['machine'] for result in results))}; {processes} or more processes."]


def main() -> None:
    assert __doc__
    parser = contest.arguments(__doc__.splitlines()[0], NETWORKS, [1, 8])
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--without-inductor", action="store_true", help="eager alone: compiling takes minutes a process")
    given = parser.parse_args()
    if given.work:
        work(given.work, given.batches, given.threads[0], given.seconds)
    elif given.readme:
        contest.into_readme("networks", table(contest.read(given.readme)))
    else:
        print("\n".join(table([collect(given)])))


if __name__ == "__main__":
    main()
