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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bucket_sizes_are_measured(device: str, tmp_path: Path) -> None:
    path = tmp_path / "aoe.json"
    path.write_text('{"tune_ops_name": ["head"]}')
    row = rows({"session": {"aoe_mode": "4"}}, on=device)["aoe_mode"]
    assert (row.status, row.assignments) == ("honoured", {"models.gradients_tuned": "./"})
    found = rows({"session": {"aoe_mode": "4", "work_path": str(tmp_path), "aoe_config_file": str(path)}}, on=device)
    for option in ("aoe_mode", "work_path"):
        assert (found[option].status, found[option].assignments) == ("honoured", {"models.gradients_tuned": str(tmp_path)})
    assert (found["aoe_config_file"].status, found["aoe_config_file"].assignments) == ("inert", {})


def test_what_there_is_not() -> None:
    for options, device, status, reason in (
        ({"session": {"aoe_mode": "1"}}, "cpu", "refused", "on CUDA alone"),
        ({"session": {"aoe_mode": "3"}}, "cpu", "refused", "older CANN"),
        (
            {"session": {"aoe_mode": "4"}, "parallel_speed_up_json_path": {"enable_task_opt": True}},
            "cpu",
            "inert",
            "enable_task_opt",
        ),
        ({"session": {"aoe_mode": "1"}}, "ascend", "refused", "single operators alone"),
        ({"aoe_tune_mode": "offline", "aoe_config": {"job_type": "1"}}, "ascend", "refused", "single operators alone"),
        ({"aoe_tune_mode": "offline", "aoe_config": {"job_type": "1"}}, "cuda", "refused", "none that was recorded"),
        ({"aoe_tune_mode": "offline", "aoe_config": {"job_type": "1"}}, "cpu", "refused", "on CUDA alone"),
        ({"aoe_tune_mode": "offline", "batch_invariant": True}, "cpu", "inert", "batch_invariant"),
        ({"aoe_tune_mode": "online", "deterministic": "ON"}, "cpu", "inert", "deterministic"),
    ):
        row = rows(options, on=device)["aoe_mode" if "session" in options else "aoe_tune_mode"]
        assert (row.status, reason in row.reason) == (status, True), row
    assert POLICY not in rows({"session": {"aoe_mode": "1"}}, on="cuda")["aoe_mode"].assignments
    fusion = rows({"aoe_tune_mode": "online", "aoe_config": {"job_type": "1"}}, on="cuda")["aoe_tune_mode"]
    assert ("benchmark_fusion", True) in fusion.assignments["graph.compilation"].config


def test_on_ascend_cann_tunes() -> None:
    online = rows({"aoe_tune_mode": "online"}, on="ascend")["aoe_tune_mode"]
    tuner = {"mode": "2", "path": "./", "file": ""}
    assert (online.status, online.assignments["torch.npu.graph_tuner"]) == ("approximated", tuner)
    assert online.assignments["torch.dynamo.apart"], "code that is tuned is kept apart"
    session = rows({"session": {"aoe_mode": "2", "work_path": "kept"}}, on="ascend")
    assert session["work_path"].assignments["torch.npu.graph_tuner"] == tuner | {"path": "kept"}
    offline = rows({"aoe_tune_mode": "offline"}, on="ascend")["aoe_tune_mode"]
    assert (offline.status, offline.assignments) == ("approximated", {"torch.npu.aoe_folder": "./"})


# --- offline ----------------------------------------------------------------------------------------------------------

OFFLINE = {"aoe_tune_mode": "offline"}


def asked(options: dict[str, object], on: str = "cpu") -> list[str | None]:
    """The algorithms of the policy, forward first."""
    policy = rows({**OFFLINE, **options}, on=on)["aoe_tune_mode"].assignments[f"native.convolution.{on}"]
    return [getattr(policy, name) for name in ALGORITHMS]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_offline_records_and_changes_nothing_else(device: str) -> None:
    found = rows({**OFFLINE, "work_path": "w"}, on=device)
    row = found["aoe_tune_mode"]
    assert (row.status, "msctx tune run" in row.reason) == ("honoured", True)
    ((name, policy),) = row.assignments.items()
    assert (name, policy.work_path, policy.measures) == (f"native.convolution.{device}", "w", False)
    assert found["work_path"].status == "honoured"
    assert asked({}, device) == ["torch"] * 3 + ["torch" if device == "cpu" else None]
    assert rows(OFFLINE, on=device)["aoe_tune_mode"].assignments[name].work_path == "./"


def test_offline_leaves_what_other_options_ask_for() -> None:
    assert asked({"conv_fprop_algo": "gemm", "matmul_algo": "normal"}) == ["gemm", "torch", "torch", "normal"]
    assert asked({"matmul_allow_tf32": True}) == ["torch"] * 3 + ["normal"]
    assert asked({"thread_invariant": True}) == [None] * 4
    found = rows({**OFFLINE, "enable_small_channel": True})["aoe_tune_mode"].assignments[POLICY]
    assert "normal" in found.conv_algo_rules
    graph = {"mode": 0, "frozen_variable": True, "graph_kernel_flags": {"online_tuning": 1}}
    found = rows({**OFFLINE, **graph})
    assert found["frozen_variable"].status == "honoured"
    assert not found["mode"].assignments["graph.compilation"].epilogues
    assert rows({**OFFLINE, **graph, "conv_fprop_algo": "gemm"})["frozen_variable"].status == "refused"


def test_the_constraints_of_tuning_hold_for_what_is_recorded() -> None:
    found = rows({**OFFLINE, "conv_workspace_limit": 1000, "conv_max_error": 1e-5, "fallback": "error", "tuning_file": "t"})
    assert (found["conv_workspace_limit"].status, found["conv_max_error"].status) == ("honoured", "honoured")
    assert (found["fallback"].status, found["tuning_file"].status) == ("inert", "inert")


def test_offline_beside_others() -> None:
    session = {"session": {"aoe_mode": "2"}}
    found = rows({**OFFLINE, **session})
    assert (found["aoe_tune_mode"].status, found["aoe_mode"].status) == ("inert", "honoured")
    assert found["aoe_mode"].assignments[POLICY].work_path is None
    assert rows({**OFFLINE, "deterministic": "ON"})["aoe_tune_mode"].status == "honoured"
    assert rows(OFFLINE, native="no compiler")["aoe_tune_mode"].status == "refused"
    assert rows({"work_path": "w", "aoe_tune_mode": "online"})["work_path"].status == "inert"
