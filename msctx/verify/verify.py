"""Runs side by side, step by step, until they differ; or one run beside a certificate."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from msctx.errors import EntryError, EntryFailed
from msctx.verify import closer, values
from msctx.verify.against import Against
from msctx.verify.certificate import Certificate
from msctx.verify.match import PARTED, STATE, Difference, first_difference
from msctx.verify.result import ENDED, MODULE, Finding, Result
from msctx.verify.rows import PARAMETER, Ran
from msctx.verify.runs import GRACE, Process, Side, Subject, running
from msctx.verify.wire import Message

Watch = Callable[[str], object]
Keep = Callable[[Message], object]
DIGESTS, REPLICA, COMPILED = {"kind": "digests"}, {"kind": "replica"}, {"kind": "compiled"}
"""What a run does beside itself."""
NO_OPERATOR = "no operator of PyTorch ran in the entry's own process"


def verify(subject: Subject, against: Against, steps: int | None, watch: Watch, keep: Keep) -> Result:
    """Run all sides, and compare every operator of the first *steps* steps, or of all; then look closer at the one that differs.

    Of ranks, their parameters, gradients and optimizers are compared with those of the first.

    Args:
        watch: called with a line on what is done.
        keep: called with what the last run ran under, and the report of each of its steps.

    Raises:
        EntryFailed: the entry raised, in all runs alike.
        EntryError: nothing was compared: the entry ran no operator, or no model or no optimizer of the ranks was met.
        MsctxError: an option or the entry cannot be used.
    """
    sides = against.sides
    result = Result(against.what, (sides[0].name, sides[1].name), notes=[against.note] if against.note else [])
    difference: Difference | None = None
    rows: list[list[Ran]] = []

    with running(subject, sides, [REPLICA if against.are_ranks else DIGESTS] * len(sides)) as runs:
        pair, longest = runs[:2], 0.0

        def go() -> list[Message]:
            nonlocal pair, longest
            began = time.monotonic()
            reports = _together(runs, longest) if against.are_ranks else [one.go() for one in runs]
            longest = max(longest, time.monotonic() - began)
            differing = [i for i, one in enumerate(reports) if not _agree(one, reports[0])]
            dead = [i for i in differing if _ending(reports[i], "died")]  # others fail because of it
            number = (dead or differing or [1])[0]
            pair = [runs[0], runs[number]]
            result.names = pair[0].name, pair[1].name if differing or len(runs) == 2 else "the others"
            return [reports[0], reports[number]]

        def explained(reports: Sequence[Message]) -> Finding | None:
            nonlocal difference, rows
            rows = [one.rows() for one in pair]
            difference = first_difference(*rows)
            if difference is None:
                return _ended(reports, result)
            result.operators += _before(difference, rows)
            found = _finding(result, difference, rows)
            if difference.kind == PARTED:
                return _ended(reports, result) or found
            if against.are_ranks and difference.kind in STATE:
                found.values = _amount(pair, difference)
            return found

        surroundings = [one.begin() for one in runs]
        keep(surroundings[-1])
        _compare(result, go, steps, watch, keep, explained)
    has_place = difference is not None and result.finding is not None and result.finding.kind not in (ENDED, PARAMETER)
    if difference is not None and has_place and not against.are_ranks:
        watch("one more pair of runs, for the lines and the values")
        closer.look(subject, sides, result, difference, rows)
    return _with_something(result, "" if against.are_ranks else NO_OPERATOR)


def compiled(subject: Subject, against: Against, steps: int | None, watch: Watch) -> Result:
    """Run once, eagerly, and every graph that is compiled beside it on the same inputs; see :mod:`msctx.verify.compiled`."""
    result = Result(against.what, ("eager", "compiled"), unit="calls of compiled graphs")
    notes: set[str] = set()
    with running(subject, against.sides, [COMPILED]) as (run,):
        run.begin()
        while result.finding is None and (steps is None or result.steps < steps):
            report = run.go()
            notes |= {*report.get("notes", ())}
            result.operators += report["count"]
            watch(f"step {result.steps}: {result.operators} {result.unit}")
            if "finding" not in report:
                result.finding = Finding(ENDED, result.steps, reason=f"the run failed: {_ending(report, 'reason')}")
            elif found := report["finding"]:
                result.finding = Finding(**found, step=result.steps)
            elif _ending(report, "status") == "failed":
                raise EntryFailed(f"the entry raised\n{report['ended']['error']}")
            elif "ended" in report:
                break
            else:
                result.steps += 1
    nearer = report.get("nearer", {})
    result.notes = sorted(notes)
    if total := sum(nearer.values()):
        result.notes.append(
            f"nearer to float64: eager in {nearer['eager']} of {total} results that differ, compiled in the others"
        )
    return _with_something(result)


def _with_something(result: Result, why: str = "") -> Result:
    """Runs of which nothing was compared are not equal."""
    if result.finding is None and not result.operators:
        raise EntryError("; ".join(filter(None, ["nothing was compared", why, *result.notes])))
    return result


def _together(runs: Sequence[Process], longest: float) -> list[Message]:
    """All go on at once, for ranks wait for each other; where one has ended, the others get some time to end, too."""
    for one in runs:
        one.start()
    reports: dict[Process, Message] = {}
    while len(reports) < len(runs):
        has_ended = any("ended" in report for report in reports.values())
        waiting = [one for one in runs if one not in reports]
        ready = select.select(waiting, [], [], max(GRACE, 3 * longest) if has_ended else None)[0]
        reports |= {one: one.end() for one in ready} or {one: one.give_up() for one in waiting}
    return [reports[one] for one in runs]


def _agree(one: Message, other: Message) -> bool:
    return all(one[name] == other[name] for name in ("digest", "count")) and all(
        _ending(one, name) == _ending(other, name) for name in ("status", "reason")
    )


def _amount(pair: Sequence[Process], difference: Difference) -> list[dict[str, Any]]:
    """By how much a parameter differs now, or its gradient."""
    row = next(row for row in difference.rows if row is not None)
    name = f"{row.module}.{row.outputs[0].argument}".lstrip(".")
    files = [one.save(f"{row.operator}:{name}") for one in pair]
    return [{"tensor": f"{row.operator} {name}", **values.difference(*files)}] if all(file.is_file() for file in files) else []


def replay(subject: Subject, certificate: Certificate, name: str, steps: int | None, watch: Watch, keep: Keep) -> Result:
    """Run once, and compare the digests with those of a certificate; as :func:`verify`."""
    result = Result(name, ("the certificate", "this run"))
    steps = min(steps or certificate.steps, certificate.steps)
    with running(subject, [Side("this run")], [DIGESTS]) as (run,):
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
        elif not _agree(*reports):
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
    for number in sorted((0, 1), key=lambda number: not _ending(reports[number], "died")):
        report, name = reports[number], result.names[number]
        other, its_name = reports[1 - number], result.names[1 - number]
        if _ending(report, "status") == "failed" and _ending(report, "reason") != _ending(other, "reason"):
            return Finding(ENDED, result.steps, reason=f"{name} failed: {_ending(report, 'reason')}")
        if "ended" in report and "ended" not in other:
            return Finding(ENDED, result.steps, reason=f"{name} ended, and {its_name} goes on", only_in=its_name)
    return None


def _before(difference: Difference, rows: Sequence[Sequence[Ran]]) -> int:
    """The operators of the same step that agree before it."""
    side, row = next((side, row) for side, row in enumerate(difference.rows) if row is not None)
    return sum(one.order < row.order for one in rows[side])


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
