"""memory_offload, variable_placement, external_weight, variable_format_optimize: of activations and parameters."""

from typing import Any

from plans import check, planned

from msctx.options import DEVICES

ACCELERATORS = ("cuda", "ascend")


def parameters(place: str | None, *, copies: bool = True) -> dict[str, Any]:
    return {"models.parameters": place} | ({"models.copies_of_parameters": place is not None} if copies else {})


def test_activations_go_to_the_host_where_that_is_another_place() -> None:
    always = "also while the device has room"  # the sources: when memory is short
    for device in ACCELERATORS:
        check(
            [
                (
                    device,
                    {"memory_offload": "ON"},
                    {"memory_offload": ("approximated", {"models.saved_on_host": True}, always)},
                ),
                (device, {"memory_offload": "OFF"}, {"memory_offload": ("honoured", {"models.saved_on_host": False}, "")}),
            ]
        )
        found = planned({"memory_offload": "ON"}, {"memory_optimize_level": "O1"}, on=device).assignments
        assert (found["models.saved_on_host"], found["models.recompute"]) == (False, True), "an outer scope's too"
    check(
        [
            ("cpu", {"memory_offload": "OFF"}, {"memory_offload": ("honoured", {}, "nothing is asked for")}),
            ("cpu", {"memory_offload": "ON"}, {"memory_offload": ("refused", {}, "memory_optimize_level=O1")}),
        ]
    )
    both = planned({"memory_offload": "ON"}, on=("cpu", "cuda")).rows
    assert [row.device for row in both] == ["cuda"], "the host's tensors are not meant"


def test_parameters_have_one_place() -> None:
    where = "parameters of the models that ctx.watch names"
    for device in ACCELERATORS:
        for options, place in (
            ({"variable_placement": "Host", "mix_compile_mode": True}, "host"),
            ({"variable_placement": "Device"}, None),
            ({"external_weight": True}, "file"),
            ({"external_weight": False, "variable_placement": "Host", "mix_compile_mode": True}, "host"),
        ):
            asked = {name for name in options if name != "mix_compile_mode"}
            check([(device, options, dict.fromkeys(asked, ("honoured", parameters(place), where)))])
    both = {"external_weight": True, "variable_placement": "Host", "mix_compile_mode": True}
    mapped = ("honoured", parameters("file"), where)
    check(
        [
            ("cpu", {"external_weight": True}, {"external_weight": ("honoured", parameters("file", copies=False), where)}),
            ("cpu", {"external_weight": False}, {"external_weight": ("honoured", parameters(None, copies=False), where)}),
            ("cpu", {"variable_placement": "Device"}, {"variable_placement": ("honoured", {}, "the two are one place")}),
            ("cpu", both, {"variable_placement": ("honoured", {}, "the two are one place")}),
            *(
                (
                    "cuda",
                    given,
                    {"variable_placement": ("inert", {}, "overridden by external_weight"), "external_weight": mapped},
                )
                for given in (both, {"external_weight": True, "variable_placement": "Device"})
            ),
        ]
    )


def test_the_host_needs_mixed_computing() -> None:
    for device in DEVICES:
        (row,) = planned({"variable_placement": "Host"}, on=device).rows
        assert (row.status, row.reason) == ("refused", "it needs mix_compile_mode=True")
        found = planned({"variable_placement": "Host", "mix_compile_mode": True}, on=device)
        assert found.failing == (), "so strict takes it"
        statuses = {row.option: row.status for row in found.rows}
        assert statuses == {"variable_placement": "honoured", "mix_compile_mode": "approximated"}


def test_weights_have_one_format() -> None:
    where = "2-D and 3-D convolutions of the models that ctx.watch names"
    for device in ("cpu", "cuda"):
        for value, wanted in ((True, "channels_last"), (False, "contiguous")):
            expected = ("honoured", {"models.weight_format": wanted}, where)
            check([(device, {"session": {"variable_format_optimize": value}}, {"variable_format_optimize": expected})])
        both = {"variable_format_optimize": True, "external_weight": True}
        check([(device, both, {"variable_format_optimize": ("inert", {}, "overridden by external_weight")})])
    expected = ("approximated", {"torch.npu.allow_internal_format": True}, "moved to the device")
    check([("ascend", {"variable_format_optimize": True}, {"variable_format_optimize": expected})])
