"""The native core is looked for, and missed, before an option needs it."""

import pytest
from samples import planned, values

from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS
from msctx.plan import Plan
from msctx.switches import SWITCHES
from msctx.themes import NEED_CORE

WHY = "there is no compiler"
BESIDE = (
    {},
    {"deterministic": "ON"},
    {"mode": "GRAPH_MODE"},
    {"session.enable_dump": True, "dump_path": "p"},
    {"enable_dump_debug": True, "dump_path": "p"},
)
"""Options without which some others have no effect."""


def served_by_core(plan: Plan) -> set[str]:
    """The switches of the plan that cannot be written without the native core."""
    return {name for name, value in plan.written.items() if value and SWITCHES[name].load}


@pytest.mark.parametrize("device", DEVICES)
def test_what_needs_the_core_is_listed_and_is_refused_without_it(device):
    needing = set()
    for option in OPTIONS.values():
        for beside in BESIDE:
            for value in values(option):
                options = {**beside, option.name: value}
                try:
                    plan = planned(options, on=device)
                except OptionError:
                    continue
                if served := served_by_core(plan):
                    needing.add(option.name)
                    assert not NEED_CORE.isdisjoint(row.option for row in plan.rows), f"{options}: {served}"
                    without = planned(options, on=device, native=WHY)
                    assert not served_by_core(without), f"{options}: {served_by_core(without)}"
                    assert any(WHY in row.reason for row in without.rows), f"{options}: {without}"
    assert "op_timeout" in needing
