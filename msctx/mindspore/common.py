"""MindSpore's module ``common``, as far as it is about the context: seeds."""

import sys
from typing import Any

from msctx.mindspore.absent_names import CONTEXT, Absent
from msctx.mindspore.top_level_functions import get_seed, set_seed

__all__ = ["get_seed", "set_seed"]
__path__: list[str] = []  # importing what is below it raises the reason, but for
seed = sys.modules[f"{__name__}.seed"] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return Absent(f"common.{name}", f"{CONTEXT} torch")
