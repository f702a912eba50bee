"""device_target, device_id, default_device, use_off_line on each device; and plans for machines that are not here."""

from collections.abc import Callable

import pytest
from plans import planned

import msctx
from msctx import plan
from msctx.options import DEVICES

TARGETS = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}


def table(found: plan.Plan) -> dict[tuple[str, str], tuple[str, dict[str, object]]]:
    return {(r.option, r.device): (r.status, dict(r.assignments)) for r in found.rows}


@pytest.mark.parametrize(("device", "name"), [("cpu", "cpu"), ("cuda", "cuda"), ("ascend", "npu")])
def test_the_target_is_reported_and_switches_nothing(device: str, name: str) -> None:
    for devices in (("cpu", device) if device != "cpu" else ("cpu",), DEVICES):
        found = planned({"device_target": TARGETS[device]}, on=devices)
        (row,) = found.rows
        assert (row.device, row.status, row.reason) == (device, "honoured", f"ctx.device is {name}")
        assert (found.assignments, found.target, found.missing) == ({}, TARGETS[device], False)
    if device != "cpu":
        absent = planned({"device_target": TARGETS[device], "device_id": 1}, on="cpu")
        assert (absent.missing, {row.device for row in absent.rows}) == (True, {device})


def test_the_old_name_of_ascend() -> None:
    assert msctx.explain({"device_target": "Davinci"}, device="ascend").target == "Ascend"


# --- device_id --------------------------------------------------------------------------------------------------------


def test_the_id_becomes_the_current_device() -> None:
    cuda, npu = {"torch.cuda.current_device": 1}, {"torch.npu.current_device": 1}
    for device, switches in (("cuda", cuda), ("ascend", npu)):
        for options in ({"device_id": 1}, {"device_id": 1, "device_target": TARGETS[device]}):
            found = msctx.explain(options, device=device)
            assert (found.assignments, found.device_id) == (switches, 1)
            assert table(found)["device_id", device] == ("honoured", switches)
    both = {("device_id", "cuda"): ("honoured", cuda), ("device_id", "ascend"): ("honoured", npu)}
    assert table(planned({"device_id": 1}, on=DEVICES)) == both, "without a target it means the accelerators"
    assert planned({"device_id": 1, "device_target": "Ascend"}, on=DEVICES).assignments == npu


@pytest.mark.parametrize(("number", "status"), [(0, "honoured"), (1, "inert")])
def test_there_is_one_cpu(number: int, status: str) -> None:
    for found in (planned({"device_id": number}), planned({"device_id": number, "device_target": "CPU"}, on=DEVICES)):
        assert table(found)["device_id", "cpu"] == (status, {})
        assert (found.assignments, bool(found.failing)) == ({}, status == "inert")


def test_the_device_is_chosen_before_what_is_set_for_the_current_device() -> None:
    found = planned({"max_device_memory": "4GB", "device_id": 1}, on=DEVICES)
    assert list(found.assignments)[:2] == ["torch.cuda.current_device", "torch.npu.current_device"]
    assert "torch.cuda.memory_cap" in found.assignments


# --- default_device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"device_target": "CPU", "device_id": 0}, "cpu"),
        ({"device_target": "GPU"}, "cuda"),
        ({"device_target": "GPU", "device_id": 0}, "cuda:0"),
        ({"device_target": "Ascend"}, "npu"),
        ({"device_target": "Ascend", "device_id": 3}, "npu:3"),
        ({"device_target": "GPU", "use_off_line": False}, "cpu"),
    ],
)
def test_the_default_device_is_the_contexts(options: dict[str, object], name: str) -> None:
    found = planned({"default_device": True, **options}, on=DEVICES)
    assert found.assignments["torch.default_device"] == name
    target = "CPU" if name == "cpu" else options["device_target"]
    assert [TARGETS[r.device] for r in found.rows if r.option == "default_device"] == [target]


def test_no_default_device_is_installed_unless_asked_for() -> None:
    for options in ({"device_target": "GPU"}, {"device_target": "GPU", "default_device": False}):
        assert "torch.default_device" not in planned(options, on=DEVICES).assignments
    for device in DEVICES:
        for value, status in ((True, "inert"), (False, "honoured")):
            found = planned({"default_device": value}, on=device)
            assert ({r.status for r in found.rows}, found.assignments) == ({status}, {}), "there is no target"


# --- use_off_line -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")
def test_off_line_wins_over_the_target() -> None:
    for device in DEVICES:
        for value, status in ((True, "honoured"), (False, "approximated")):
            for row in planned({"use_off_line": value}, on=device).rows:
                assert (row.status, row.assignments, bool(row.reason)) == (status, {}, True)
    found = msctx.explain({"device_target": "GPU", "use_off_line": False}, device="cuda")
    assert (found.target, found.main_device, found.missing) == ("CPU", "cpu", False)
    (lost,) = [r for r in found.rows if r.option == "device_target" and r.device == "cuda"]
    assert lost.reason.startswith("overridden by use_off_line=False")
    with msctx.context(device_target="GPU", use_off_line=False) as ctx:
        assert ctx.device.type == "cpu"
    assert msctx.explain({"device_target": "GPU", "use_off_line": True}, device="cuda").target == "GPU"


# --- machines that are not here ---------------------------------------------------------------------------------------

NO_TORCH = """
import sys
import msctx
options = {
    "deterministic": "ON", "seed": 0, "device_target": "GPU", "device_id": 1, "default_device": True, "max_call_depth": 2000,
    "gpu_config": {"conv_allow_tf32": False}, "max_device_memory": "4GB", "pynative_synchronize": True,
    "runtime_num_threads": 2, "inter_op_parallel_num": 2, "use_off_line": True, "mode": 0,
}
for device in ("cpu", "cuda", "ascend"):
    assert len(msctx.explain(options, device=device).rows) >= len(options), device
print(sorted(m for m in ("torch", "torch_npu", "numpy", "yaml") if m in sys.modules))
"""


def test_a_plan_for_a_machine_needs_no_torch(passes_fresh: Callable[[str], str]) -> None:
    assert passes_fresh(NO_TORCH).strip() == "[]"


@pytest.mark.parametrize("device", ["gpu", "CUDA", ""])
def test_a_device_that_does_not_exist_is_an_error(device: str) -> None:
    """Not an empty plan, which would say that nothing is wrong."""
    with pytest.raises(msctx.MsctxError, match="cuda"):
        msctx.explain({"seed": 0}, device=device)
