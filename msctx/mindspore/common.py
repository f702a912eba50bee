"""MindSpore's module ``common``, as far as it is about the context: seeds."""

import sys

from msctx.mindspore.device import get_seed, set_seed

__all__ = ["get_seed", "set_seed"]
seed = sys.modules[f"{__name__}.seed"] = sys.modules[__name__]
