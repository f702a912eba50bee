"""conv_algo_rules for the layers of a workload: which layers no condition can separate, and the conditions that separate the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msctx.compare.workload import DEFAULTS, LAYOUTS, Convolution


def as_matched(layer: Convolution) -> Convolution:
    """A layer as rules see it: layers for which this is equal always get the same algorithms."""
    _, channels, *image = layer.input
    shows_layout = len(image) > 1 and channels > 1 and set(image) != {1}
    return replace(layer, name="", count=1, layout=layer.layout if shows_layout else LAYOUTS[0])


def rules_of(asked: Mapping[Convolution, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Conditions → the algorithms of the layers that they match. No layer is matched by the condition of another.

    A rule applies to any batch, unless layers that differ in nothing else have other algorithms.

    Args:
        asked: each layer of a workload :func:`as_matched`, those without an algorithm too → direction → algorithm.
    """
    rules = {}
    for layer, algorithms in asked.items():
        if algorithms:
            batches = [other for other in asked if _of_any_batch(other) == _of_any_batch(layer)]
            for_any = all(asked[other] == algorithms for other in batches)
            rules[_condition(layer, asked, "*" if for_any else str(layer.input[0]))] = dict(algorithms)
    return rules


def _of_any_batch(layer: Convolution) -> Convolution:
    return replace(layer, input=(0, *layer.input[1:]))


def _condition(layer: Convolution, layers: Iterable[Convolution], batch: str) -> str:
    """A layer's image, weight and what else sets it apart from the other layers."""
    words = [f"input={'x'.join([batch, *map(str, layer.input[1:])])}", f"weight={'x'.join(map(str, layer.weight))}"]
    alike = [other for other in layers if (other.input[1:], other.weight) == (layer.input[1:], layer.weight)]
    for field, default in {**DEFAULTS, "groups": 1, "transposed": False, "dtype": layer.dtype, "layout": layer.layout}.items():
        value = getattr(layer, field)
        is_default = set(value) == {default} if isinstance(value, tuple) else value == default
        if not is_default or any(getattr(other, field) != value for other in alike):
            words.append(f"{field}={_along(value) if isinstance(value, tuple) else str(value).lower()}")
    return " ".join(words)


def _along(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))
