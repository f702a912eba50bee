"""deterministic: the full recipe on each device, what OFF takes back, and the details of our own."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

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
TAKEN_BACK = {
    "torch.deterministic": False,
    "torch.deterministic.warn_only": False,
    "torch.inductor.deterministic": False,
}
OFF: dict[str, dict[str, object]] = {
    "cpu": TAKEN_BACK | {"torch.mkldnn.deterministic": False},
    "cuda": TAKEN_BACK | {"torch.cudnn.deterministic": False},
    "ascend": TAKEN_BACK | {"env.HCCL_DETERMINISTIC": None, "env.TE_PARALLEL_COMPILER": None},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("value", "recipe"), [("ON", ON), ("OFF", OFF)])
def test_the_recipe(device: str, value: str, recipe: dict[str, dict[str, object]]) -> None:
    found = msctx.explain({"deterministic": value}, device=device)
    assert found.assignments == recipe[device]
    (row,) = found.rows
    assert (row.device, row.value, row.status) == (device, value, "honoured")


@pytest.mark.parametrize(
    ("value", "device", "variables"),
    [
        ("ON", "cpu", ()),
        ("ON", "cuda", ("CUBLAS_WORKSPACE_CONFIG",)),
        ("ON", "ascend", ("HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")),
        ("OFF", "cpu", ()),
        ("OFF", "cuda", ()),
        ("OFF", "ascend", ("HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")),
    ],
)
def test_what_stays_after_a_scope_is_told(value: str, device: str, variables: tuple[str, ...]) -> None:
    (row,) = msctx.explain({"deterministic": value}, device=device).rows
    assert bool(row.reason) is bool(variables)
    assert all(name in row.reason for name in ("stays", *variables) if variables)


@pytest.mark.parametrize(
    ("cann", "status"), [((8, 3), "refused"), ((8, 5), "honoured"), ((9, 0), "honoured"), (None, "honoured")]
)
def test_an_older_cann_cannot_keep_it(cann: tuple[int, int] | None, status: str) -> None:
    settings = Settings([make_layer({"deterministic": "ON"}, "test")])
    found = plan.make(settings, Facts(devices=("ascend",), cann=cann))
    (row,) = found.rows
    assert row.status == status
    assert found.assignments == (ON["ascend"] if status == "honoured" else {})
    assert ("CANN 8.3" in row.reason) is (status == "refused")
    off = Settings([make_layer({"deterministic": "OFF"}, "test")])
    assert plan.make(off, Facts(devices=("ascend",), cann=cann)).assignments == OFF["ascend"]


@pytest.mark.parametrize("device", DEVICES)
def test_cann_says_it_with_a_number(device: str) -> None:
    assert msctx.explain({"session": {"deterministic": 1}}, device=device).assignments == ON[device]
    assert msctx.explain({"session": {"deterministic": 0}}, device=device).assignments == OFF[device]


@pytest.mark.parametrize("devices", [("cpu", "cuda"), ("cpu", "ascend"), DEVICES])
def test_a_machine_with_several_devices_gets_all_their_recipes(devices: tuple[str, ...]) -> None:
    settings = Settings([make_layer({"deterministic": "ON"}, "test")])
    found = plan.make(settings, Facts(devices=devices))
    assert found.assignments == {k: v for device in devices for k, v in ON[device].items()}
    assert [row.device for row in found.rows] == list(devices)


def test_the_target_adds_its_recipe_though_it_be_absent() -> None:
    found = msctx.explain({"deterministic": "ON", "device_target": "GPU"}, device="cpu")
    assert found.assignments == ON["cpu"] | ON["cuda"]


@pytest.mark.parametrize("device", DEVICES)
def test_warn_only_is_a_detail_of_on(device: str) -> None:
    found = msctx.explain({"deterministic_warn_only": True, "deterministic": "ON"}, device=device)
    assert found.assignments == ON[device] | {"torch.deterministic.warn_only": True}
    assert {row.status for row in found.rows} == {"honoured"}
    assert msctx.explain({"deterministic": "OFF", "deterministic_warn_only": True}, device=device).assignments == OFF[device]


@pytest.mark.parametrize("device", DEVICES)
def test_filling_new_memory_is_part_of_on_unless_switched_off(device: str) -> None:
    found = msctx.explain({"deterministic": "ON", "fill_uninitialized_memory": False}, device=device)
    assert found.assignments == ON[device] | {"torch.deterministic.fill_uninitialized_memory": False}
    assert {row.status for row in found.rows} == {"honoured"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rest", [{}, {"deterministic": "OFF"}])
@pytest.mark.parametrize("detail", ["deterministic_warn_only", "fill_uninitialized_memory"])
def test_a_detail_alone_is_inert_and_says_so(device: str, rest: dict[str, str], detail: str) -> None:
    found = msctx.explain({detail: True, **rest}, device=device)
    row = next(r for r in found.rows if r.option == detail)
    assert (row.status, row.assignments) == ("inert", {})
    assert "deterministic=ON" in row.reason
    assert row in found.failing


def test_a_detail_of_an_inner_scope_changes_the_outer_recipe() -> None:
    outer = make_layer({"deterministic": "ON"}, "outer")
    inner = make_layer({"deterministic_warn_only": True}, "inner")
    found = plan.make(Settings([outer, inner]), Facts())
    assert found.assignments == ON["cpu"] | {"torch.deterministic.warn_only": True}


@pytest.mark.parametrize(("outer", "inner", "recipe"), [("ON", "OFF", OFF), ("OFF", "ON", ON)])
def test_the_inner_scope_wins(outer: str, inner: str, recipe: dict[str, dict[str, object]]) -> None:
    layers = [make_layer({"deterministic": value}, value) for value in (outer, inner)]
    found = plan.make(Settings(layers), Facts())
    assert found.assignments == recipe["cpu"]
    assert [row.origin for row in found.rows] == [inner]
