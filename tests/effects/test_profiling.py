"""profiling_mode, profiling_options: what is recorded where, on each device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plans import rows

from msctx.effects.profiling import NO_COUNTERS, ON_HOST
from msctx.options import DEVICES

MODE, OPTIONS = "profiling_mode", "profiling_options"
NOTHING = {
    "output": "./",
    "storage_limit": None,
    **dict.fromkeys(("steps", "operators", "shapes", "stacks", "communication", "ranges"), False),
    **dict.fromkeys(("fp_point", "bp_point"), ""),
    "modules": None,
}


def recorder(device: str = "cpu", **options: str) -> Any:
    return rows({MODE: True, OPTIONS: json.dumps(options)}, on=device)[MODE].assignments["torch.profiler"]


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_set_means_the_text_of_cann(device: str) -> None:
    row = rows({MODE: True}, on=device)[MODE]
    whole = dict.fromkeys(("steps", "operators", "shapes", "stacks", "communication"), True)
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
        ({"training_trace": "off"}, {}),
        ({"training_trace": "on", "task_trace": "on"}, {"steps": True, "operators": True, "shapes": True}),
        ({"training_trace": "on", "task_time": "l1"}, {"steps": True, "operators": True, "shapes": True}),
        ({"task_time": "l0"}, {"operators": True}),
        ({"task_trace": "off", "aicpu": "on", "hccl": "on"}, {"stacks": True, "communication": True}),
        ({"task_trace": "off", "msproftx": "on", "storage_limit": "300MB"}, {"ranges": True, "storage_limit": 300}),
        ({"task_trace": "off", "fp_point": "a", "bp_point": "b"}, {"fp_point": "a", "bp_point": "b"}),
    ],
)
def test_a_key_that_is_left_out_is_off(options: dict[str, str], changed: dict[str, Any]) -> None:
    assert recorder(**options) == NOTHING | changed


def test_points_without_steps_are_in_the_plan() -> None:
    for trace, status in (("on", "honoured"), ("off", "approximated")):
        content = json.dumps({"training_trace": trace, "task_trace": "l0", "fp_point": "aten::relu"})
        row = rows({MODE: True, OPTIONS: content}, on="cpu")[OPTIONS]
        assert row.status == status
        assert ("no effect without training_trace" in row.reason) == (trace == "off")


def test_counters_of_an_npu_are_left_out() -> None:
    for device in DEVICES:
        row = rows({MODE: True, OPTIONS: '{"aic_metrics": "Memory"}'}, on=device)[OPTIONS]
        assert (row.status, dict(row.assignments)) == ("approximated", {})
        assert NO_COUNTERS in row.reason


def test_options_without_the_mode_do_nothing() -> None:
    row = rows({OPTIONS: '{"output": "there"}'})[OPTIONS]
    assert (row.status, dict(row.assignments)) == ("inert", {})
    assert "profiling_mode" in row.reason


def test_a_scope_that_pauses_warns_of_nothing() -> None:
    row = rows({MODE: True, OPTIONS: '{"output": "there"}'}, {MODE: False})[OPTIONS]
    assert (row.status, row.shadowed) == ("inert", True)


def test_modules_have_ranges_where_their_names_are_asked_for() -> None:
    for value in (True, False):
        found = rows({MODE: True, "reserve_class_name_in_scope": value})[MODE].assignments["torch.profiler"]
        assert found["modules"] is value
