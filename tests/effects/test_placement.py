"""memory_offload, variable_placement, external_weight: where activations and parameters are; and what is not compiled."""

import pytest

from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

ACCELERATORS = ("cuda", "ascend")


def on(device: str, beside: str = "cpu", **options: object) -> dict[str, plan.Row]:
    if options.get("variable_placement") == "Host":
        options["mix_compile_mode"] = True
    found = plan.make(Settings([make_layer(options, "test")]), Facts(devices=tuple({beside: 0, device: 0})))
    return {row.option: row for row in found.rows if row.device == device and row.option != "mix_compile_mode"}


@pytest.mark.parametrize("device", ACCELERATORS)
@pytest.mark.parametrize(("given", "moved"), [("ON", True), ("OFF", False)])
def test_activations_go_to_the_host(device: str, given: str, moved: bool) -> None:
    row = on(device, memory_offload=given)["memory_offload"]
    assert (row.status, row.assignments) == ("approximated" if moved else "honoured", {"models.saved_on_host": moved})
    assert ("also while the device has room" in row.reason) == moved, "the sources: when memory is short"


def test_activations_on_the_host_stay_where_they_are_if_nothing_else_is_asked() -> None:
    row = on("cpu", memory_offload="OFF")["memory_offload"]
    assert (row.status, row.assignments) == ("honoured", {})


def test_activations_on_the_host_have_nowhere_to_go() -> None:
    row = on("cpu", memory_offload="ON")["memory_offload"]
    assert (row.status, row.assignments) == ("refused", {})
    assert "memory_optimize_level=O1" in row.reason
    assert "memory_offload" not in on("cpu", beside="cuda", memory_offload="ON"), "the host's tensors are not meant"


@pytest.mark.parametrize("device", ACCELERATORS)
def test_recomputation_switches_offload_off_also_an_outer_scopes(device: str) -> None:
    layers = [make_layer({"memory_offload": "ON"}, "outer"), make_layer({"memory_optimize_level": "O1"}, "inner")]
    found = plan.make(Settings(layers), Facts.only(device))
    assert found.assignments["models.saved_on_host"] is False
    assert found.assignments["models.recompute"] is True


@pytest.mark.parametrize("device", ACCELERATORS)
@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"variable_placement": "Host"}, "host"),
        ({"variable_placement": "Device"}, None),
        ({"external_weight": True}, "file"),
        ({"external_weight": False, "variable_placement": "Host"}, "host"),
    ],
)
def test_parameters_have_one_place(device: str, options: dict[str, object], place: str | None) -> None:
    for row in on(device, **options).values():
        assert row.status == "honoured"
        assert row.assignments == {"models.parameters": place, "models.copies_of_parameters": place is not None}


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_needs_mixed_computing(device: str) -> None:
    (row,) = (r for r in plan.make(Settings([make_layer({"variable_placement": "Host"}, "test")]), Facts.only(device)).rows)
    assert (row.status, row.reason) == ("refused", "it needs mix_compile_mode=True")


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_host_needs_can_be_had(device: str) -> None:
    """Also by strict, which refuses each row of ``failing``."""
    found = plan.make(
        Settings([make_layer({"variable_placement": "Host", "mix_compile_mode": True}, "test")]), Facts.only(device)
    )
    assert found.failing == ()
    assert {row.option: row.status for row in found.rows} == {
        "variable_placement": "honoured",
        "mix_compile_mode": "approximated",
    }


@pytest.mark.parametrize("options", [{"mix_compile_mode": False}, {"mix_compile_mode": True, "mode": 0}])
def test_that_all_is_compiled_waits_for_graph_mode(options: dict[str, object]) -> None:
    rows = plan.make(Settings([make_layer(options, "test")]), Facts.only("cpu")).rows
    (row,) = (row for row in rows if row.option == "mix_compile_mode")
    assert (row.status, row.reason) == ("not_built", "not implemented yet: requires graph mode")


@pytest.mark.parametrize("place", ["Host", "Device"])
def test_files_override_either_place(place: str) -> None:
    rows = on("cuda", external_weight=True, variable_placement=place)
    assert (rows["external_weight"].status, rows["variable_placement"].status) == ("honoured", "inert")
    assert rows["external_weight"].assignments["models.parameters"] == "file"
    assert "overridden by external_weight" in rows["variable_placement"].reason


@pytest.mark.parametrize(("given", "place"), [(True, "file"), (False, None)])
def test_on_a_cpu_parameters_are_mapped_and_never_copied(given: bool, place: str | None) -> None:
    assert on("cpu", external_weight=given)["external_weight"].assignments == {"models.parameters": place}


def test_on_a_cpu_host_and_device_are_one_place() -> None:
    for given in ("Host", "Device"):
        for beside in ({}, {"external_weight": True}):
            row = on("cpu", variable_placement=given, **beside)["variable_placement"]
            assert (row.status, row.assignments) == ("honoured", {})
            assert "the two are one place" in row.reason
