"""What is on this machine: the only probing of devices."""

from __future__ import annotations

import sys
from functools import cache
from glob import glob

from msctx.effects import Facts


@cache
def here() -> tuple[str, ...]:
    """The devices of this machine. Counts them only: nothing is initialised, so that a later fork still works."""
    from msctx.switches import torch_cuda, torch_npu

    return ("cpu", *(["cuda"] if torch_cuda.is_here() else []), *(["ascend"] if torch_npu.is_here() else []))


def likely() -> tuple[str, ...]:
    """The devices whose driver is loaded, told without importing torch: for what must be set before that."""
    nvidia = glob("/dev/nvidia[0-9]*") or glob("/dev/dxg")
    return ("cpu", *(["cuda"] if nvidia else []), *(["ascend"] if glob("/dev/davinci[0-9]*") else []))


def facts() -> Facts:
    return Facts(devices=here(), recursion_limit=sys.getrecursionlimit())
