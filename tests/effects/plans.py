"""What the tests of translations share: plans for machines that are made up, and tables of what is expected of them."""

from collections.abc import Iterable
from typing import Any

from msctx import plan
from msctx.effects import Facts
from msctx.options import Settings, make_layer

Options = dict[str, Any]
Expected = tuple[str, dict[str, Any], str]
"""The status of a row, its assignments, and what its reason contains."""
Case = tuple[str, Options, dict[str, Expected]]
"""A device, what is set, and what is expected of some options there."""


def planned(*layers: Options, on: str | tuple[str, ...] = "cpu", **facts: Any) -> plan.Plan:
    """The plan of options set in scopes inside each other, named by their place, on a machine with these devices."""
    devices = (on,) if isinstance(on, str) else on
    made = [make_layer(options, f"layer {place}") for place, options in enumerate(layers)]
    return plan.make(Settings(made), Facts(devices=devices, **facts))


def rows(*layers: Options, on: str = "cpu", beside_cpu: bool = False, **facts: Any) -> dict[str, plan.Row]:
    """Option → its row on one device; those that yield to another left out."""
    devices = ("cpu", on) if beside_cpu and on != "cpu" else (on,)
    return {r.option: r for r in planned(*layers, on=devices, **facts).rows if r.device == on and not r.winner}


def check(cases: Iterable[Case], **facts: Any) -> None:
    """Each row is as expected; the first that is not is named."""
    for device, options, expected in cases:
        found = rows(options, on=device, **facts)
        for option, (status, assignments, reason) in expected.items():
            row = found[option]
            assert (row.status, dict(row.assignments)) == (status, assignments), f"{options} on {device}: {row}"
            assert reason in row.reason if reason else not row.reason, f"{options} on {device}: {row}"
