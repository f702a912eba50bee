"""What is compared: the points of a grid of options, each a choice of one value for each axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msctx.options import OPTIONS, find
from msctx.options.conv_rules import option_of

DIRECTIONS = ("fprop", "dgrad", "wgrad")
PHASES = ("inference", "training")
ALGORITHMS = tuple(f"conv_{direction}_algo" for direction in DIRECTIONS)
Axes = Mapping[str, "Sequence[Any] | Mapping[str, Mapping[str, Any]]"]
"""An option with its values, or a name of one's own with sets of options by names of one's own."""


@dataclass(frozen=True)
class Point:
    """One choice: its name, and the options that it sets beside those of all."""

    name: str
    options: Mapping[str, Any]


def points(axes: Axes) -> list[Point]:
    """The product of all axes, the last running fastest."""
    each = [_choices(key, values) for key, values in axes.items()]
    found = []
    for picked in itertools.product(*each):
        options: dict[str, Any] = {}
        for _, more in picked:
            options.update(more)
        found.append(Point(", ".join(name for name, _ in picked), options))
    return found


def _choices(key: str, values: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(values, Mapping):
        return [(str(name), options or {}) for name, options in values.items()]
    return [(f"{key}={_text(value)}", {key: value}) for value in values]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def relevant(options: Mapping[str, Any], direction: str) -> dict[str, Any]:
    """Those that apply to one direction of a convolution, or to a product: algorithms of the others do not."""
    if direction == "forward":
        others = {*ALGORITHMS, "conv_algo_rules"}
    elif direction in DIRECTIONS:
        others = {*ALGORITHMS, "matmul_algo", "matmul_algo_rules"} - {f"conv_{direction}_algo"}
    else:
        return dict(options)
    return {key: value for key, value in options.items() if name_of(key) not in others}


def asked_algorithm(options: Mapping[str, Any], direction: str) -> str:
    """The algorithm that options name for a direction, in MindSpore's own word; ``""`` where they name none."""
    for key, value in options.items():
        if name_of(key) == option_of(direction) and (kind := OPTIONS[name_of(key)].kind):
            return str(kind.parse(value))
    return ""


def algorithms(options: Mapping[str, Any]) -> dict[str, str]:
    """Direction → the algorithm that options name for it."""
    return {direction: name for direction in DIRECTIONS if (name := asked_algorithm(options, direction))}


def besides(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that name no algorithm."""
    return {key: value for key, value in options.items() if name_of(key) not in (*ALGORITHMS, "matmul_algo")}


def name_of(key: str) -> str:
    """The name of the option that a spelling is of; what is none of ours stays as it is."""
    option = find(key)
    return key if option is None else option.name


def every_algorithm(directions: Sequence[str] = DIRECTIONS) -> dict[str, dict[str, str]]:
    """An axis with each algorithm of convolution, for all directions that have it; without the one that checks the others."""
    found: dict[str, dict[str, str]] = {}
    for direction in directions:
        kind = OPTIONS[f"conv_{direction}_algo"].kind
        for name in getattr(kind, "choices", ()):
            found.setdefault(name, {})[f"conv_{direction}_algo"] = name
    found.pop("reference", None)
    return found


def every_product() -> dict[str, dict[str, str]]:
    """The same of matrix products."""
    names = getattr(OPTIONS["matmul_algo"].kind, "choices", ())
    return {name: {"matmul_algo": name} for name in names if name != "reference"}
