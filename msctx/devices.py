"""What is on this machine: the only probing of devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from glob import glob
from typing import Any

from msctx.native import core, ranks_and_process_group
from msctx.themes import INVARIANT, NEED_CORE, Facts

CUBLAS = "CUBLAS_EMULATE_SINGLE_PRECISION"
"""Read by cuBLAS when it starts: cuBLAS documentation, "Floating point emulation"."""


@cache
def here() -> tuple[str, ...]:
    """The devices of this machine. Counts them only: nothing is initialised, so that a later fork still works."""
    from msctx.switches import accelerator, torch_cuda

    return ("cpu", *(["cuda"] if torch_cuda.is_here() else []), *(["ascend"] if accelerator.npu_is_here() else []))


def likely() -> tuple[str, ...]:
    """The devices whose driver is loaded, found without importing torch: for what must be set before that."""
    nvidia = glob("/dev/nvidia[0-9]*") or glob("/dev/dxg")
    return ("cpu", *(["cuda"] if nvidia else []), *(["ascend"] if glob("/dev/davinci[0-9]*") else []))


def has(device: str) -> bool:
    """Whether it is here; torch is only imported if its driver is loaded."""
    return device in likely() and device in here()


@cache
def _cann() -> tuple[int, int] | None:
    """The version of CANN's runtime, e.g. (8, 5)."""
    match = re.match(r"(\d+)\.(\d+)", (ascend() or {}).get("cann") or "")
    return (int(match[1]), int(match[2])) if match else None


@cache
def ascend() -> dict[str, str | None] | None:
    """The name of the NPU's chip and the version of CANN's runtime; nothing is initialised to find out."""
    if "ascend" not in here():
        return None
    from torch_npu.npu.utils import get_cann_version

    from msctx.switches.torch_npu import soc_name

    return {"soc": soc_name(), "cann": str(get_cann_version("RUNTIME")) or None}


def facts(settings: Iterable[str] = (), free_memory: int = 0) -> Facts:
    """What plans depend on; the native core is looked for only where one of the options *settings* needs it."""
    found: dict[str, Any] = {"devices": here(), "free_memory": free_memory, "cann": _cann()}
    if "ascend" in here():
        found["half_products"] = not core.has_float32_products()
    if not NEED_CORE.isdisjoint(settings):
        found |= {"native": core.obstacle(), "amx": core.amx_obstacle(), "npu": core.hook_problem("ascend")}
        found["cudnn"] = core.cudnn_obstacle() if "cuda" in here() else ""
    if any(name in settings for name in INVARIANT):
        from msctx.switches.mkl import mkl_obstacle

        found["mkl"] = mkl_obstacle()
    if "batch_invariant" in settings:
        from msctx.switches import torch_compiler

        found["inductor"] = torch_compiler.obstacle()
    if "seed_by_rank" in settings:
        found["rank"] = ranks_and_process_group.known_rank()
    if (emulates := os.environ.get(CUBLAS, "0")) not in ("", "0"):
        found["cublas"] = f"{CUBLAS}={emulates}"
    return Facts(**found)
