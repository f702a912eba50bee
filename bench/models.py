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
import itertools
import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import contest
import figures
import runtimes
import summary
from networks import NETWORKS

CLASSES = {"fp32-grade": {}, "TF32 class": {"conv_allow_tf32": True, "matmul_allow_tf32": True}}
ALGORITHMS = ("conv_fprop_algo", "matmul_algo", "conv_dgrad_algo", "conv_wgrad_algo")
PHASES = ("inference", "training")
TRAINING_BATCH = 4
SIZE = 224
MODES = ("PYNATIVE_MODE", "GRAPH_MODE")


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
        scores = model(x)
        torch.nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long)).backward()
        gradient = weight.grad.clone()
        optimizer.step()
        return gradient

    return step


def measure(name: str, phase: str, batch: int, seconds: float, with_inductor: bool, with_errors: bool = True) -> dict[str, Any]:
    """One process's figures, and the errors."""
    import torch

    import msctx

    is_training = phase == "training"
    torch.manual_seed(0)
    plain = NETWORKS[name]().train(is_training)
    given = [torch.randn(batch, 3, SIZE, SIZE) for _ in range(3)]
    kinds = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
    by_format = {f: [x.contiguous(memory_format=kind) for x in given] for f, kind in kinds.items()}
    models = {f: copy.deepcopy(plain).to(memory_format=kind) for f, kind in kinds.items()}
    requested = dict.fromkeys(ALGORITHMS if is_training else ALGORITHMS[:2], "normal")
    contexts = {
        (side, mode): msctx.context(mode=mode, **requested, **options, fallback="silent", frozen_weights=not is_training)
        for (side, options), mode in itertools.product(CLASSES.items(), MODES)
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

    for f in kinds:
        enter("torch", "eager", f, nullcontext, None)
        for math_class in CLASSES:
            enter(math_class, "eager", f, lambda context=contexts[math_class, MODES[0]]: context, None)
        enter("bf16 autocast", "eager", f, lambda: torch.autocast("cpu", torch.bfloat16), None)
    if with_inductor:  # which lays out the tensors between as it likes
        enter("torch", "inductor", "channels_last", nullcontext, {})
        for math_class in CLASSES:
            enter(math_class, "graph mode", "channels_last", lambda context=contexts[math_class, MODES[1]]: context, None)
        if not is_training:  # as an option of torch.compile alone it has no effect: Dynamo looks at the setting
            frozen = {"freezing": True}
            for side in ("torch", "again"):
                enter(side, "inductor with freezing", "channels_last", lambda: torch._inductor.config.patch(frozen), frozen)
    if not is_training:
        for other, infer in runtimes.installed(plain, given[0], torch.get_num_threads()).items():
            enter_step(other, "", "channels_first", nullcontext, infer)
    for f in kinds:  # the control
        enter("again", "eager", f, nullcontext, None)
    found = contest.fastest(contenders, seconds)
    winners = {side: min(ms, key=lambda label: ms[label]) for side, ms in found.items()}
    if not with_errors:
        return {"ms": found, "winners": winners}
    with torch.set_grad_enabled(is_training):
        truth = step_of(copy.deepcopy(plain).double(), is_training)(given[0].double()).detach()
    scale = float(truth.abs().max())
    return {
        "ms": found,
        "winners": winners,
        "errors": {side: float((first[side, label] - truth).abs().max()) / scale for side, label in winners.items()},
    }


def work(given: argparse.Namespace) -> None:
    """A process: a line of JSON for each batch size of a network's phase."""
    name, phase = given.work.split(",")
    for batch in given.batches if phase == "inference" else [TRAINING_BATCH]:
        found = measure(name, phase, batch, given.seconds, not given.without_inductor, not given.without_errors)
        print(json.dumps({"network": name, "phase": phase, "batch": batch, **found}), flush=True)


def of_processes(found: list[dict[str, Any]]) -> dict[str, Any]:
    each = {side: [contest.ratio(f["ms"], side) for f in found] for side in found[0]["ms"] if side not in ("torch", "again")}
    controls = [
        f["ms"]["torch"][how] / f["ms"]["again"][how] for f in found for how in f["ms"]["again"] if how in f["ms"]["torch"]
    ]
    return {
        "ratios": {side: statistics.median(ratios) for side, ratios in each.items()},
        "each": each,
        "control": statistics.median(controls),
        "controls": controls,
        "ms": {side: statistics.median(min(f["ms"][side].values()) for f in found) for side in found[0]["ms"]},
        "winners": {side: sorted({f["winners"][side] for f in found}) for side in found[0]["winners"]},
        "errors": found[0]["errors"],
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    works = [f"{name},{phase}" for name in contest.requested(NETWORKS, given) for phase in given.phases.split(",")]
    words = ["--without-inductor"] * given.without_inductor
    return contest.collected(__file__, given, works, ("network", "phase", "batch"), of_processes, "networks", words)


SIDES = (*CLASSES, "bf16 autocast", *runtimes.RUNTIMES)


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each network, phase, batch size and number of threads."""
    rows = []
    for row in (row for result in results for row in result["networks"]):
        each, sides = row.get("each", {}), [side for side in SIDES if side in row["ratios"]]
        rows.append(
            {
                **{name: row[name] for name in ("network", "phase", "batch", "threads")},
                "ms": row["ms"]["torch"],
                "fastest": row["winners"]["torch"],
                "again": figures.of(row.get("controls"), row["control"]),
                "ratios": {side: figures.of(each.get(side), row["ratios"][side]) for side in sides},
                "errors": {side: row["errors"][side] for side in ("torch", *sides)},
            }
        )
    return summary.head(results, kept=all("each" in row for result in results for row in result["networks"]), rows=rows)


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
    last = f"{summary.described(of)}; {processes} or more processes."
    legend = figures.legend(of["kept"], processes)
    return {"networks": [*summary.markdown(head, cells), "", f"{last} {legend}"]}


def main() -> None:
    parser = contest.arguments(__doc__, NETWORKS, [1, 8])
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--without-inductor", action="store_true", help="only eager code: compiling takes minutes a process")
    summary.do(parser.parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
