"""Whether products of parts harm a training: loss curves of two small networks from one seed, in float32 and in both classes.

A character transformer learns a text that comes with Python (``pydoc_data.topics``, Python's own reference), and the ConvNet of
configs/experiments/digits.py scikit-learn's digits. *Other order* is float32 with additions in another order: what it differs by is
the effect of rounding alone. The loss on data that no step has seen is computed under the same options.

    python bench/learning.py --out RAW.json
    python bench/learning.py --emulated --out RAW.json     # a matrix unit in software: same values, slow
    python bench/learning.py --summary RAW.json > bench/results/NAME-learning.json
    python bench/learning.py --docs bench/results/NAME-learning.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import contest
import summary

EMULATED = "amx_fp16_emulated"
GRADES = {"amx_fp16": "fp16x3", "amx": "int8x6"}
"""Matrix unit → its products with errors like float32's own."""
FLOAT32, ORDER, GRADE, TF32 = "float32", "float32, other order", "fp32-grade", "TF32 class"
CLASSES = {ORDER: "strict", GRADE: "fp32-grade", TF32: "tf32"}
"""Side → the arithmetic that its calls are to have, as `choices()` has it."""
BY_NAME = {"conv_fprop_algo": "implicit_precomp_gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
SHOWN = 50
"""Points of a curve."""


def sides(unit: str) -> dict[str, dict[str, Any]]:
    """What is compared → its options; *unit*: the matrix unit, empty where there is none."""
    found: dict[str, dict[str, Any]] = {FLOAT32: {}, ORDER: {"matmul_algo": "strict", **BY_NAME, "allow_fp32_emulation": False}}
    if unit:
        found[GRADE] = {"matmul_algo": GRADES[unit], **BY_NAME}
        found[TF32] = {"matmul_algo": "tf32", **BY_NAME, "conv_allow_tf32": True}
    return found


# --- the subjects -----------------------------------------------------------------------------------------------------

Batch = tuple[Any, Any]
Subject = tuple[Any, Iterator[Batch], Batch]
"""A model, the batches of its training, and data that it does not see there."""


def characters(steps: int) -> Subject:
    """Two blocks of 64 features, on windows of 64 characters; the last tenth of the text is held out."""
    from pydoc_data.topics import topics

    import networks
    import torch

    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    width, cut, random = 64, len(codes) * 9 // 10, torch.Generator().manual_seed(1)

    def windows(first: int, last: int, count: int) -> Batch:
        starts = torch.randint(first, last - width - 1, (count,), generator=random)
        found = torch.stack([codes[start : start + width + 1] for start in starts])
        return found[:, :-1], found[:, 1:]

    held_out = windows(cut, len(codes), 32)
    torch.manual_seed(0)
    return networks.Decoder(len(letters), 64, width, 2, 4), (windows(0, cut, 8) for _ in range(steps)), held_out


def digits(steps: int) -> Subject:
    import torch

    sys.path.append(str(contest.ROOT / "configs" / "experiments"))
    import digits as experiment

    training, test = (data.tensors for data in experiment.data())
    random = torch.Generator().manual_seed(1)

    def batches() -> Iterator[Batch]:
        for _ in range(steps):
            chosen = torch.randint(len(training[0]), (32,), generator=random)
            yield training[0][chosen], training[1][chosen]

    torch.manual_seed(0)
    return experiment.network(), batches(), test


SUBJECTS: dict[str, Callable[[int], Subject]] = {"characters": characters, "digits": digits}
STEPS = 400


def trained(name: str, options: dict[str, Any], steps: int) -> dict[str, Any]:
    """The losses of a training, that on the data held out, and the calls by their arithmetic."""
    import torch
    from torch.nn.functional import cross_entropy

    import msctx

    model, batches, (held_x, held_y) = SUBJECTS[name](steps)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_of(x: Any, y: Any) -> Any:
        return cross_entropy(model(x).flatten(0, -2), y.flatten())

    losses = []
    torch.manual_seed(2)  # of dropout
    with msctx.context(**options, **({"fallback": "silent"} if options else {})) as ctx:
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            held_out = loss_of(held_x, held_y).item()
    calls: dict[str, int] = {}
    for row in ctx.choices() if options else ():
        calls[row.math] = calls.get(row.math, 0) + row.calls
    return {"losses": losses, "held_out": held_out, "calls": calls}


# --- the script -------------------------------------------------------------------------------------------------------


def use_emulated() -> None:
    """A matrix unit in software, for this process and those that it starts."""
    os.environ.setdefault("MSCTX_ISA", EMULATED)
    sys.path.append(str(contest.ROOT / "tests"))
    import variants

    variants.use_emulated()


def work(given: argparse.Namespace) -> None:
    requested = json.loads(given.work)
    if requested["emulated"]:
        use_emulated()
    print(json.dumps(trained(requested["subject"], requested["options"], STEPS)), flush=True)


def collect(given: argparse.Namespace) -> dict[str, Any]:
    if given.emulated:
        use_emulated()
    result = contest.begun(subjects={}) | {"processes": 1}
    isa = result["machine"]["isa"].removesuffix("_emulated")
    for name in contest.requested(SUBJECTS, given):
        of_side = result["subjects"].setdefault(name, {})
        for side, options in sides(isa if isa in GRADES else "").items():
            requested = {"subject": name, "options": options, "emulated": given.emulated}
            (of_side[side],) = contest.process(__file__, json.dumps(requested), "--threads", given.threads[0])
            contest.keep(given.out, result)
    return result


def place(number: int, steps: int) -> float:
    """The step at a point of a curve."""
    return max(steps // SHOWN, 1) * (number + 0.5)


def curve(losses: list[float]) -> list[float]:
    """The mean of the losses around each point."""
    size = max(len(losses) // SHOWN, 1)
    return [sum(losses[i : i + size]) / size for i in range(0, len(losses) - size + 1, size)]


def differences(of_side: dict[str, Any], side: str) -> list[float]:
    """By how much the loss of each step is another one than in float32, as a part of that."""
    return [abs(a - b) / abs(a) for a, b in zip(of_side[FLOAT32]["losses"], of_side[side]["losses"], strict=True)]


def reduced(results: summary.Results) -> summary.Summary:
    """A row for each subject and side, with the curves of its losses and of their differences from float32."""
    (result,) = results
    rows: list[dict[str, Any]] = []
    for name, of_side in result["subjects"].items():
        for side, found in of_side.items():
            losses, calls = curve(found["losses"]), found["calls"]
            row = {"subject": name, "side": side, "steps": len(found["losses"]), "highest": max(found["losses"])}
            row |= {"last": losses[-1], "held_out": found["held_out"]}
            if side != FLOAT32:
                apart = differences(of_side, side)
                row |= {"difference": max(apart), "share": calls.get(CLASSES[side], 0) / sum(calls.values())}
                row |= {"differences": curve(apart)}
            rows.append(row | {"losses": losses})
    return summary.head(results, rows=rows)


def described(of: summary.Summary) -> str:
    isa = of["machine"]["isa"]
    unit = f"; the matrix unit ({isa.removesuffix('_emulated')}) is software" if isa.endswith("_emulated") else ""
    return summary.described(of) + unit


def tables(of: summary.Summary) -> summary.Tables:
    """A line for each side, with the losses of both subjects."""
    steps, lines = {}, {}
    for row in of["rows"]:
        steps[row["subject"]] = row["steps"]
        apart = [f"{row['difference']:.0e}", f"{math.floor(100 * row['share'])} %"] if "share" in row else ["", ""]
        lines.setdefault(row["side"], []).extend([f"{row['last']:.4f}", f"{row['held_out']:.4f}", *apart])
    heads = [f"{name}: {what}" for name in steps for what in ("last steps", "held out", "largest difference", "of that class")]
    told = ", ".join(f"{name}: {count} steps" for name, count in steps.items())
    last = f"{described(of)}. {told}; one run for each line, from the same seed. "
    last += "Differences are those of one step's loss, as a part of it."
    return {"learning": [*summary.markdown(["loss", *heads], ([side, *cells] for side, cells in lines.items())), "", last]}


def main() -> None:
    parser = contest.arguments(__doc__, SUBJECTS, [1])
    parser.add_argument("--emulated", action="store_true", help="a matrix unit in software")
    summary.do(parser.parse_args(), work, collect, reduced, tables)


if __name__ == "__main__":
    main()
