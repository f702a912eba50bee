"""profiling_mode, profiling_options: what is recorded where, on each device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plans import rows

from msctx.effects.profiling import NO_COUNTERS, NO_POINTS, ON_HOST, OPERATORS
from msctx.options import DEVICES

MODE, OPTIONS = "profiling_mode", "profiling_options"
NOTHING = {
    "output": "./",
    "storage_limit": None,
    **dict.fromkeys(("steps", "operators", "shapes", "stacks"), False),
    "modules": None,
}


def recorder(device: str = "cpu", **options: str) -> Any:
    return rows({MODE: True, OPTIONS: json.dumps(options)}, on=device)[MODE].assignments["torch.profiler"]


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_set_means_the_text_of_cann(device: str) -> None:
    row = rows({MODE: True}, on=device)[MODE]
    whole = dict.fromkeys(("steps", "operators", "shapes", "stacks"), True)
    assert row.assignments == {"torch.profiler": NOTHING | whole}
    assert row.status == ("approximated" if device == "ascend" else "honoured")
    assert (ON_HOST in row.reason) is (device == "ascend")
    assert rows({MODE: False}, on=device)[MODE].assignments == {"torch.profiler": None}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"output": "there"}, {"output": "there", "steps": True, "operators": True, "shapes": True}),
        ({}, {"steps": True, "operators": True, "shapes": True}),
        ({"training_trace": "on"}, {"steps": True}),
        ({"training_trace": "on", "task_time": "l1"}, {"steps": True, "operators": True, "shapes": True}),
        ({"task_time": "l0", "storage_limit": "300MB"}, {"operators": True, "storage_limit": 300}),
        ({"task_trace": "off", "aicpu": "on", "hccl": "on"}, {"stacks": True}),
    ],
)
def test_a_key_that_is_left_out_is_off(options: dict[str, str], changed: dict[str, Any]) -> None:
    assert recorder(**options) == NOTHING | changed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('{"fp_point": "aten::relu"}', NO_POINTS),
        ('{"aic_metrics": "Memory"}', NO_COUNTERS),
        ('{"task_trace": "off"}', OPERATORS),
    ],
)
def test_keys_without_a_counterpart_are_in_the_plan(options: str, reason: str, device: str) -> None:
    row = rows({MODE: True, OPTIONS: options}, on=device)[OPTIONS]
    assert (row.status, reason in row.reason) == ("approximated", True)


def test_options_without_the_mode_do_nothing() -> None:
    row = rows({OPTIONS: '{"output": "there"}'})[OPTIONS]
    assert (row.status, dict(row.assignments)) == ("inert", {})
    assert "profiling_mode" in row.reason


def test_a_scope_that_pauses_warns_of_nothing() -> None:
    row = rows({MODE: True, OPTIONS: '{"output": "there"}'}, {MODE: False})[OPTIONS]
    assert (row.status, row.shadowed) == ("inert", True)
