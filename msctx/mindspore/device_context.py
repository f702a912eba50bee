"""MindSpore's ``device_context``: functions per kind of device, with MindSpore's once-only rules and targets."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from msctx.mindspore import keys
from msctx.mindspore.absent_names import Absent
from msctx.setter_functions import build

cpu: Any
gpu: Any
ascend: Any

NOT_SUPPORTED = {
    "ascend.op_tuning.aclnn_cache": "torch_npu has no such cache that could be set",
    "ascend.op_debug.debug_option": "msctx.set_context(op_debug_config=<file>) checks memory accesses",
    "ascend.op_debug.aclinit_config": "torch_npu initialises ACL by itself",
}


def _ask(module: ModuleType, word: str) -> None:
    """Give the module of one kind of device the functions that set nothing."""

    def device_count() -> int:
        """How many devices of this kind there are; there is always one CPU. RuntimeError: there is none."""
        device = keys.torch_module(word)
        return int(device.device_count()) if device else 1

    def is_available() -> bool:
        """Whether this machine has such a device, and PyTorch can use it."""
        return keys.is_here(word)

    vars(module).update(device_count=device_count, is_available=is_available)


build(sys.modules[__name__], "device_context", keys.set_one)
for _name, _why in NOT_SUPPORTED.items():
    _module, _, _last = f"{__name__}.{_name}".rpartition(".")
    setattr(sys.modules[_module], _last, Absent(f"ms.device_context.{_name}", _why))
for _kind, _word in (("cpu", "CPU"), ("gpu", "GPU"), ("ascend", "Ascend")):
    _ask(sys.modules[f"{__name__}.{_kind}"], _word)
