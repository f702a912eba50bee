"""The speed of whole networks under msctx: the fastest of torch's own ways over ours, for inference and for a training step.

torch's ways are eager and inductor, in both memory formats, for inference also inductor with freezing; ours are eager code and graph
mode under a context. bf16 autocast and other runtimes stand beside them, and count for neither side. Errors are those of the last
layer against float64, over its largest value; for a training step those of the last weight's gradient in the first step.

    python bench/models.py --threads 1,2 --out bench/results/NAME.json
    python bench/models.py --docs bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import contest
import figures
import runtimes
from networks import NETWORKS, inputs

CLASSES = {"fp32-grade": {}, "TF32 class": {"conv_allow_tf32": True, "matmul_allow_tf32": True}}
ALGORITHMS = ("conv_fprop_algo", "matmul_algo", "conv_dgrad_algo", "conv_wgrad_algo")
PHASES = ("inference", "training")
TRAINING_BATCH = 4
FORMATS = ("channels_first", "channels_last")
MODES = ("PYNATIVE_MODE", "GRAPH_MODE")
CLOSE = 1.25
"""How many times slower than the fastest of its side a contender is in the first process when it takes no part in later ones."""


Step = Callable[[Any], Any]


def step_of(model: Any, is_training: bool) -> Step:
    """What is timed: the output of a network, or a step of its training, which gives the last weight's gradient."""
    import torch

    if not is_training:
        return model

    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    *_, weight = (p for p in model.parameters() if p.dim() > 1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        scores = model(x).flatten(0, -2)
        torch.nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long)).backward()
        gradient = weight.grad.clone()
        optimizer.step()
        return gradient

    return step


def measure(
    name: str, phase: str, batch: int, seconds: float, with_inductor: bool, earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """One process's figures; `earlier` are the first process's: later ones leave out what is hopeless, and the errors."""
    import torch

    import msctx

    is_training = phase == "training"
    torch.manual_seed(0)
    plain = NETWORKS[name]().train(is_training)
    given = [inputs(name, batch) for _ in range(3)]
    formats = FORMATS if given[0].dim() == 4 else FORMATS[:1]  # words have no channels
    kinds = {f: torch.channels_last if f == "channels_last" else torch.contiguous_format for f in formats}
    by_format = {f: [x.contiguous(memory_format=kind) for x in given] for f, kind in kinds.items()}
    models = {f: copy.deepcopy(plain).to(memory_format=kind) for f, kind in kinds.items()}
    asked = dict.fromkeys(ALGORITHMS if is_training else ALGORITHMS[:2], "normal")
    contexts = {
        (side, mode): msctx.context(mode=mode, **asked, **options, fallback="silent", frozen_weights=not is_training)
        for (side, options), mode in itertools.product(CLASSES.items(), MODES)
    }
    contenders: list[contest.Contender] = []
    first: dict[tuple[str, str], Any] = {}  # results of the first call: training has changed nothing yet

    def is_hopeless(side: str, label: str) -> bool:
        return earlier is not None and earlier[side].get(label, math.inf) > CLOSE * min(earlier[side].values())

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
        if (options is not None or side not in ("torch", "again")) and is_hopeless(side, f"{how}, {f}"):
            return
        model = copy.deepcopy(models[f])
        step = step_of(model if options is None else torch.compile(model, options=options), is_training)
        enter_step(side, f"{how}, {f}", f, scope, step)

    for f in formats:
        enter("torch", "eager", f, nullcontext, None)
        for math_class in CLASSES:
            enter(math_class, "eager", f, lambda context=contexts[math_class, MODES[0]]: context, None)
        enter("bf16 autocast", "eager", f, lambda: torch.autocast("cpu", torch.bfloat16), None)
    if with_inductor:  # which lays out the tensors between as it likes
        enter("torch", "inductor", formats[-1], nullcontext, {})
        for math_class in CLASSES:
            enter(math_class, "graph mode", formats[-1], lambda context=contexts[math_class, MODES[1]]: context, None)
        if not is_training:  # as an option of torch.compile alone it has no effect: Dynamo looks at the setting
            frozen = {"freezing": True}
            for side in ("torch", "again"):
                enter(side, "inductor with freezing", formats[-1], lambda: torch._inductor.config.patch(frozen), frozen)
    if not is_training:
        for other, infer in runtimes.installed(plain, given[0], torch.get_num_threads()).items():
            enter_step(other, "", FORMATS[0], nullcontext, infer)
    for f in formats:  # the control
        enter("again", "eager", f, nullcontext, None)
    found = contest.fastest(contenders, seconds)
    winners = {side: min(ms, key=lambda label: ms[label]) for side, ms in found.items()}
    if earlier is not None:
        return {"ms": found, "winners": winners}
    with torch.set_grad_enabled(is_training):
        exact = given[0].double() if given[0].is_floating_point() else given[0]
        truth = step_of(copy.deepcopy(plain).double(), is_training)(exact).detach()
    scale = float(truth.abs().max())
    return {
        "ms": found,
        "winners": winners,
        "errors": {side: float((first[side, label] - truth).abs().max()) / scale for side, label in winners.items()},
    }


def work(given: argparse.Namespace) -> None:
    """A process: a line of JSON for each batch size of a network's phase."""
    asked = json.loads(given.work)
    name, phase = asked["network"], asked["phase"]
    for batch in given.batches if phase == "inference" else [TRAINING_BATCH]:
        found = measure(name, phase, batch, given.seconds, asked["inductor"], asked["earlier"].get(str(batch)))
        print(json.dumps({"network": name, "phase": phase, "batch": batch, **found}), flush=True)


def summary(key: tuple[Any, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    each = {side: [contest.ratio(f["ms"], side) for f in found] for side in found[0]["ms"] if side not in ("torch", "again")}
    controls = [
        f["ms"]["torch"][how] / f["ms"]["again"][how] for f in found for how in f["ms"]["again"] if how in f["ms"]["torch"]
    ]
    return {
        **dict(zip(("network", "phase", "batch", "threads"), key, strict=True)),
        "ratios": {side: statistics.median(ratios) for side, ratios in each.items()},
        "each": each,
        "control": statistics.median(controls),
        "controls": controls,
        "ms": {side: statistics.median(min(f["ms"][side].values()) for f in found) for side in found[0]["ms"]},
        "winners": {side: sorted({f["winners"][side] for f in found}) for side in found[0]["winners"]},
        "errors": found[0]["errors"],
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    names = contest.asked(NETWORKS, given)
    phases = given.phases.split(",")
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    result = {"machine": contest.machine(), "inductor": not given.without_inductor, "processes": 0, "networks": []}
    with Progress(console=Console(stderr=True)) as progress:
        each = len(names) * sum(len(given.batches) if phase == "inference" else 1 for phase in phases)
        bar = progress.add_task("measuring", total=each * given.processes * len(given.threads))
        for number in range(given.processes):
            for threads in given.threads:
                for name, phase in itertools.product(names, phases):
                    earlier = {b: found[0]["ms"] for (n, p, b, t), found in rows.items() if (n, p, t) == (name, phase, threads)}
                    asked = {"network": name, "phase": phase, "inductor": not given.without_inductor, "earlier": earlier}
                    for found in contest.lines_of(__file__, json.dumps(asked), threads, given):
                        rows.setdefault((name, phase, found["batch"], threads), []).append(found)
                        progress.advance(bar)
            result |= {"processes": number + 1, "networks": [summary(key, found) for key, found in rows.items()]}
            contest.keep(given.out, result)
    return result


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each network, phase, batch size and number of threads."""
    sides = [*CLASSES, "bf16 autocast", *runtimes.RUNTIMES]
    lines = ["| network | batch | threads | PyTorch, ms, error | " + " | ".join(f"{s}, error" for s in sides) + " | A/A |"]
    lines.append("|---" * (5 + len(sides)) + "|")
    for row in (row for result in results for row in result["networks"]):
        best = f"{row['ms']['torch']:.0f} ({' or '.join(row['winners']['torch'])}), {row['errors']['torch']:.0e}"
        cells = [f"{row['network']}, {row['phase']}", row["batch"], row["threads"], best]
        each, controls = row.get("each", {}), row.get("controls", [row["control"]])
        for side in sides:
            ratio = figures.of_processes(row["ratios"][side], each.get(side), controls) if side in row["ratios"] else ""
            cells.append(f"{ratio}, {row['errors'][side]:.0e}" if ratio else "")
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['control']:.2f}"])) + " |")
    kept = all("each" in row for result in results for row in result["networks"])
    return [*lines, "", f"{contest.last_line(results)} {figures.legend(kept, min(r['processes'] for r in results))}"]


def short(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: what stands in the README, float32 alone and the larger batches."""
    rows = [row for result in results for row in result["networks"] if row["batch"] > 1]
    threads = sorted({row["threads"] for row in rows})
    head = [f"{n} thread{'s' * (n > 1)}: PyTorch | with msctx | PyTorch again" for n in threads]
    lines = ["| network | " + " | ".join(head) + " |", "|---" * (1 + 3 * len(threads)) + "|"]
    for network, phase, batch in dict.fromkeys((row["network"], row["phase"], row["batch"]) for row in rows):
        cells = [f"{network}, {phase}, batch {batch}"]
        for n in threads:
            (row,) = (r for r in rows if (r["network"], r["phase"], r["batch"], r["threads"]) == (network, phase, batch, n))
            each, controls = row.get("each", {}), row.get("controls", [row["control"]])
            ratio = figures.of_processes(row["ratios"]["fp32-grade"], each.get("fp32-grade"), controls)
            cells += [f"{row['ms']['torch']:.0f} ms", ratio, f"{row['control']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", contest.last_line(results)]


def main() -> None:
    parser = contest.arguments(__doc__, NETWORKS, [1, 8])
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--without-inductor", action="store_true", help="eager alone: compiling takes minutes a process")
    given = parser.parse_args()
    contest.do(given, "networks", work, collect, table)
    if given.docs:
        contest.into_docs("networks-short", short(contest.read(given.docs)))


if __name__ == "__main__":
    main()
