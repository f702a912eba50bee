"""device_target, device_id, default_device, use_off_line on each device; and plans for machines that are not here."""

from collections.abc import Callable

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

TARGETS = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}


def on(devices: tuple[str, ...], **options: object) -> plan.Plan:
    return plan.make(Settings([make_layer(options, "test")]), Facts(devices=devices))


def table(found: plan.Plan) -> dict[tuple[str, str], tuple[str, dict[str, object]]]:
    return {(r.option, r.device): (r.status, dict(r.assignments)) for r in found.rows}


# --- device_target ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "name"), [("cpu", "cpu"), ("cuda", "cuda"), ("ascend", "npu")])
def test_the_target_is_told_and_switches_nothing(device: str, name: str) -> None:
    found = msctx.explain({"device_target": TARGETS[device]}, device=device)
    (row,) = found.rows
    assert (row.device, row.status, row.reason) == (device, "honoured", f"ctx.device is {name}")
    assert found.assignments == {}
    assert (found.target, found.missing) == (TARGETS[device], False)


def test_the_old_name_of_ascend() -> None:
    assert msctx.explain({"device_target": "Davinci"}, device="ascend").target == "Ascend"


@pytest.mark.parametrize("target", TARGETS.values())
def test_the_target_speaks_of_one_device_alone(target: str) -> None:
    assert {TARGETS[row.device] for row in on(DEVICES, device_target=target).rows} == {target}


@pytest.mark.parametrize("target", ["GPU", "Ascend"])
def test_a_target_that_is_not_here_is_planned_and_marked(target: str) -> None:
    found = on(("cpu",), device_target=target, device_id=1)
    assert found.missing
    assert {TARGETS[row.device] for row in found.rows} == {target}


# --- device_id --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "switches"),
    [("cuda", {"torch.cuda.current_device": 1}), ("ascend", {"torch.npu.current_device": 1})],
)
@pytest.mark.parametrize("named", [True, False])
def test_the_id_becomes_the_current_device(device: str, switches: dict[str, int], named: bool) -> None:
    options: dict[str, object] = {"device_id": 1}
    if named:
        options["device_target"] = TARGETS[device]
    found = msctx.explain(options, device=device)
    assert found.assignments == switches
    assert found.device_id == 1
    assert table(found)["device_id", device] == ("honoured", switches)


@pytest.mark.parametrize(("number", "status"), [(0, "honoured"), (1, "inert")])
def test_there_is_one_cpu(number: int, status: str) -> None:
    for found in (on(("cpu",), device_id=number), on(DEVICES, device_id=number, device_target="CPU")):
        assert table(found)["device_id", "cpu"] == (status, {})
        assert found.assignments == {}
        assert bool(found.failing) is (status == "inert")


def test_the_device_is_chosen_before_what_is_set_for_the_current_device() -> None:
    found = on(DEVICES, max_device_memory="4GB", device_id=1)
    assert list(found.assignments)[:2] == ["torch.cuda.current_device", "torch.npu.current_device"]
    assert "torch.cuda.memory_cap" in found.assignments


def test_without_a_target_the_id_means_the_accelerators() -> None:
    found = on(DEVICES, device_id=1)
    assert table(found) == {
        ("device_id", "cuda"): ("honoured", {"torch.cuda.current_device": 1}),
        ("device_id", "ascend"): ("honoured", {"torch.npu.current_device": 1}),
    }


def test_with_a_target_the_id_means_that_device_alone() -> None:
    found = on(DEVICES, device_id=1, device_target="Ascend")
    assert found.assignments == {"torch.npu.current_device": 1}


# --- default_device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"device_target": "CPU"}, "cpu"),
        ({"device_target": "CPU", "device_id": 0}, "cpu"),
        ({"device_target": "GPU"}, "cuda"),
        ({"device_target": "GPU", "device_id": 1}, "cuda:1"),
        ({"device_target": "GPU", "device_id": 0}, "cuda:0"),
        ({"device_target": "Ascend"}, "npu"),
        ({"device_target": "Ascend", "device_id": 3}, "npu:3"),
    ],
)
def test_the_default_device_is_the_contexts(options: dict[str, object], name: str) -> None:
    found = on(DEVICES, default_device=True, **options)
    assert found.assignments["torch.default_device"] == name
    assert [r.device for r in found.rows if r.option == "default_device"] == [
        d for d in DEVICES if TARGETS[d] == options["device_target"]
    ]


def test_the_default_device_is_the_cpu_when_the_program_is_off_line() -> None:
    """use_off_line=False makes the CPU the context's device, whatever device_target says."""
    found = on(DEVICES, default_device=True, device_target="GPU", use_off_line=False)
    assert found.assignments["torch.default_device"] == "cpu"


def test_no_default_device_is_installed_unless_asked_for() -> None:
    for options in ({"device_target": "GPU"}, {"device_target": "GPU", "default_device": False}):
        assert "torch.default_device" not in on(DEVICES, **options).assignments


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [True, False])
def test_the_default_device_without_a_target_has_a_row_on_every_machine(device: str, value: bool) -> None:
    found = msctx.explain({"default_device": value}, device=device)
    assert {r.status for r in found.rows} == {"inert" if value else "honoured"}
    assert found.assignments == {}


# --- use_off_line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("value", "status"), [(True, "honoured"), (False, "approximated")])
def test_off_line(device: str, value: bool, status: str) -> None:
    for row in msctx.explain({"use_off_line": value}, device=device).rows:
        assert (row.status, row.assignments) == (status, {})
        assert row.reason


@pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")
def test_off_line_wins_over_the_target() -> None:
    plan = msctx.explain({"device_target": "GPU", "use_off_line": False}, device="cuda")
    assert (plan.target, plan.main_device, plan.missing) == ("CPU", "cpu", False)
    (lost,) = [r for r in plan.rows if r.option == "device_target" and r.device == "cuda"]
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


@pytest.mark.parametrize("device", ["gpu", "npu", "CUDA", "tpu", ""])
def test_a_device_that_does_not_exist_is_an_error(device: str) -> None:
    """Not an empty plan, which would say that nothing is wrong."""
    with pytest.raises(msctx.MsctxError, match="cuda"):
        msctx.explain({"seed": 0}, device=device)
