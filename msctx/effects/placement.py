"""Where activations and parameters of watched models are, and in which memory format."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured, inert, refused

PRIVATE = (
    "torch_npu gives weights such a format when a model is moved to the device, and those of convolutions only where jit_compile has "
    "operators compiled for the call; weights that are there stay as they are"
)
ALWAYS = "what the forward pass saves goes to the host always, also while the device has room for it"
WATCHED = "parameters of the models that ctx.watch names"


@effect("memory_offload")
def memory_offload(want: Want) -> Outcome | None:
    on = want.value == "ON"
    if want.device != "cpu":
        switches = {"models.saved_on_host": on}
        return approximated(switches, ALWAYS) if on else honoured(switches)
    if want.facts.devices != ("cpu",):
        return None
    if not on:
        return NOTHING_ASKED
    return refused(
        "what the forward pass saves is in host memory already. memory_optimize_level=O1 computes it again instead, under "
        "max_device_memory as little as needed"
    )


def placement(want: Want) -> dict[str, Any]:
    """The assignments that both options come to together."""
    place = "file" if want.other("external_weight") else "host" if want.other("variable_placement") == "Host" else None
    found: dict[str, Any] = {"models.parameters": place}
    return found if want.device == "cpu" else found | {"models.copies_of_parameters": place is not None}


@effect("variable_placement")
def variable_placement(want: Want) -> Outcome:
    if want.device == "cpu":
        return honoured(reason="the memory of the device is host memory: the two are one place")
    if want.other("external_weight"):
        return inert("overridden by external_weight, which maps the parameters from files, in host memory")
    copied = ": copied to the device by each operator that needs them" if want.value == "Host" else ""
    return honoured(placement(want), f"{WATCHED}{copied}")


@effect("external_weight")
def external_weight(want: Want) -> Outcome:
    how = "mapped from files named by their content; equal ones share memory until one is written to"
    copied = "" if want.device == "cpu" else ", and copied to the device by each operator that needs them"
    return honoured(placement(want), f"{WATCHED}: {how}{copied}")


@effect("variable_format_optimize")
def variable_format_optimize(want: Want) -> Outcome:
    if want.device == "ascend":
        return approximated({"torch.npu.allow_internal_format": want.value}, PRIVATE)
    if want.other("external_weight"):
        return inert("overridden by external_weight: its files hold the weights as they are")
    wanted = "channels_last" if want.value else "contiguous"
    return honoured({"models.weight_format": wanted}, "weights of 2-D and 3-D convolutions of the models that ctx.watch names")
