"""What PyTorch's dispatcher was given, below the casts; and PyTorch's own samples of its operators."""

import importlib.util
import sys
import types
import unittest
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from msctx.options.precision_policy import MODES

MOVES = (
    "_to_copy detach t view transpose expand _unsafe_view permute reshape clone ones_like alias flip unsqueeze squeeze select "
    "slice"
)
QUICK = ("force_fp16", "allow_mix_precision_bf16")
each_mode = pytest.mark.parametrize("mode", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.full) for m in MODES])


class Recorded(TorchDispatchMode):
    """``calls``: (name, dtypes of floating inputs) of each operator that computes; ``casts``: how many ``_to_copy``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[torch.dtype, ...]]] = []
        self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name == "_to_copy":
            self.casts += 1
        elif name not in MOVES.split():
            found = [t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.is_floating_point()]
            self.calls.append((name, tuple(found)))
        return func(*args, **(kwargs or {}))

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {dtype for _, found in self.calls for dtype in found}


def op_db() -> list[Any]:
    """PyTorch's samples."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stub: Any = types.ModuleType("expecttest")  # torch's testing modules import it for other things than the samples
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    # Loading it forbids this whole process to set torch.backends' flags.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return op_db
