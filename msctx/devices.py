"""What is on this machine: the only probing of devices."""

from __future__ import annotations

import sys
from functools import cache

from msctx.effects import Facts


@cache
def here() -> tuple[str, ...]:
    """The devices of this machine. Counts them only: nothing is initialised, so that a later fork still works."""
    from msctx.switches import torch_cuda, torch_npu

    return ("cpu", *(["cuda"] if torch_cuda.is_here() else []), *(["ascend"] if torch_npu.is_here() else []))


def facts() -> Facts:
    return Facts(devices=here(), recursion_limit=sys.getrecursionlimit())
