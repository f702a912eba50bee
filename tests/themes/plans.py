"""What the tests of translations share: plans for machines that are made up, as the devices that they have."""

from typing import Any

from msctx import plan
from msctx.options import Settings, make_layer
from msctx.themes import Facts

Options = dict[str, Any]


def planned(*layers: Options, on: str | tuple[str, ...] = "cpu", **facts: Any) -> plan.Plan:
    """The plan of options set in scopes inside each other, named by their place, on a machine with these devices."""
    devices = (on,) if isinstance(on, str) else on
    made = [make_layer(options, f"layer {place}") for place, options in enumerate(layers)]
    return plan.make(Settings(made), Facts(devices=devices, **facts))
