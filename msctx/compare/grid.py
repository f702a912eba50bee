"""What is compared: the points of a grid of options, each a choice of one value for each axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msctx.options import OPTIONS, find
from msctx.options.conv_rules import DIRECTIONS, PRODUCT, option_of

PHASES = ("inference", "training")
ALGORITHMS = (*map(option_of, DIRECTIONS), option_of(PRODUCT))


@dataclass(frozen=True)
class Point:
    """One choice: its name, and the options that it sets beside those of all."""

    name: str
    options: Mapping[str, Any]


def points(axes: Mapping[str, Any]) -> list[Point]:
    """The product of all axes, the last running fastest: options with their values, and names with named sets of options."""
    found = []
    for picked in itertools.product(*(_choices(key, values) for key, values in axes.items())):
        options: dict[str, Any] = {}
        for _, more in picked:
            options.update(more)
        found.append(Point(", ".join(name for name, _ in picked), options))
    return found


def _choices(key: str, values: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(values, Mapping):
        return [(str(name), options or {}) for name, options in values.items()]
    return [(f"{key}={str(value).lower() if isinstance(value, bool) else value}", {key: value}) for value in values]


def relevant(options: Mapping[str, Any], direction: str) -> dict[str, Any]:
    """Those that apply to one direction of a convolution, or to a product: algorithms of the others do not."""
    if direction in PHASES:
        return dict(options)
    own = option_of(PRODUCT if direction == "forward" else direction)
    rules = "conv_algo_rules" if direction == "forward" else "matmul_algo_rules"
    others = {*ALGORITHMS, rules} - {own}
    return {key: value for key, value in options.items() if name_of(key) not in others}


def asked_algorithm(options: Mapping[str, Any], direction: str) -> str:
    """The algorithm that options name for a direction, in MindSpore's own word; ``""`` where they name none."""
    for key, value in options.items():
        if name_of(key) == option_of(direction) and (kind := OPTIONS[name_of(key)].kind):
            return str(kind.parse(value))
    return ""


def besides(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that name no algorithm."""
    return {key: value for key, value in options.items() if name_of(key) not in ALGORITHMS}


def name_of(key: str) -> str:
    """The name of the option that a spelling is of; what is none of ours stays as it is."""
    option = find(key)
    return key if option is None else option.name


def every_algorithm(directions: Sequence[str], *, products: bool) -> dict[str, dict[str, str]]:
    """An axis with each algorithm, for all directions that have it; without the one that checks the others."""
    found: dict[str, dict[str, str]] = {}
    for direction in (*directions, *[PRODUCT] * products):
        for name in getattr(OPTIONS[option_of(direction)].kind, "choices", ()):
            found.setdefault(name, {})[option_of(direction)] = name
    found.pop("reference", None)
    return found
