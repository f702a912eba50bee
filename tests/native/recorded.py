"""What PyTorch's dispatcher was given, below the casts: the operators and the dtypes of their floating inputs."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOVES = (
    *(
        "_to_copy",
        "detach",
        "t",
        "view",
        "transpose",
        "expand",
        "_unsafe_view",
        "permute",
        "reshape",
        "clone",
        "ones_like",
        "alias",
    ),
    *("flip", "unsqueeze", "squeeze", "select", "slice"),
)


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
        elif name not in MOVES:
            found = [t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.is_floating_point()]
            self.calls.append((name, tuple(found)))
        return func(*args, **(kwargs or {}))

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {dtype for _, found in self.calls for dtype in found}
