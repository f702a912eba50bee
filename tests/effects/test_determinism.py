"""deterministic: the full recipe on each device, what OFF takes back, and the details of our own."""

import pytest
from plans import planned

import msctx
from msctx.options import DEVICES

COMMON = {
    "torch.deterministic": True,
    "torch.deterministic.warn_only": False,
    "torch.deterministic.fill_uninitialized_memory": True,
    "torch.inductor.deterministic": True,
}
ON = {
    "cpu": COMMON | {"torch.mkldnn.deterministic": True},
    "cuda": COMMON
    | {
        "torch.cudnn.deterministic": True,
        "torch.cudnn.benchmark": False,
        "env.CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "env.NCCL_ALGO": "Ring",
    },
    "ascend": COMMON | {"env.HCCL_DETERMINISTIC": "true", "env.TE_PARALLEL_COMPILER": "1"},
}
TAKEN_BACK = {"torch.deterministic": False, "torch.deterministic.warn_only": False, "torch.inductor.deterministic": False}
OFF: dict[str, dict[str, object]] = {
    "cpu": TAKEN_BACK | {"torch.mkldnn.deterministic": False},
    "cuda": TAKEN_BACK | {"torch.cudnn.deterministic": False},
    "ascend": TAKEN_BACK,
}
STAYS = {
    ("ON", "cuda"): "CUBLAS_WORKSPACE_CONFIG",
    ("ON", "ascend"): "HCCL_DETERMINISTIC, TE_PARALLEL_COMPILER",
}
"""What stays after a with-block."""


@pytest.mark.parametrize("device", DEVICES)
def test_the_recipe(device: str) -> None:
    for value, number, recipe in (("ON", 1, ON), ("OFF", 0, OFF)):
        found = planned({"deterministic": value}, on=device)
        assert found.assignments == recipe[device]
        (row,) = found.rows
        leaves_memory = (value, device) == ("ON", "ascend")
        assert (row.device, row.value, row.status) == (device, value, "approximated" if leaves_memory else "honoured")
        stays = STAYS.get((value, device))
        text = f"stays after a with-block, since libraries read it once: {stays}" if stays else ""
        assert row.reason.endswith(text)
        assert (
            row.reason.startswith("torch_npu leaves new memory of the device as it is") if leaves_memory else row.reason == text
        )
        assert planned({"session": {"deterministic": number}}, on=device).assignments == recipe[device]


@pytest.mark.parametrize(
    ("cann", "status"), [((8, 3), "refused"), ((8, 5), "approximated"), ((9, 0), "approximated"), (None, "approximated")]
)
def test_an_older_cann_cannot_keep_it(cann: tuple[int, int] | None, status: str) -> None:
    found = planned({"deterministic": "ON"}, on="ascend", cann=cann)
    (row,) = found.rows
    assert (row.status, "CANN 8.3" in row.reason) == (status, status == "refused")
    assert found.assignments == ({} if status == "refused" else ON["ascend"])
    assert planned({"deterministic": "OFF"}, on="ascend", cann=cann).assignments == OFF["ascend"]


def test_a_machine_with_several_devices_gets_all_their_recipes() -> None:
    found = planned({"deterministic": "ON"}, on=DEVICES)
    assert found.assignments == ON["cpu"] | ON["cuda"] | ON["ascend"]
    assert [row.device for row in found.rows] == list(DEVICES)
    absent = msctx.explain({"deterministic": "ON", "device_target": "GPU"}, device="cpu")
    assert absent.assignments == ON["cpu"] | ON["cuda"], "the target adds its recipe though it be absent"


@pytest.mark.parametrize("device", DEVICES)
def test_the_details_change_the_recipe_and_mean_nothing_without_it(device: str) -> None:
    switches = {
        "deterministic_warn_only": {"torch.deterministic.warn_only": True},
        "fill_uninitialized_memory": {"torch.deterministic.fill_uninitialized_memory": False},
    }
    for detail, changed in switches.items():
        value = next(iter(changed.values()))
        found = planned({detail: value, "deterministic": "ON"}, on=device)
        assert found.assignments == ON[device] | changed
        fills = device == "ascend" and detail != "fill_uninitialized_memory"
        assert [row.status for row in found.rows if row.option == detail] == ["honoured"]
        assert [row.status for row in found.rows if row.option != detail] == ["approximated" if fills else "honoured"]
        for rest in ({}, {"deterministic": "OFF"}):
            found = planned({detail: True, **rest}, on=device)
            row = next(r for r in found.rows if r.option == detail)
            assert (row.status, row.assignments, "deterministic=ON" in row.reason) == ("inert", {}, True)
            assert row in found.failing


def test_torch_npu_fills_no_memory() -> None:
    off = {row.option: row for row in planned({"fill_uninitialized_memory": False, "deterministic": "ON"}, on="ascend").rows}
    assert off["fill_uninitialized_memory"].reason == "nothing is asked for"
    rows = planned({"fill_uninitialized_memory": True, "deterministic": "ON"}, on="ascend").rows
    assert {row.option: row.status for row in rows} == {"deterministic": "approximated", "fill_uninitialized_memory": "refused"}


def test_scopes_inside_each_other() -> None:
    found = planned({"deterministic": "ON"}, {"deterministic_warn_only": True})
    assert found.assignments == ON["cpu"] | {"torch.deterministic.warn_only": True}
    for outer, inner, recipe in (("ON", "OFF", OFF), ("OFF", "ON", ON)):
        found = planned({"deterministic": outer}, {"deterministic": inner})
        assert found.assignments == recipe["cpu"]
        assert [row.origin for row in found.rows] == ["layer 1"]
