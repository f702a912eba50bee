"""MindSpore's ``device_context``: functions per kind of device, with MindSpore's once-only rules and targets."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from msctx.mindspore import keys_and_rules as keys
from msctx.mindspore.absent_names import no_attribute, of
from msctx.setter_functions import build

cpu: Any
gpu: Any
ascend: Any


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
for _part in ("ascend.op_tuning", "ascend.op_debug"):
    vars(sys.modules[f"{__name__}.{_part}"]).update(of(f"device_context.{_part}"))
for _kind, _word in (("cpu", "CPU"), ("gpu", "GPU"), ("ascend", "Ascend")):
    _ask(sys.modules[f"{__name__}.{_kind}"], _word)
__getattr__ = partial(no_attribute, __name__)
