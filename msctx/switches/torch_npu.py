"""Switches of Ascend, through torch_npu; they exist once torch_npu is imported and finds a device."""

from __future__ import annotations

from typing import Any

import torch

from msctx.switches.accelerator import current_device, memory_cap, synchronize_each_op
from msctx.switches.base import Switch


def is_here() -> bool:
    return hasattr(torch, "npu") and torch.npu.is_available()


def npu() -> Any:
    """``torch.npu``, which torch_npu puts there."""
    return vars(torch)["npu"]


def _hf32(name: str, kind: str) -> Switch:
    def write(on: bool) -> None:
        getattr(npu(), kind).allow_hf32 = on

    return Switch(name=name, read=lambda: getattr(npu(), kind).allow_hf32, write=write, available=is_here)


def _option(name: str, key: str) -> Switch:
    """An option of torch_npu's compiler of operators; ``None``: unset."""

    def read() -> str | None:
        import torch_npu

        found = torch_npu._C._npu_getOption(key)
        return (found.decode() if isinstance(found, bytes) else found) or None

    def write(value: str | None) -> None:
        import torch_npu

        torch_npu._C._npu_setOption({key: value or ""})

    return Switch(name=name, read=read, write=write, available=is_here)


SWITCHES = (
    current_device("torch.npu.current_device", npu, is_here),
    memory_cap("torch.npu.memory_cap", npu, is_here),
    synchronize_each_op("torch.npu.synchronize_each_op", npu, is_here),
    _hf32("torch.npu.matmul.allow_hf32", "matmul"),
    _hf32("torch.npu.conv.allow_hf32", "conv"),
    _option("torch.npu.precision_mode", "ACL_PRECISION_MODE"),
    _option("torch.npu.op_select_implmode", "ACL_OP_SELECT_IMPL_MODE"),
    _option("torch.npu.optypelist_for_implmode", "ACL_OPTYPELIST_FOR_IMPLMODE"),
    _option("torch.npu.op_debug_option", "ACL_OP_DEBUG_OPTION"),
    _option("torch.npu.debug_dir", "ACL_DEBUG_DIR"),
    _option("torch.npu.op_compiler_cache_mode", "ACL_OP_COMPILER_CACHE_MODE"),
    _option("torch.npu.op_compiler_cache_dir", "ACL_OP_COMPILER_CACHE_DIR"),
)
