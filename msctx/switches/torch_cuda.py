"""Switches of torch's CUDA side. Those that only hold flags exist in every build of torch."""

from __future__ import annotations

import sys

import torch
from torch import _C

from msctx.switches import cuda_context
from msctx.switches.accelerator import current_device, memory_cap, synchronize_each_op, wait
from msctx.switches.base import Switch


def is_here() -> bool:
    return torch.backends.cuda.is_built() and torch.cuda.device_count() > 0


def _has_no_cache(on: bool) -> str:
    backend = torch.cuda.get_allocator_backend()
    return "" if backend == "native" else f"the allocator {backend} has no cache of torch's to switch off"


_caches = True
"""What :func:`_keep` last wrote: torch 2.11 cannot be requested."""


def _keeps() -> bool:
    ask = getattr(_C, "_cuda_cudaCachingAllocator_is_enabled", None)
    return bool(ask()) if ask else _caches


def _keep(on: bool) -> None:
    global _caches
    _C._cuda_cudaCachingAllocator_enable(on)
    _caches = on


def _sanitizes() -> bool:
    found = sys.modules.get("torch.cuda._sanitizer")
    return found is not None and found.cuda_sanitizer.enabled


def _sanitize(on: bool) -> None:
    if on != _sanitizes():
        from torch.cuda._sanitizer import cuda_sanitizer

        cuda_sanitizer.enable() if on else cuda_sanitizer.disable()


SWITCHES = (
    Switch("torch.cudnn.deterministic", _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    Switch("torch.cudnn.benchmark", _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    Switch("torch.cudnn.enabled", lambda: torch.backends.cudnn.enabled),
    Switch("torch.cudnn.benchmark_limit", lambda: torch.backends.cudnn.benchmark_limit),
    Switch("torch.cudnn.depthwise_kernel", lambda: getattr(torch.backends.cudnn, "depthwise_kernel", None)),
    Switch(
        "torch.cuda.matmul.allow_fp16_reduced_precision_reduction",
        lambda: list(_C._get_cublas_allow_fp16_reduced_precision_reduction()),
    ),
    Switch(
        "torch.cuda.matmul.allow_bf16_reduced_precision_reduction",
        lambda: list(_C._get_cublas_allow_bf16_reduced_precision_reduction()),
    ),
    Switch("torch.cuda.matmul.allow_fp16_accumulation", lambda: torch.backends.cuda.matmul.allow_fp16_accumulation),
    Switch("torch.sdp.flash", torch.backends.cuda.flash_sdp_enabled),
    Switch("torch.sdp.mem_efficient", torch.backends.cuda.mem_efficient_sdp_enabled),
    Switch("torch.sdp.math", torch.backends.cuda.math_sdp_enabled),
    Switch("torch.sdp.cudnn", torch.backends.cuda.cudnn_sdp_enabled),
)
OF_DEVICE = (
    current_device("torch.cuda.current_device", lambda: torch.cuda),
    memory_cap("torch.cuda.memory_cap", lambda: torch.cuda, cuda_context.overhead),
    # by the functions below torch.cuda's, which does nothing before CUDA is initialised
    Switch("torch.cuda.caching_allocator", _keeps, _keep, blocked=_has_no_cache),
    synchronize_each_op("torch.cuda.synchronize_each_op", lambda: torch.cuda),
    wait("torch.cuda.stream_sync_timeout", lambda: torch.cuda, "Stream"),
    wait("torch.cuda.event_sync_timeout", lambda: torch.cuda, "Event"),
    Switch("torch.cuda.sanitizer", _sanitizes, _sanitize),
    Switch("torch.cuda.context_overhead", cuda_context.observed),
)
