"""Every algorithm of convolution beside torch's own path, channels first: time as a ratio, and the error against float64 next to it.

python bench/algorithms.py --threads 1 --layers resnet --json algorithms.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import contest
import torch
from layers import OF_EACH_KIND, OTHERS, Layer, call, tensors
from rich.console import Console
from rich.progress import track
from rich.table import Table

import msctx
from msctx.options.gpu import OPTIONS

DIRECTIONS = ("fprop", "dgrad", "wgrad")
HEURISTICS = ("normal", "performance", "reference")
VALUES = {
    d: [c for c in next(o for o in OPTIONS if o.name == f"conv_{d}_algo").choices if c not in HEURISTICS] for d in DIRECTIONS
}
LAYERS = tuple(dict.fromkeys(OF_EACH_KIND + OTHERS))


@dataclass(frozen=True)
class Figure:
    layer: str
    direction: str
    algorithm: str
    ratio: float
    """torch's fastest run over ours."""
    torch_ms: float
    error: float
    """Largest |error| against float64, in units of the largest result."""
    torch_error: float
    workspace: int


def figures(layer: Layer, direction: str, batch: int, seconds: float) -> Iterator[Figure]:
    """Of the algorithms that take the problem, and whose result is within the bound that they state."""
    run, option = call(layer, direction), f"conv_{direction}_algo"
    sets = [tensors(layer, batch, seed) for seed in range(3)]
    truth = run(*(t.double() for t in sets[0]))

    def error_of(result: torch.Tensor) -> float:
        return float((result - truth).abs().max() / truth.abs().max())

    errors, workspaces = {"torch": error_of(run(*sets[0]))}, {}
    contexts = {name: msctx.context(**{option: name}, fallback="silent") for name in VALUES[direction]}
    contenders = [contest.Contender("torch", "", nullcontext, lambda number: run(*sets[number % 3]))]
    for name, context in contexts.items():
        with context as ctx:
            error = error_of(run(*sets[0]))
        (row,) = ctx.choices()
        if row.provider == "msctx" and error <= row.error:
            errors[name], workspaces[name] = error, row.workspace
            contenders.append(
                contest.Contender(name, "", lambda context=context: context, lambda number: run(*sets[number % 3]))
            )
    ms = contest.fastest(contenders, seconds)
    for name, workspace in workspaces.items():
        ratio = contest.ratio(ms, name)
        yield Figure(layer.name, direction, name, ratio, ms["torch"][""], errors[name], errors["torch"], workspace)


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one layer in one direction")
    parser.add_argument("--layers", default="", help="only those whose name has this in it")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    jobs = [(layer, d) for layer in LAYERS if given.layers in layer.name for d in DIRECTIONS]
    bar = track(jobs, "measuring", console=Console(stderr=True))
    found = [figure for layer, d in bar for figure in figures(layer, d, given.batch, given.seconds)]
    for direction in DIRECTIONS:
        table = Table(title=f"{direction}: torch's time / ours (error), {given.threads} threads, batch {given.batch}")
        table.add_column("layer")
        table.add_column("torch")
        for name in VALUES[direction]:
            table.add_column(name)
        for layer in dict.fromkeys(f.layer for f in found if f.direction == direction):
            mine = {f.algorithm: f for f in found if (f.layer, f.direction) == (layer, direction)}
            one = next(iter(mine.values()))
            cells = [f"{mine[n].ratio:.2f} ({mine[n].error:.0e})" if n in mine else "" for n in VALUES[direction]]
            table.add_row(layer, f"{one.torch_ms:.2f} ms ({one.torch_error:.0e})", *cells)
        Console(width=200).print(table)
    if given.json:
        given.json.write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
