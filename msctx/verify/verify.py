"""Compares two runs operator by operator, until they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from msctx.errors import EntryError, EntryFailed
from msctx.verify.result import Finding, Result
from msctx.verify.rows import PLACE, difference, differing
from msctx.verify.runs import Process, Side, running

Watch = Callable[[str], object]
UNREAD = "not every tensor was compared: the collector reads dense ones that are not quantized"
Call = tuple[str, str, int]
"""An operator, its module, and how many of these ran before it in the step."""


def verify(file: str | None, against: str, sides: Sequence[Side], steps: int | None, watch: Watch) -> Result:
    """Compare the first *steps* steps, or all; *watch* is called with a line on the progress.

    Raises:
        EntryFailed: the entry raised, in both runs alike.
        EntryError: nothing was compared.
    """
    is_compiled = len(sides) == 1
    result = Result(against, ("eager", "compiled") if is_compiled else [side.name for side in sides])
    result.unit = "calls of modules" if is_compiled else "operators"
    with running(file, sides, {"compiled": True} if is_compiled else {}) as runs:
        call = _compared(runs, result, steps, watch)
    if call is not None and result.finding is not None:
        watch("one more pair of runs, for the lines and the values")
        _look(file, sides, result.finding, call)
    if result.finding is None and not result.operators:
        raise EntryError("; ".join(["nothing was compared", f"the entry's own process had no {result.unit}", *result.notes]))
    return result


def _compared(runs: Sequence[Process], result: Result, steps: int | None, watch: Watch) -> Call | None:
    """Complete the result; the operator at which two runs differ."""
    met: Counter[tuple[str, str]] = Counter()
    while steps is None or result.steps < steps:
        messages = [run.receive() for run in runs]
        one, other = messages[0], messages[-1]
        row = one.get("row") or other.get("row") or {}
        place = {name: row.get(name, "") for name in PLACE}
        call = place["operator"], place["module"], met[place["operator"], place["module"]]
        if one["does"] != other["does"]:
            texts = [f"{name} {message['does']}" for name, message in zip(result.names, messages, strict=True)]
            result.finding = Finding("diverged", result.steps, reason=", ".join(texts), **place)
            return call if row else None
        match one:
            case {"row": _}:
                if (found := difference(row, other["row"])) is not None:
                    result.finding = Finding(found[0], result.steps, inputs=found[1], **place)
                    return call
                met[call[:2]] += 1
                result.operators += 1
                result.note(UNREAD * any(digest is None for _, _, digest in row["outputs"]))
            case {"does": "ends the step"}:
                result.steps += 1
                met.clear()
                watch(result.amount)
            case {"note": note}:
                result.note(note)
            case {"finding": found}:
                result.finding = Finding("compiled", result.steps, **found)
                return None
            case {"error": error}:
                raise EntryFailed(error)  # in both runs
            case _:
                return None
    return None


def _look(file: str | None, sides: Sequence[Side], finding: Finding, call: Call) -> None:
    """Complete a finding with one more pair of runs, up to the operator."""
    with running(file, sides, {"step": finding.step, "call": call}) as runs:
        details = [(run.folder, message["detail"]) for run in runs if "detail" in (message := run.receive())]
        if details:
            finding.source = details[0][1]["called"]
            finding.forward = details[0][1]["line"] if finding.direction == "backward" else ""
        if len(details) < 2 or finding.kind == "diverged":
            return
        (mine, row), (its, other), values = *details, dict[str, str]()
        for side in ("inputs", "outputs") if finding.kind == "input" else ("outputs",):
            for number, (a, b) in enumerate(zip(row[side], other[side], strict=False)):
                if a["file"] and b["file"]:
                    first, second = (torch.from_numpy(np.load(path)) for path in (mine / a["file"], its / b["file"]))
                    values[f"{side[:-1]} {a['argument'] or number}"] = differing(first, second)
        arguments, others = row["attributes"], other["attributes"]
        values |= {n: f"{v} and {others.get(n)}" for n, v in arguments.items() if v != others.get(n)}
        finding.values = {name: text for name, text in values.items() if text}
