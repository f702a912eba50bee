"""Where NaN or an infinite value comes up first in a model."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from msctx.compare.cases import Case, Results


def has_none(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values, and no finite one."""
    return bool(tensor.is_floating_point() and tensor.numel() and not tensor.isfinite().any())


def others(found: Results) -> int:
    """How many values are not finite."""
    return sum(int((~tensor.isfinite()).sum()) for tensor in found)


def place(case: Case) -> str:
    """Where the first of them comes up while a case's model runs; ``""``: it has no model.

    An infinite input is none, but perhaps a mask.
    """
    if case.module is None:
        return ""
    for name, parameter in case.module.named_parameters():
        if others([parameter]):
            return f"in its parameter {name}"
    found: list[str] = []

    def enters(label: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        if any(tensor.isnan().any() for tensor in _tensors((args, kwargs))):
            found.append(f"in the input of {label}")

    def leaves(label: str, _: nn.Module, args: Any, result: Any) -> None:
        if others(_tensors(result)):
            found.append(f"in the result of {label}")

    with torch.compiler.set_stance("force_eager"), ExitStack() as hooks:
        for name, part in case.module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):  # which refuses hooks
                continue
            label = f"{name} ({type(part).__name__})" if name else type(part).__name__
            hooks.callback(part.register_forward_pre_hook(partial(enters, label), with_kwargs=True).remove)
            hooks.callback(part.register_forward_hook(partial(leaves, label)).remove)
        case.results()
    return found[0] if found else "in its gradients"


def _tensors(values: Any) -> Results:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
