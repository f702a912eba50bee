"""Convolutions on a GPU: each algorithm by name beside torch's own path."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import contest
import layers
import torch
from layers import DEPTHWISE_3, DEPTHWISE_7, DEPTHWISE_LARGE, OTHERS, STRIDED, WINDOW_1, WINDOW_3, Layer, Tensors

import msctx
from msctx.compare import timing
from msctx.compare.timing import Entrant
from msctx.native.policy_and_choices import Choice
from msctx.options import OPTIONS

Say = Callable[[dict[str, Any]], None]
Case = tuple[str, Callable[[Say], None]]
"""Its name, and what tells of each row as it is found."""


@dataclass(frozen=True)
class Arithmetic:
    name: str
    dtype: torch.dtype
    bound: float
    """Of |error| in units of the largest result, that of Winograd's transforms: what is beyond it is wrong, and not timed."""
    tf32: bool = False


STRICT, TF32 = Arithmetic("float32", torch.float32, 1e-4), Arithmetic("TF32", torch.float32, 1e-2, tf32=True)
BFLOAT16, FLOAT16 = Arithmetic("bfloat16", torch.bfloat16, 6e-2), Arithmetic("float16", torch.float16, 1e-2)
FIRST, LAST = "channels_first", "channels_last"
MODES = (
    *((STRICT, FIRST), (TF32, FIRST), (BFLOAT16, LAST), (STRICT, LAST)),
    *((FLOAT16, LAST), (TF32, LAST), (BFLOAT16, FIRST), (FLOAT16, FIRST)),
)
"""The most important first."""
LAYERS = (
    *((WINDOW_3[0], 64), (WINDOW_3[2], 64), (WINDOW_1[0], 64), (STRIDED[0], 64), (DEPTHWISE_7[0], 64), (OTHERS[0], 64)),
    *((OTHERS[2], 64), (DEPTHWISE_3[0], 64), (WINDOW_3[1], 64), (WINDOW_3[3], 64), (WINDOW_1[3], 64)),
    *((DEPTHWISE_LARGE[0], 16), (Layer("dense 15x15", 64, 64, 56, 15), 8)),
)
"""With the batch size: so much that a GPU is busy for longer than it takes to launch; the most important first."""
TRIED = ((Layer("tried 3x3", 8, 8, 12, 3), 2), (Layer("tried depthwise 3x3", 8, 8, 12, 3, 1, 8), 2))
"""In place of them on a CPU."""
ROUND = 3
"""Inputs that take turns: a run is one convolution of each, back to back."""
SECONDS = 0.25
"""For the rounds of one problem; there are seven even if they take longer."""
HOPELESS = 8.0
"""How many times slower than torch what is timed but once is."""
TORCH, AGAIN, BENCHMARK = "torch", "torch again", "torch, benchmark"
DIRECTIONS, HEURISTICS = ("fprop", "dgrad", "wgrad"), ("normal", "performance")
CHOICES = {d: OPTIONS[f"conv_{d}_algo"].choices or () for d in DIRECTIONS}
VALUES = {d: [name for name in CHOICES[d] if name not in (*HEURISTICS, "reference")] for d in DIRECTIONS}
"""Direction → its algorithms."""
plans_of_benchmark = ThreadPoolExecutor(1)
"""torch keeps the plans of problems by thread, under a key without cudnn.benchmark: in one thread the first would count."""


@dataclass(frozen=True)
class MeasuredProblem:
    layer: Layer
    batch: int
    direction: str
    arithmetic: Arithmetic
    layout: str
    device: torch.device

    def __str__(self) -> str:
        return f"{self.layer.name}, {self.direction}, {self.arithmetic.name}, {self.layout}"

    def of_each(self, sets: list[Tensors]) -> list[torch.Tensor]:
        call = layers.call(self.layer, self.direction)
        return [call(*given) for given in sets]

    def inputs(self, seed: int) -> Tensors:
        made = layers.tensors(self.layer, self.batch, seed, self.layout, device=self.device)
        x, w, g = (tensor.to(self.arithmetic.dtype) for tensor in made)
        return x, w, g


@dataclass
class Figure:
    """How something did on a problem. What has no ratio was not timed: *why*."""

    name: str
    ran: str = "torch"
    provider: str = "torch"
    ratio: float | None = None
    """torch's time over its own, the median of rounds."""
    rounds: int = 0
    ms: float | None = None
    """Of one convolution."""
    error: float | None = None
    """Largest |error| against float64, in units of the largest result."""
    why: str = ""


def settle(device: torch.device) -> None:
    """Wait for the device: what went wrong on it is told here at the latest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextmanager
def torchs_own(tf32: bool, benchmark: bool = False) -> Iterator[None]:
    """torch's own path, by the flags that programs set; those of the newer API would make these ones raise."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, cudnn.benchmark = tf32, benchmark
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before


@dataclass(frozen=True)
class Contender:
    name: str
    scope: Callable[[], AbstractContextManager[Any]]
    run: Callable[[list[Tensors]], list[torch.Tensor]]
    algorithm: str = ""
    """Of ours, where the scope is a context."""


def contenders(problem: MeasuredProblem, folder: str) -> list[Contender]:
    """The first is what the others are compared with; what ``performance`` measures is kept in *folder*, away from the user's own."""
    tf32, each = problem.arithmetic.tf32, problem.of_each

    def ours(algorithm: str, **options: Any) -> Contender:
        by_name = {f"conv_{problem.direction}_algo": algorithm, "conv_allow_tf32": tf32}
        context = msctx.context(**by_name, fallback="silent", **options)
        return Contender(algorithm, lambda: context, each, algorithm)

    return [
        *(Contender(name, lambda: torchs_own(tf32), each) for name in (TORCH, AGAIN)),
        Contender(BENCHMARK, lambda: torchs_own(tf32, True), lambda sets: plans_of_benchmark.submit(each, sets).result()),
        *map(ours, VALUES[problem.direction]),
        ours("performance", tuning_file=f"{folder}/tuning.json"),
    ]


def tried(contender: Contender, problem: MeasuredProblem, sets: list[Tensors], truth: torch.Tensor, longest: float) -> Figure:
    """What runs, whether it is right, and how many ms it takes, warm: alone, and in a row unless that is more than *longest*."""
    figure = Figure(contender.name)

    def ms(given: list[Tensors]) -> float:
        return timing.seconds_of(lambda: contender.run(given), problem.device) / len(given) * 1e3

    try:
        with contender.scope() as context:
            (computed,) = contender.run(sets[:1])
            settle(problem.device)
            if contender.algorithm:
                row = next(row for row in context.choices() if row.direction == problem.direction)
                figure.ran, figure.provider = row.ran, row.provider
                figure.why = passed_over(contender.algorithm, row, problem)
            if not figure.why:
                error, bound = contest.error_of(computed.double(), truth), problem.arithmetic.bound
                figure.error = error if math.isfinite(error) else None
                figure.why = "" if error <= bound else f"wrong: an error of {error:.0e}, beyond {bound:.0e}"
            if not figure.why:
                figure.ms = ms(sets[:1])
                if figure.ms > longest:  # or it was held up
                    figure.ms = min(figure.ms, ms(sets[:1]))
                if figure.ms <= longest:
                    figure.ms = ms(sets)
    except Exception as error:
        figure.ms, figure.why = None, told(error)
        settle(problem.device)
    return figure


def passed_over(algorithm: str, row: Choice, problem: MeasuredProblem) -> str:
    """Why what ran is not timed, if so."""
    if algorithm not in (row.ran, *HEURISTICS):
        return next(iter(row.reasons), "another ran")
    is_elsewhere = problem.arithmetic.tf32 and row.math == "strict" and algorithm not in HEURISTICS
    return "no TF32: as in float32" if is_elsewhere else ""


def figures_of(problem: MeasuredProblem, folder: str) -> list[Figure]:
    """The ratios of what was right, in turns; of what takes many times as long as torch by the one time that there is."""
    sets = [problem.inputs(seed) for seed in range(ROUND)]
    x, w, g = (tensor.double().contiguous() for tensor in sets[0])
    (truth,) = problem.of_each([(x, w, g)])
    every, figures = contenders(problem, folder), dict[str, Figure]()
    for one in every:
        first = figures[TORCH].ms if figures else None
        figures[one.name] = tried(one, problem, sets, truth, HOPELESS * (first or math.inf))
    racing = []
    for one in every if (first := figures[TORCH].ms) is not None else ():
        figure = figures[one.name]
        if figure.ms is not None:
            figure.ratio, figure.rounds = first / figure.ms, 1
            if figure.ms < HOPELESS * first:
                racing.append(Entrant(one.name, one.scope, partial(one.run, sets)))
    for name, found in timing.interleaved(racing, SECONDS, problem.device).items() if racing else ():
        figure = figures[name]
        if isinstance(found, Exception):
            figure.ratio, figure.ms, figure.rounds, figure.why = None, None, 0, told(found)
        else:
            figure.ratio, figure.rounds, figure.ms = found.ratio, found.rounds, found.seconds / ROUND * 1e3
    return [*figures.values()]


def figures(device: torch.device) -> list[Case]:
    """Problems that matter less come later: time may not last for all."""
    places = itertools.product(enumerate(TRIED if device.type == "cpu" else LAYERS), enumerate(MODES))
    # as far back as its layer, or three layers for each mode
    ordered = sorted(places, key=lambda pair: pair[0][0] + 3 * pair[1][0])
    problems = [
        MeasuredProblem(layer, batch, direction, arithmetic, layout, device)
        for (_, (layer, batch)), (_, (arithmetic, layout)) in ordered
        for direction in DIRECTIONS
    ]

    def case(problem: MeasuredProblem) -> Case:
        def run(say: Say) -> None:
            with tempfile.TemporaryDirectory() as folder:
                found = [asdict(figure) for figure in figures_of(problem, folder)]
            about = {"what": str(problem), "direction": problem.direction, "arithmetic": problem.arithmetic.name}
            say({**about, "bound": problem.arithmetic.bound, "figures": found})

        return str(problem), run

    return [case(problem) for problem in problems]
