"""Every algorithm of convolution beside torch's own path: time as a ratio, and the error against float64 next to it.

Runs are interleaved in one process; a ratio is torch's fastest run over ours, so above 1 ours is faster. Inputs change each run.
A figure is printed only where the result is within the bound that the algorithm states.

    python bench/algorithms.py --threads 1 --json algorithms.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn.functional import conv2d

import msctx
from msctx.options.gpu import OPTIONS

DIRECTIONS = ("fprop", "dgrad", "wgrad")
HEURISTICS = ("normal", "performance", "reference")
VALUES = {
    d: [c for c in next(o for o in OPTIONS if o.name == f"conv_{d}_algo").choices if c not in HEURISTICS] for d in DIRECTIONS
}


@dataclass(frozen=True)
class Layer:
    name: str
    n: int
    c: int
    k: int
    size: int
    window: int
    stride: int = 1
    groups: int = 1

    def tensors(self, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Input, weight and the gradient of the output, normally distributed."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.n, self.c, self.size, self.size, generator=generator)
        w = torch.randn(self.k, self.c // self.groups, self.window, self.window, generator=generator)
        out = (self.size + 2 * self.padding - self.window) // self.stride + 1
        return x, w, torch.randn(self.n, self.k, out, out, generator=generator)

    @property
    def padding(self) -> int:
        return self.window // 2


LAYERS = (
    # ResNet-50 (He et al., arXiv 1512.03385) and VGG-16 (arXiv 1409.1556) at 224 x 224
    Layer("resnet conv1", 8, 3, 64, 224, 7, 2),
    Layer("resnet 3x3 64", 8, 64, 64, 56, 3),
    Layer("resnet 3x3 128", 8, 128, 128, 28, 3),
    Layer("resnet 3x3 256", 8, 256, 256, 14, 3),
    Layer("resnet 3x3 512", 8, 512, 512, 7, 3),
    Layer("resnet 3x3 128 s2", 8, 128, 128, 56, 3, 2),
    Layer("resnet 1x1 64-256", 8, 64, 256, 56, 1),
    Layer("resnet 1x1 s2", 8, 256, 512, 56, 1, 2),
    Layer("vgg 3x3 256", 2, 256, 256, 56, 3),
    # AlexNet (Krizhevsky et al., 2012), its second layer without groups; MobileNet (arXiv 1704.04861); ConvNeXt (arXiv 2201.03545)
    Layer("alexnet 5x5", 8, 64, 192, 27, 5),
    Layer("mobilenet depthwise 3x3", 8, 128, 128, 56, 3, 1, 128),
    Layer("convnext depthwise 7x7", 8, 96, 96, 56, 7, 1, 96),
    Layer("dense 13x13", 2, 64, 64, 56, 13),
    Layer("replknet depthwise 31x31", 2, 128, 128, 56, 31, 1, 128),
    Layer("resnext grouped 3x3", 8, 128, 128, 56, 3, 1, 32),
)


@dataclass(frozen=True)
class Figure:
    layer: str
    direction: str
    algorithm: str
    ratio: float
    """torch's time over ours."""
    torch_ms: float
    error: float
    """Largest |error| against float64, in units of the largest result."""
    torch_error: float
    workspace: int


def call(layer: Layer, direction: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        if direction == "fprop":
            return conv2d(x, w, None, layer.stride, layer.padding, 1, layer.groups)
        mask = [direction == "dgrad", direction == "wgrad", False]
        stride, padding = [layer.stride] * 2, [layer.padding] * 2
        found = torch.ops.aten.convolution_backward(g, x, w, None, stride, padding, [1, 1], False, [0, 0], layer.groups, mask)
        return found[0] if direction == "dgrad" else found[1]

    return run


def figures(layer: Layer, direction: str, rounds: int) -> Iterator[Figure]:
    run, option = call(layer, direction), f"conv_{direction}_algo"
    tensors = layer.tensors(0)
    truth = run(*(t.double() for t in tensors))
    scale = truth.abs().max()
    contenders: dict[str, dict[str, Any]] = {}
    torch_error = float((run(*tensors) - truth).abs().max() / scale)
    for name in VALUES[direction]:
        with msctx.context(**{option: name}, fallback="silent") as ctx:
            result = run(*tensors)
        (row,) = ctx.choices()
        error = float((result - truth).abs().max() / scale)
        if row.provider == "msctx" and error <= row.error:
            contenders[name] = {"error": error, "workspace": row.workspace, "best": float("inf")}
    own = float("inf")
    spent = dict.fromkeys(contenders, 0)
    for i in range(rounds):
        tensors = layer.tensors(i)
        own = min(own, timed(run, tensors))
        for name, found in contenders.items():
            if found["best"] < 4 * own or spent[name] < 2:  # what is hopeless is not run again
                with msctx.context(**{option: name}, fallback="silent"):
                    found["best"] = min(found["best"], timed(run, tensors))
                spent[name] += 1
    for name, found in contenders.items():
        yield Figure(
            layer.name, direction, name, own / found["best"], own * 1e3, found["error"], torch_error, found["workspace"]
        )


def timed(run: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...]) -> float:
    start = time.perf_counter()
    run(*tensors)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", default="", help="only those whose name has this in it")
    parser.add_argument("--json", default="", metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    jobs = [(layer, d) for layer in LAYERS if given.layers in layer.name for d in DIRECTIONS]
    found = [f for job in track(jobs, "measuring", console=Console(stderr=True)) for f in figures(*job, given.rounds)]
    for direction in DIRECTIONS:
        table = Table(title=f"{direction}: torch's time / ours (error), {given.threads} threads")
        table.add_column("layer")
        table.add_column("torch")
        for name in VALUES[direction]:
            table.add_column(name)
        for layer in dict.fromkeys(f.layer for f in found):
            mine = {f.algorithm: f for f in found if (f.layer, f.direction) == (layer, direction)}
            one = next(iter(mine.values()))
            cells = [f"{mine[n].ratio:.2f} ({mine[n].error:.0e})" if n in mine else "" for n in VALUES[direction]]
            table.add_row(layer, f"{one.torch_ms:.2f} ms ({one.torch_error:.0e})", *cells)
        Console(width=200).print(table)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([asdict(f) for f in found], file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
