"""Session options, device by device: what run() is to do, the device, and what is refused."""

from typing import Any

import pytest
from plans import planned

import msctx
from msctx.effects import Facts
from msctx.options import DEVICES, make_layer
from msctx.options import Settings as Options
from msctx.options.precision_rules import precision_of
from msctx.plan import make


def row(options: dict[str, Any], device: str = "cpu") -> msctx.plan.Row:
    name, *_ = options
    (found,) = (r for r in msctx.explain(options, device=device).rows if r.option == name and r.device == device)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("options", "assigned"),
    [
        ({"graph_run_mode": 0}, {"session.graph_run_mode": "inference"}),
        ({"graph_run_mode": 1}, {"session.graph_run_mode": "training"}),
        ({"iterations_per_loop": 4}, {"session.iterations_per_loop": 4}),
        ({"graph_max_parallel_model_num": 2, "graph_run_mode": 0}, {"session.graph_max_parallel_model_num": 2}),
    ],
)
def test_what_run_is_to_do_is_the_same_on_every_device(device: str, options: dict[str, Any], assigned: dict[str, Any]) -> None:
    found = row(options, device)
    assert found.status in ("honoured", "approximated")
    assert found.assignments == assigned
    assert "run()" in found.reason


@pytest.mark.parametrize(("device", "switch"), [("cuda", "torch.cuda.current_device"), ("ascend", "torch.npu.current_device")])
def test_the_device_of_a_session_becomes_the_current_one(device: str, switch: str) -> None:
    assert row({"session_device_id": 1}, device).assignments == {switch: 1}


def test_a_cpu_has_one_device_whatever_the_id() -> None:
    assert row({"session_device_id": 0}).status == "honoured"
    found = row({"session_device_id": 3})
    assert (found.status, found.assignments) == ("approximated", {})
    assert "one CPU device" in found.reason
    beside_a_gpu = planned({"session_device_id": 1}, on=("cpu", "cuda"))
    assert [r.device for r in beside_a_gpu.rows] == ["cuda"]
    assert [r.device for r in planned({"session_device_id": 1, "device_target": "CPU"}, on=("cpu", "cuda")).rows][-1] == "cpu"


def test_the_device_of_a_session_wins_over_that_of_the_context_beside_it_and_yields_to_one_further_in() -> None:
    beside = msctx.explain(device_id=0, session_device_id=1, device="cuda")
    assert (beside.device_id, beside.assignments) == (1, {"torch.cuda.current_device": 1})
    layers = [make_layer(options, "test") for options in ({"session_device_id": 1}, {"device_id": 0})]
    inside = make(Options(layers), Facts.only("cuda"))
    assert (inside.device_id, inside.assignments) == (0, {"torch.cuda.current_device": 0})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("speed", "low"), [("fast", "float16"), ("fast1", "bfloat16")])
def test_the_first_part_of_a_training_has_a_policy_of_its_own(device: str, speed: str, low: str) -> None:
    (asked,) = row({"experimental_accelerate_train_mode": f"{speed}|loss|1.2"}, device).assignments.values()
    assert (asked["until"], asked["ratio"]) == ("loss", 1.2)
    policy = precision_of(asked["policy"])
    assert policy.low == low
    assert policy.rules["mm"].float32 == low
    assert policy.rules["mm"].why == f"experimental_accelerate_train_mode={speed}"


def test_without_the_native_core_it_is_refused() -> None:
    settings = Options([make_layer({"experimental_accelerate_train_mode": "fast|step"}, "test")])
    (found,) = make(settings, Facts(native="there is no compiler")).rows
    assert (found.status, found.reason) == ("refused", "there is no compiler")


@pytest.mark.parametrize("device", DEVICES)
def test_ranks_that_share_batches_are_counted_by_machine(device: str) -> None:
    found = msctx.explain(local_rank_id=1, local_device_list="1,0", device=device)
    assert [r.status for r in found.rows] == ["approximated"] * 2
    assert found.assignments == {"torch.dataloader.shared": {"rank": 1, "ranks": [0, 1]}}


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"frozen_variable": True}, 1),
        ({"buffer_optimize": "off_optimize"}, 1),
        ({"graph_max_parallel_model_num": 2}, 1),
        ({"hcom_parallel": True}, 0),
        ({"is_tailing_optimization": True}, 0),
        ({"experimental_accelerate_train_mode": "fast|step"}, 0),
    ],
)
def test_what_is_for_inference_is_refused_in_training_and_the_reverse(options: dict[str, Any], mode: int) -> None:
    assert row({**options, "graph_run_mode": mode}).status == "refused"


def test_gears_are_for_inference() -> None:
    gears = {"input_shape": "data:-1,3", "dynamic_dims": "1;2", "dynamic_node_type": 1}
    assert row({**gears, "graph_run_mode": 1}).status == "refused"
    assert "for inference" in row({**gears, "graph_run_mode": 1}).reason
    assert row({**gears, "graph_run_mode": 0}).status != "refused"
