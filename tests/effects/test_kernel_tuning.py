"""aoe_tune_mode and aoe_mode on every device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plans import rows

POLICY = "native.convolution.cpu"
ALGORITHMS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo")


@pytest.mark.parametrize(
    "options", [{"aoe_tune_mode": "online"}, {"session": {"aoe_mode": "2"}}, {"session": {"aoe_mode": 2}, "mode": 0}]
)
def test_single_operators_are_measured(options: dict[str, object]) -> None:
    row = rows(options)["aoe_mode" if "session" in options else "aoe_tune_mode"]
    assert row.status == "honoured"
    assert [getattr(row.assignments[POLICY], name) for name in ALGORITHMS] == ["performance"] * 4
    assert ("coordinate_descent_tuning", True) in row.assignments["graph.compilation"].config


def test_what_is_asked_for_by_name_wins() -> None:
    row = rows({"aoe_tune_mode": "online", "conv_fprop_algo": "gemm", "tuning_file": "t.json"})["aoe_tune_mode"]
    policy = row.assignments[POLICY]
    assert (policy.conv_fprop_algo, policy.conv_dgrad_algo, Path(policy.tuning_file).name) == ("gemm", "performance", "t.json")


def test_a_file_narrows_it(tmp_path: Path) -> None:
    path = tmp_path / "aoe.json"
    path.write_text(
        json.dumps({"tune_ops_type": ["Conv2D", "Softmax"], "tune_ops_name": ["head"], "tune_optimization_level": "O1"})
    )
    session = {"aoe_mode": "2", "aoe_config_file": str(path), "work_path": str(tmp_path)}
    row = rows({"session": session})["aoe_config_file"]
    policy = row.assignments[POLICY]
    assert (policy.conv_fprop_algo, policy.conv_dgrad_algo, policy.matmul_algo) == ("performance", None, None)
    assert "head" in policy.conv_algo_rules
    assert "head" in policy.matmul_algo_rules
    assert policy.tuning_file == str(tmp_path / "msctx_tuning.json")
    assert (row.status, row.reason) == ("approximated", "nothing is tuned for Softmax")
    assert ("coordinate_descent_check_all_directions", True) in row.assignments["graph.compilation"].config


def test_what_there_is_not() -> None:
    for options, device, status, reason in (
        ({"session": {"aoe_mode": "1"}}, "cpu", "refused", "on CUDA alone"),
        ({"session": {"aoe_mode": "3"}}, "cpu", "refused", "older CANN"),
        ({"session": {"aoe_mode": "4"}}, "cpu", "not_built", "several devices"),
        ({"session": {"aoe_mode": "2"}}, "ascend", "not_built", "Ascend"),
        ({"aoe_tune_mode": "offline"}, "cpu", "not_built", "recorded graphs"),
        ({"aoe_tune_mode": "online", "deterministic": "ON"}, "cpu", "inert", "deterministic"),
    ):
        row = rows(options, on=device)["aoe_mode" if "session" in options else "aoe_tune_mode"]
        assert (row.status, reason in row.reason) == (status, True), row
    assert POLICY not in rows({"session": {"aoe_mode": "1"}}, on="cuda")["aoe_mode"].assignments
    fusion = rows({"aoe_tune_mode": "online", "aoe_config": {"job_type": "1"}}, on="cuda")["aoe_tune_mode"]
    assert ("benchmark_fusion", True) in fusion.assignments["graph.compilation"].config
