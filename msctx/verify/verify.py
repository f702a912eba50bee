"""Two runs side by side, step by step, until they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msctx.errors import EntryFailed
from msctx.verify import closer
from msctx.verify.against import Pair
from msctx.verify.match import PARTED, VALUE, Difference, first_difference
from msctx.verify.result import ENDED, MODULE, Finding, Result
from msctx.verify.rows import Ran
from msctx.verify.runs import Subject, running
from msctx.verify.wire import Message

Watch = Callable[[str], object]


def verify(subject: Subject, pair: Pair, steps: int | None, watch: Watch, keep: Callable[[Message], object]) -> Result:
    """Run both, and compare every operator of the first *steps* steps, or of all; then look closer at the one that differs.

    Args:
        watch: called with a line on what is done.
        keep: called with what the first run ran under, and the report of each of its steps.

    Raises:
        EntryFailed: the entry raised, in both runs alike.
        MsctxError: an option or the entry cannot be used.
    """
    result = Result(pair.against, (pair.sides[0].name, pair.sides[1].name), notes=[pair.note] if pair.note else [])
    difference: Difference | None = None
    rows: list[list[Ran]] = []
    with running(subject, pair.sides, (None, None)) as both:
        surroundings = [one.begin() for one in both]
        keep(surroundings[0])
        while result.finding is None and (steps is None or result.steps < steps):
            reports = [one.go() for one in both]
            keep(reports[0])
            watch(f"step {result.steps}: {result.operators + reports[0]['count']} operators")
            note_unread(result, reports)
            if any(reports[0][name] != reports[1][name] for name in ("digest", "count")):
                rows = [[] if any(each.has_died for each in both) else one.rows() for one in both]
                difference = first_difference(*rows)
                result.finding = _ended(reports, result) if difference is None or difference.kind == PARTED else None
                result.finding = result.finding or (
                    _finding(result, difference, rows) if difference else _module(result, reports)
                )
            elif any(_ending(reports[0], name) != _ending(reports[1], name) for name in ("status", "reason")):
                result.finding = _ended(reports, result)
            else:
                result.operators += reports[0]["count"]
                if both[0].has_ended:
                    _raise_failure(reports[0])
                    break
                result.steps += 1
    if difference is not None and result.finding is not None and result.finding.kind not in (ENDED, VALUE):
        watch("one more pair of runs, for the lines and the values")
        closer.look(subject, pair.sides, result, difference, rows)
    return result


def _ending(report: Message, name: str) -> str | None:
    ended = report.get("ended")
    return ended.get(name) if ended else None


def _raise_failure(report: Message) -> None:
    if _ending(report, "status") == "failed":
        raise EntryFailed(f"the entry raised in both runs, which agree up to there\n{report['ended']['error']}")


def _ended(reports: Sequence[Message], result: Result) -> Finding | None:
    """Where one run has ended and the other has not, or not so."""
    for report, name, other in zip(reports, result.names, reversed(result.names), strict=True):
        status = _ending(report, "status")
        if status == "failed" and _ending(report, "reason") != _ending(reports[1 - reports.index(report)], "reason"):
            return Finding(ENDED, result.steps, reason=f"{name} failed: {_ending(report, 'reason')}", only_in=name)
        if status and "ended" not in reports[1 - reports.index(report)]:
            return Finding(ENDED, result.steps, reason=f"{name} ended, and {other} goes on", only_in=other)
    return None


def _finding(result: Result, difference: Difference, rows: Sequence[Sequence[Ran]]) -> Finding:
    pair = [row for row in difference.rows if row is not None]
    row, side = pair[0], difference.rows.index(pair[0])
    return Finding(
        difference.kind,
        result.steps,
        operator=row.operator,
        module=row.module,
        direction=row.direction,
        node=row.node,
        occurrence=closer.call_of(row, rows[side])[2],
        inputs=[str(row.inputs[i]) for i in difference.inputs if i < len(row.inputs)],
        outputs=[str(row.outputs[i]) for i in difference.outputs if i < len(row.outputs)],
        algorithms=[one.algorithm or "torch" for one in pair],
        only_in=result.names[side] if len(pair) == 1 else "",
    )


def _module(result: Result, reports: Sequence[Message]) -> Finding:
    return module_finding(result.steps, *(report["segments"] for report in reports))


def module_finding(step: int, ours: Sequence[Sequence[object]], theirs: Sequence[Sequence[object]]) -> Finding:
    """Where only digests of what ran in a module without a break are there."""
    for number in range(max(len(ours), len(theirs))):
        if list(ours[number : number + 1]) != list(theirs[number : number + 1]):
            direction, module = (ours[number : number + 1] or theirs[number : number + 1])[0][:2]
            return Finding(MODULE, step, module=str(module), direction=str(direction))
    return Finding(MODULE, step)


def note_unread(result: Result, reports: Sequence[Message]) -> None:
    unread = sum(report["unread"] for report in reports)
    lost = sum(report.get("lost", 0) for report in reports)
    for count, text in (
        (unread, "not every tensor was compared: the collector reads those of the host that are dense and not quantized"),
        (lost, "some operators were lost: the collector had no room for them"),
    ):
        if count and text not in result.notes:
            result.notes.append(text)
