"""Convolutions of compiled code read the weights of a model where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._inductor.ir import FixedLayout
from torch._inductor.lowering import fallback_handler, lowerings

WEIGHTS = {torch.ops.aten.convolution.default: 1, torch.ops.aten.convolution_backward.default: 2}
"""Which argument is the weight."""
SETTINGS = {"layout_optimization": False}


@contextmanager
def not_copied() -> Iterator[None]:
    """Inductor copies weights to the strides of a convolution's input, in each call, and with layout_optimization to channels_last.

    A copy belongs to no module, so that no rule for one would hold; and kernels bring a weight into a form of their own. To be
    entered under Dynamo's lock, as all that torch.compile does, with SETTINGS.
    """

    tables: Any = lowerings
    before = {target: tables[target] for target in WEIGHTS if target in tables}
    for target, lowering in before.items():
        tables[target] = partial(_lowered, WEIGHTS[target], lowering, fallback_handler(target, add_to_fallback_set=False))
    try:
        yield
    finally:
        tables.update(before)


def _lowered(place: int, lowering: Callable[..., Any], as_it_is: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:

    weight = args[place]
    is_computed = weight.get_device().type != "cpu" or not isinstance(weight.get_layout(), FixedLayout)
    return (lowering if is_computed else as_it_is)(*args, **kwargs)
