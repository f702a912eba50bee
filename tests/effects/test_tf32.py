"""TF32 and HF32 through the devices' own flags, and nowhere else."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

FLAGS = {
    "matmul_allow_tf32": ("cuda", "torch.cuda.matmul.allow_tf32", "honoured"),
    "conv_allow_tf32": ("cuda", "torch.cudnn.allow_tf32", "approximated"),
    "matmul_allow_hf32": ("ascend", "torch.npu.matmul.allow_hf32", "honoured"),
    "conv_allow_hf32": ("ascend", "torch.npu.conv.allow_hf32", "honoured"),
}
ELSEWHERE = {
    ("matmul_allow_tf32", "cpu"): "not_built",
    ("matmul_allow_tf32", "ascend"): "inert",
    ("conv_allow_tf32", "ascend"): "inert",
    ("matmul_allow_hf32", "cpu"): "not_built",
    ("matmul_allow_hf32", "cuda"): "not_built",
    ("conv_allow_hf32", "cpu"): "not_built",
    ("conv_allow_hf32", "cuda"): "not_built",
}
GROUPS = {"cuda": "gpu_config", "ascend": "ascend_config"}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [True, False])
def test_the_devices_own_flag(name: str, value: bool) -> None:
    device, switch, status = FLAGS[name]
    for options in ({name: value}, {GROUPS[device]: {name: value}}):
        found = msctx.explain(options, device=device)
        assert found.assignments == {switch: value}
        assert [row.status for row in found.rows] == [status]
        assert found.rows[0].reason or status != "approximated"


@pytest.mark.parametrize(("name", "device"), ELSEWHERE)
@pytest.mark.parametrize("value", [True, False])
def test_elsewhere_nothing_is_switched_and_that_is_told(name: str, device: str, value: bool) -> None:
    (row,) = msctx.explain({name: value}, device=device).rows
    assert (row.status, row.assignments) == (ELSEWHERE[name, device], {})
    assert row.reason


@pytest.mark.parametrize(("value", "status"), [(True, "inert"), (False, "honoured")])
def test_without_an_algorithm_nothing_on_a_cpu_rounds_to_tf32(value: bool, status: str) -> None:
    (row,) = msctx.explain({"conv_allow_tf32": value}, device="cpu").rows
    assert (row.status, row.assignments) == (status, {})
    assert "do not round" in row.reason


def test_each_pair_is_in_one_of_the_tables() -> None:
    assert {("conv_allow_tf32", "cpu"), *ELSEWHERE, *((name, flag[0]) for name, flag in FLAGS.items())} == {
        (n, d) for n in FLAGS for d in DEVICES
    }


def test_all_flags_side_by_side() -> None:
    settings = Settings([make_layer(dict.fromkeys(FLAGS, True), "test")])
    found = plan.make(settings, Facts(devices=DEVICES))
    assert found.assignments == {flag[1]: True for flag in FLAGS.values()}
    assert found.failing == ()


def test_each_devices_group_means_it_alone() -> None:
    options = {"conv_allow_tf32": True, "gpu_config": {"conv_allow_tf32": False}, "cpu_config": {"matmul_allow_tf32": True}}
    found = plan.make(Settings([make_layer(options, "test")]), Facts(devices=("cpu", "cuda")))
    assert found.assignments == {"torch.cudnn.allow_tf32": False}
    assert {(r.spelling, r.device, r.value) for r in found.rows} == {
        ("conv_allow_tf32", "cpu", True),
        ("conv_allow_tf32", "cuda", True),  # overridden
        ("gpu_config.conv_allow_tf32", "cuda", False),
        ("cpu_config.matmul_allow_tf32", "cpu", True),
    }


@pytest.mark.parametrize(("group", "word"), [("gpu_config", "CUDA"), ("ascend_config", "Ascend")])
def test_the_group_of_an_absent_device_is_refused(group: str, word: str) -> None:
    name = "conv_allow_tf32" if group == "gpu_config" else "conv_allow_hf32"
    (row,) = msctx.explain({group: {name: True}}, device="cpu").rows
    assert (row.status, row.reason, row.assignments) == ("refused", f"no {word} device", {})
