"""Values of options for tests; options that name a file get the shipped sample."""

from typing import Any

from msctx import plan
from msctx.options import OPTIONS, UNSET, Option, Settings, make_layer
from msctx.options.kinds import Bool
from msctx.reference import typical as example
from msctx.shipped import CONFIGS
from msctx.themes import Facts

DATA = CONFIGS / "files"


def values(option: Option) -> list[Any]:
    """The closed choices of an option, its default and its example."""
    closed = list(option.choices) or ([True, False] if option.kind is Bool else [])
    return [*closed, example(option), *([option.default] if option.default is not UNSET else [])]


EXAMPLES = {name: example(option) for name, option in OPTIONS.items()}


def planned(*layers: dict[str, Any], on: str | tuple[str, ...] = "cpu", **facts: Any) -> plan.Plan:
    """The plan of options set in scopes inside each other, named by their place, on a machine with these devices."""
    devices = (on,) if isinstance(on, str) else on
    made = [make_layer(options, f"layer {place}") for place, options in enumerate(layers)]
    return plan.make(Settings(made), Facts(devices=devices, **facts))
