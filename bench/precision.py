"""What each precision_mode costs and gives: the time of a step in float32 over its time, with the error against float64 beside it.

A step is forward and backward pass of a whole network, in its faster memory format. Errors are those of the last weight's gradient,
over its largest value; dtypes are what matrix operators computed in.

    python bench/precision.py --threads 1 --out RAW.json
    python bench/precision.py --summary RAW.json > bench/results/NAME-precision.json
    python bench/precision.py --docs bench/results/NAME-precision.json
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import contest
import figures
import summary
from networks import NETWORKS, encoder

MODES = (
    "force_fp16",
    "force_fp32",
    "allow_fp32_to_fp16",
    "allow_fp32_to_bf16",
    "allow_mix_precision_fp16",
    "allow_mix_precision_bf16",
    "must_keep_origin_dtype",
)
SCALE = 1024.0
"""Of the loss, as a GradScaler would: gradients in float16 must not vanish."""
FORMATS = ("channels_first", "channels_last")


def digits() -> tuple[Any, Any]:
    """The ConvNet of configs/experiments/digits.py, on 64 images of 8 x 8."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for c, k in ((1, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10)), torch.randn(64, 1, 8, 8)


def resnet() -> tuple[Any, Any]:
    import torch

    return NETWORKS["resnet50"](), torch.randn(4, 3, 224, 224)


def transformer() -> tuple[Any, Any]:
    """On 4 sequences of 128."""
    import torch

    return encoder(dropout=0.0), torch.randn(4, 128, 512)


SUBJECTS: dict[str, Callable[[], tuple[Any, Any]]] = {"digits": digits, "resnet50": resnet, "transformer": transformer}


def gradient(model: Any, x: Any) -> Any:
    """One step; returns the last weight's gradient."""
    import torch

    for p in model.parameters():
        p.grad = None
    y = model(x)
    y = y if y.dtype.itemsize == 8 else y.float()
    directions = torch.arange(y.numel(), dtype=y.dtype).sin().view_as(y)  # no sum that a normalization makes constant
    (y * directions).mean().mul(SCALE).backward()
    *_, weight = (p for p in model.parameters() if p.dim() > 1)
    return weight.grad


def step_of(model: Any, x: Any) -> Callable[[int], Any]:
    return lambda number: gradient(model, x)


def measure(name: str, seconds: float) -> dict[str, Any]:
    import torch

    import msctx

    torch.manual_seed(0)
    plain, x = SUBJECTS[name]()
    kinds = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
    formats = FORMATS if x.dim() == 4 else FORMATS[:1]
    images = {f: x.contiguous(memory_format=kinds[f]) if x.dim() == 4 else x for f in formats}
    models = {f: copy.deepcopy(plain).to(memory_format=kinds[f]) if x.dim() == 4 else copy.deepcopy(plain) for f in formats}
    truth = gradient(copy.deepcopy(plain).double(), x.double())
    scale = float(truth.abs().max())
    contenders, errors, dtypes = [], {}, {}
    for mode in ("float32", "again", *MODES):
        scope = nullcontext() if mode in ("float32", "again") else msctx.context(precision_mode=mode)
        for f in formats:
            model = copy.deepcopy(models[f])
            if f == formats[0]:
                with scope:
                    found = gradient(model, images[f])
                errors[mode] = float((found - truth).abs().max()) / scale
                rows = () if isinstance(scope, nullcontext) else scope.precisions()
                dtypes[mode] = sorted({r.dtype for r in rows if r.operator in ("conv2d", "linear", "matmul", "addmm")})
            contenders.append(contest.Contender(mode, f, lambda scope=scope: scope, step_of(model, images[f])))
    return {"ms": contest.fastest(contenders, seconds), "errors": errors, "dtypes": dtypes}


def work(given: argparse.Namespace) -> None:
    print(json.dumps({"subject": given.work, **measure(given.work, given.seconds)}), flush=True)


def of_processes(found: list[dict[str, Any]]) -> dict[str, Any]:
    each = {mode: [contest.ratio(f["ms"], mode, "float32") for f in found] for mode in ("again", *MODES)}
    return {
        "ms": statistics.median(min(f["ms"]["float32"].values()) for f in found),
        "ratios": {mode: statistics.median(ratios) for mode, ratios in each.items()},
        "each": each,
        "errors": found[0]["errors"],
        "dtypes": found[0]["dtypes"],
    }


def collect(given: argparse.Namespace) -> dict[str, Any]:
    return contest.collected(__file__, given, contest.requested(SUBJECTS, given), ("subject",), of_processes, "subjects")


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each step and number of threads."""
    rows = []
    for row in (row for result in results for row in result["subjects"]):
        each = row.get("each", {})
        ratios = {mode: figures.of(each.get(mode), ratio) for mode, ratio in row["ratios"].items()}
        rows.append({name: row[name] for name in ("subject", "threads", "ms")} | {"ratios": ratios, "errors": row["errors"]})
    return summary.head(results, kept=all("each" in row for result in results for row in result["subjects"]), rows=rows)


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each mode."""
    rows, processes = of["rows"], of["processes"]

    def cell(row: dict[str, Any], mode: str) -> str:
        shown = figures.text(row["ratios"][mode], None if mode == "again" else row["ratios"]["again"], processes)
        return shown if mode == "again" else f"{shown}, {row['errors'][mode]:.0e}"

    head = ["`precision_mode`", *(f"{row['subject']}, {summary.threads(row['threads'])}" for row in rows)]
    lines = [["none: float32", *(f"{row['ms']:.0f} ms, {row['errors']['float32']:.0e}" for row in rows)]]
    lines += [[f"`{mode}`", *(cell(row, mode) for row in rows)] for mode in MODES]
    lines += [["A/A", *(cell(row, "again") for row in rows)]]
    last = f"{summary.described(of)}; {processes} or more processes. {figures.legend(of['kept'], processes)}"
    return {"precision-speed": [*summary.markdown(head, lines), "", last]}


def main() -> None:
    summary.do(contest.arguments(__doc__, SUBJECTS, [1]).parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
