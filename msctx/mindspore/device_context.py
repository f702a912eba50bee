"""MindSpore's ``device_context``: functions per kind of device, with MindSpore's checks, once-only rules and targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from msctx.mindspore import state
from msctx.mindspore.absent import Absent, names
from msctx.mindspore.functions import setter
from msctx.vocabulary import build

cpu: Any
gpu: Any
ascend: Any

NOT_CARRIED_OUT = {
    "ascend.op_tuning.aclnn_cache": "torch_npu has no such cache that could be set",
    "ascend.op_debug.debug_option": "msctx.set_context(op_debug_config=<file>) is there for checks of memory accesses",
    "ascend.op_debug.aclinit_config": "torch_npu initialises ACL by itself",
}


def _questions(word: str) -> tuple[Callable[[], int], Callable[[], bool]]:
    """The functions of one kind of device that set nothing."""

    def device_count() -> int:
        """How many devices of this kind there are; there is always one CPU.

        Raises:
            RuntimeError: there is none.
        """
        device = state.torch_module(word)
        return int(device.device_count()) if device else 1

    def is_available() -> bool:
        """Whether this machine has such a device, and PyTorch can use it."""
        return state.is_here(word)

    return device_count, is_available


def _fill(root: ModuleType) -> None:
    build(root, "device_context", setter)
    for name, why in NOT_CARRIED_OUT.items():
        between, _, last = name.rpartition(".")
        setattr(sys.modules[f"{root.__name__}.{between}"], last, Absent(f"ms.device_context.{name}", why))
    for kind, word in (("cpu", "CPU"), ("gpu", "GPU"), ("ascend", "Ascend")):
        for function in _questions(word):
            function.__module__, function.__qualname__ = f"{root.__name__}.{kind}", function.__name__
            setattr(sys.modules[function.__module__], function.__name__, function)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{root.__name__}."):
            vars(module)["__getattr__"] = names(name, vars(module))


_fill(sys.modules[__name__])

__getattr__ = names(__name__, ("cpu", "gpu", "ascend"))
