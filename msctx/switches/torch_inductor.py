"""Switches of inductor's configuration, which must be written without loading inductor: that takes a second."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from msctx.graph.inductor_passes import Beside
from msctx.imports import when_imported
from msctx.switches.base import of
from msctx.torch_config import INDUCTOR, NOTHING, UNSET, Forced, by_variable


@cache
def obstacle(key: str) -> str:
    """Why a key cannot be set: this version of torch has none of that name, by its source; ``""``: it has."""
    try:
        source = Path(torch.__path__[0], "_inductor", "config.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "" if re.search(rf"^{key}\b", source, re.MULTILINE) else f"torch {torch.__version__} has no {INDUCTOR}.{key}"


# --- above all that programs set --------------------------------------------------------------------------------------


_DEFAULTS: dict[str, Callable[[], Any]] = {
    "torch.inductor.deterministic": by_variable("TORCHINDUCTOR_DETERMINISTIC"),
    "torch.inductor.cpp_wrapper": by_variable("TORCHINDUCTOR_CPP_WRAPPER"),  # not forced: AOTInductor cannot do without it
    "torch.inductor.layout_optimization": by_variable("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "0" if torch.version.hip else "1"),
}
_FORCED: dict[str, Callable[[], Any]] = {
    "torch.inductor.freezing": by_variable("TORCHINDUCTOR_FREEZING"),
    "torch.inductor.max_autotune": by_variable("TORCHINDUCTOR_MAX_AUTOTUNE"),
    "torch.inductor.max_autotune_gemm": by_variable("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"),
    "torch.inductor.max_autotune_conv_backends": lambda: os.environ.get(
        "TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS", "ATEN,TRITON"
    ).upper(),
    "torch.inductor.conv_1x1_as_mm": lambda: False,
    "torch.inductor.batch_invariant": by_variable("TORCHINDUCTOR_BATCH_INVARIANT"),
    "torch.inductor.emulate_precision_casts": by_variable("TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
    "torch.inductor.fallback_random": lambda: False,
    "torch.inductor.allow_buffer_reuse": lambda: True,
    "torch.inductor.inplace_buffers": lambda: True,
    "torch.inductor.reorder_for_locality": lambda: True,
    "torch.inductor.memory_planning": by_variable("TORCHINDUCTOR_MEMORY_PLANNING"),
    "torch.inductor.assert_indirect_indexing": lambda: True,
    "torch.inductor.debug_index_asserts": lambda: False,
    "torch.inductor.aot_inductor.debug_compile": by_variable("AOT_INDUCTOR_DEBUG_COMPILE"),
    "torch.inductor.aot_inductor.debug_symbols": by_variable("AOT_INDUCTOR_DEBUG_SYMBOLS"),
    "torch.inductor.fx_graph_cache": by_variable("TORCHINDUCTOR_FX_GRAPH_CACHE", "1"),
    "torch.inductor.autotune_local_cache": lambda: True,
    "torch.inductor.cpp_cache_precompile_headers": by_variable("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "1"),
    "torch.inductor.trace.enabled": by_variable("TORCH_COMPILE_DEBUG"),
    "torch.inductor.trace.debug_dir": lambda: None,
    "torch.inductor.trace.provenance_tracking_level": lambda: int(
        os.environ.get("INDUCTOR_PROVENANCE", os.environ.get("TORCH_COMPILE_DEBUG", "0"))
    ),
    "torch.inductor.bucket_all_gathers_fx": lambda: "none",
    "torch.inductor.bucket_reduce_scatters_fx": lambda: "none",
    "torch.inductor.bucket_all_reduces_fx": lambda: "none",
    "torch.inductor.reorder_for_compute_comm_overlap": lambda: False,
    "torch.inductor.reorder_for_compute_comm_overlap_passes": list,
    "torch.inductor._micro_pipeline_tp": lambda: False,
}
"""Switch → the value that its key has when inductor is loaded."""


class _Beside(Forced):
    """Whether a pass of ours runs beside the program's own in one of inductor's places for them."""

    def __init__(self, key: str, module: str, name: str) -> None:
        super().__init__(INDUCTOR, key, lambda: None)
        self._of, self._name = module, name

    def read(self) -> bool:
        return self.forced is not NOTHING

    def holds(self, value: bool) -> bool:
        return self.read() == value

    def write(self, value: bool) -> None:
        if value:
            made = getattr(import_module(self._of), self._name)  # which may take Dynamo
            super().write(made(self._programs_own))
        elif self.read():
            self.load((NOTHING, self.own, threading.current_thread()))

    def when_loaded(self) -> None:
        self.forced.when_loaded()

    def _programs_own(self) -> Any:
        own = self.own
        is_ours = isinstance(own, Beside)  # an option of torch.compile has put back what it read
        return self.entry.default if own is UNSET or is_ours else own


class _Kept(_Beside):
    """Matrix products of one row or column stay calls of PyTorch's operators: inductor makes sums of them, in another order.

    It has no setting for that: its decompositions and its lowering of bmm go while this holds. The pass changes nothing; by it
    torch's caches distinguish the code.
    """

    _stop: Callable[[], None] | None = None
    _undo: Callable[[], None] | None = None

    def _enforce(self, own: Any = None) -> None:
        super()._enforce(own)
        if self.read() and self._stop is None:
            self._stop = when_imported("torch._inductor.lowering", self._take)
        elif not self.read() and self._stop is not None:
            self._stop()
            if self._undo is not None:
                self._undo()
            self._stop = self._undo = None

    def _take(self) -> None:
        from torch._inductor import decomposition, lowering

        bmm = torch.ops.aten.bmm.default
        products = {op: found for op, found in decomposition.decompositions.items() if op in _PRODUCTS}
        lowered = lowering.lowerings[bmm]

        def undo() -> None:
            decomposition.decompositions.update(products)
            decomposition.fast_random_decomps.cache_clear()
            lowering.lowerings[bmm] = lowered

        for op in products:
            del decomposition.decompositions[op]
        decomposition.fast_random_decomps.cache_clear()
        lowering.lowerings[bmm] = lowering.fallback_handler(bmm, add_to_fallback_set=False)
        self._undo = undo


_PRODUCTS = {
    getattr(op, name) for op in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm) for name in op.overloads()
}
_BESIDE = {
    "torch.inductor.keeps_products": _Kept("joint_custom_post_pass", "msctx.graph.inductor_passes", "Unchanged"),
    "torch.inductor.marks_quantized_inputs": _Beside("pre_grad_custom_pass", "msctx.graph.inductor_passes", "Marking"),
    "torch.inductor.removes_concatenations": _Beside(
        "post_grad_custom_pre_pass", "msctx.graph.inductor_passes", "Concatenations"
    ),
}


_KEY = len("torch.inductor.")
SWITCHES = (
    *(of(name, Forced(INDUCTOR, name[_KEY:], unloaded, "default")) for name, unloaded in _DEFAULTS.items()),
    *(of(name, Forced(INDUCTOR, name[_KEY:], unloaded)) for name, unloaded in _FORCED.items()),
    *(of(name, value) for name, value in _BESIDE.items()),
)
