"""Two runs side by side, step by step, until they differ; or one run beside a certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msctx.errors import EntryFailed
from msctx.verify import closer
from msctx.verify.against import Pair
from msctx.verify.certificate import Certificate
from msctx.verify.match import PARTED, VALUE, Difference, first_difference
from msctx.verify.result import ENDED, MODULE, Finding, Result
from msctx.verify.rows import Ran
from msctx.verify.runs import Side, Subject, running
from msctx.verify.wire import Message

Watch = Callable[[str], object]
Keep = Callable[[Message], object]


def verify(subject: Subject, pair: Pair, steps: int | None, watch: Watch, keep: Keep) -> Result:
    """Run both, and compare every operator of the first *steps* steps, or of all; then look closer at the one that differs.

    Args:
        watch: called with a line on what is done.
        keep: called with what the second run ran under, and the report of each of its steps.

    Raises:
        EntryFailed: the entry raised, in both runs alike.
        MsctxError: an option or the entry cannot be used.
    """
    result = Result(pair.against, (pair.sides[0].name, pair.sides[1].name), notes=[pair.note] if pair.note else [])
    difference: Difference | None = None
    rows: list[list[Ran]] = []

    def explained(reports: Sequence[Message]) -> Finding | None:
        nonlocal difference, rows
        rows = [[] if any(each.has_died for each in both) else one.rows() for one in both]
        difference = first_difference(*rows)
        if difference is None or difference.kind == PARTED:
            return _ended(reports, result) or (_finding(result, difference, rows) if difference else None)
        return _finding(result, difference, rows)

    with running(subject, pair.sides, (None, None)) as both:
        surroundings = [one.begin() for one in both]
        keep(surroundings[-1])
        _compare(result, lambda: [one.go() for one in both], steps, watch, keep, explained)
    if difference is not None and result.finding is not None and result.finding.kind not in (ENDED, VALUE):
        watch("one more pair of runs, for the lines and the values")
        closer.look(subject, pair.sides, result, difference, rows)
    return result


def replay(subject: Subject, certificate: Certificate, name: str, steps: int | None, watch: Watch, keep: Keep) -> Result:
    """Run once, and compare the digests with those of a certificate; as :func:`verify`."""
    result = Result(name, ("the certificate", "this run"))
    steps = min(steps or certificate.steps, certificate.steps)
    with running(subject, [Side("this run")], [None]) as (run,):
        surroundings = run.begin()
        result.settings = certificate.differing(surroundings)
        keep(surroundings)
        _compare(result, lambda: [certificate.step(result.steps), run.go()], steps, watch, keep, lambda reports: None)
    return result


def _compare(
    result: Result,
    go: Callable[[], list[Message]],
    steps: int | None,
    watch: Watch,
    keep: Keep,
    explained: Callable[[Sequence[Message]], Finding | None],
) -> None:
    """Go on until the reports differ, as *explained* can tell best, or there are no more."""
    while result.finding is None and (steps is None or result.steps < steps):
        reports = go()
        keep(reports[-1])
        watch(f"step {result.steps}: {result.operators + reports[0]['count']} operators")
        _note_unread(result, reports)
        if any(reports[0][name] != reports[1][name] for name in ("digest", "count")):
            result.finding = explained(reports) or _ended(reports, result) or _module(result, reports)
        elif any(_ending(reports[0], name) != _ending(reports[1], name) for name in ("status", "reason")):
            result.finding = _ended(reports, result)
        else:
            result.operators += reports[0]["count"]
            if "ended" in reports[0]:
                if _ending(reports[0], "status") == "failed":
                    raise EntryFailed(f"the entry raised in both runs, which agree up to there\n{reports[0]['ended']['error']}")
                return
            result.steps += 1


def _ending(report: Message, name: str) -> str | None:
    ended = report.get("ended")
    return ended.get(name) if ended else None


def _ended(reports: Sequence[Message], result: Result) -> Finding | None:
    """Where one run has ended and the other has not, or not so."""
    for number, (report, name) in enumerate(zip(reports, result.names, strict=True)):
        other, its_name = reports[1 - number], result.names[1 - number]
        if _ending(report, "status") == "failed" and _ending(report, "reason") != _ending(other, "reason"):
            return Finding(ENDED, result.steps, reason=f"{name} failed: {_ending(report, 'reason')}")
        if "ended" in report and "ended" not in other:
            return Finding(ENDED, result.steps, reason=f"{name} ended, and {its_name} goes on", only_in=its_name)
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
    """Where only digests of what ran in a module without a break are there."""
    ours, theirs = (report["segments"] for report in reports)
    for number in range(max(len(ours), len(theirs))):
        if ours[number : number + 1] != theirs[number : number + 1]:
            direction, module = (theirs[number : number + 1] or ours[number : number + 1])[0][:2]
            return Finding(MODULE, result.steps, module=module, direction=direction)
    return Finding(MODULE, result.steps)


def _note_unread(result: Result, reports: Sequence[Message]) -> None:
    unread = sum(report["unread"] for report in reports)
    lost = sum(report.get("lost", 0) for report in reports)
    for count, text in (
        (unread, "not every tensor was compared: the collector reads dense ones that are not quantized"),
        (lost, "some operators were lost: the collector had no room for them"),
    ):
        if count and text not in result.notes:
            result.notes.append(text)
