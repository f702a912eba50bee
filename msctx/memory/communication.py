"""Whether a block exchanges something with other processes, which it must not do twice."""

from __future__ import annotations

import re
from types import CodeType, ModuleType
from typing import Any

from torch import distributed

REASON = "it communicates with other processes, each of which decides for itself what it computes again"
_COLLECTIVE = re.compile(
    r"_?(monitored_)?(all_?gather|all_?reduce|all_?to_?all|barrier|batch_isend_irecv|broadcast|gather|i?send|i?recv|reduce"
    r"|reduce_?scatter|scatter)(_(autograd|base|coalesced|into_tensor|object|object_list|single|tensor))*"
)
"""The functions of torch.distributed, and the methods of its groups, by which processes exchange something."""
_AMBIGUOUS = {"barrier", "gather", "scatter", "reduce", "send", "recv", "broadcast"}
"""Names that much else has, too."""


def is_one_of_several() -> bool:
    """Whether torch.distributed has made this process one of several."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def is_named(names: set[str], space: dict[str, Any]) -> bool:
    """Whether code with these global variables names it."""
    clear = names if any(_is_of_distributed(space.get(name)) for name in names) else names - _AMBIGUOUS
    return any(map(_COLLECTIVE.fullmatch, clear))


def runs(module: Any, code: CodeType) -> bool:
    """Whether a function is one of torch.distributed's that exchange something; any operator of DTensor may."""
    if not isinstance(module, str) or not module.startswith("torch.distributed."):
        return False
    always = module.startswith(("torch.distributed.tensor.", "torch.distributed._functional_collectives"))
    return always or _COLLECTIVE.fullmatch(code.co_name) is not None


def is_message(what: Any) -> bool:
    """Whether a function in C is a method of a process group that exchanges something."""
    is_group = "distributed_c10d" in type(getattr(what, "__self__", None)).__module__
    return is_group and _COLLECTIVE.fullmatch(getattr(what, "__name__", "")) is not None


def _is_of_distributed(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return isinstance(name, str) and name.startswith("torch.distributed")
