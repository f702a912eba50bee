"""Switches of inductor's configuration, which must be written without loading inductor: that takes a second."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from msctx.inductor_pass import Beside
from msctx.switches.base import Switch
from msctx.switches.forced import INDUCTOR, NOTHING, Flag, Forced, forced_switch


@cache
def obstacle(key: str) -> str:
    """Why a key cannot be set: this version of torch has none of that name, by its source; ``""``: it has."""
    try:
        source = Path(torch.__path__[0], "_inductor", "config.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "" if re.search(rf"^{key}\b", source, re.MULTILINE) else f"torch {torch.__version__} has no {INDUCTOR}.{key}"


_FLAGS = {
    "torch.inductor.deterministic": ("TORCHINDUCTOR_DETERMINISTIC", "0"),
    "torch.inductor.cpp_wrapper": ("TORCHINDUCTOR_CPP_WRAPPER", "0"),  # not forced: AOTInductor cannot do without it
    "torch.inductor.layout_optimization": ("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "0" if torch.version.hip else "1"),
}
"""Switch → the environment variable from which its key takes its first value, and what an absent one means."""


# --- above all that programs set --------------------------------------------------------------------------------------


def _variable(name: str, default: str = "0") -> Callable[[], bool]:
    return lambda: os.environ.get(name, default) == "1"


def _provenance() -> int:
    return int(os.environ.get("INDUCTOR_PROVENANCE", os.environ.get("TORCH_COMPILE_DEBUG", "0")))


_FORCED: dict[str, Callable[[], Any]] = {
    "torch.inductor.freezing": _variable("TORCHINDUCTOR_FREEZING"),
    "torch.inductor.max_autotune": _variable("TORCHINDUCTOR_MAX_AUTOTUNE"),
    "torch.inductor.max_autotune_gemm": _variable("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"),
    "torch.inductor.max_autotune_conv_backends": lambda: os.environ.get(
        "TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS", "ATEN,TRITON"
    ).upper(),
    "torch.inductor.conv_1x1_as_mm": lambda: False,
    "torch.inductor.batch_invariant": _variable("TORCHINDUCTOR_BATCH_INVARIANT"),
    "torch.inductor.emulate_precision_casts": _variable("TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
    "torch.inductor.fallback_random": lambda: False,
    "torch.inductor.allow_buffer_reuse": lambda: True,
    "torch.inductor.inplace_buffers": lambda: True,
    "torch.inductor.reorder_for_locality": lambda: True,
    "torch.inductor.memory_planning": _variable("TORCHINDUCTOR_MEMORY_PLANNING"),
    "torch.inductor.assert_indirect_indexing": lambda: True,
    "torch.inductor.debug_index_asserts": lambda: False,
    "torch.inductor.aot_inductor.debug_compile": _variable("AOT_INDUCTOR_DEBUG_COMPILE"),
    "torch.inductor.aot_inductor.debug_symbols": _variable("AOT_INDUCTOR_DEBUG_SYMBOLS"),
    "torch.inductor.fx_graph_cache": _variable("TORCHINDUCTOR_FX_GRAPH_CACHE", "1"),
    "torch.inductor.autotune_local_cache": lambda: True,
    "torch.inductor.cpp_cache_precompile_headers": _variable("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "1"),
    "torch.inductor.trace.enabled": _variable("TORCH_COMPILE_DEBUG"),
    "torch.inductor.trace.debug_dir": lambda: None,
    "torch.inductor.trace.provenance_tracking_level": _provenance,
    "torch.inductor.bucket_all_gathers_fx": lambda: "none",
    "torch.inductor.bucket_reduce_scatters_fx": lambda: "none",
    "torch.inductor.bucket_all_reduces_fx": lambda: "none",
    "torch.inductor.reorder_for_compute_comm_overlap": lambda: False,
    "torch.inductor.reorder_for_compute_comm_overlap_passes": list,
    "torch.inductor._micro_pipeline_tp": lambda: False,
}
"""Switch → the value that its key has when inductor is loaded."""


def _flag(name: str, variable: str, default: str) -> Switch:
    value = Flag(name.removeprefix("torch.inductor."), variable, default)
    return Switch(name=name, read=value.read, write=value.write, state=(value.save, value.load), family=name)


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
            self.load((NOTHING, self.own))

    def when_loaded(self) -> None:
        self.forced.when_loaded()

    def _programs_own(self) -> Any:
        from torch.utils._config_module import _UNSET_SENTINEL

        own = self.own
        is_ours = isinstance(own, Beside)  # an option of torch.compile has put back what it read
        return self.entry.default if own is _UNSET_SENTINEL or is_ours else own


_BESIDE = {
    "torch.inductor.marks_quantized_inputs": _Beside("pre_grad_custom_pass", "msctx.observers.quantized_inputs", "Marking"),
    "torch.inductor.removes_concatenations": _Beside(
        "post_grad_custom_pre_pass", "msctx.graph.concatenations", "Concatenations"
    ),
}


def _beside(name: str, value: _Beside) -> Switch:
    return Switch(name=name, read=value.read, write=value.write, state=(value.save, value.load), satisfied=value.holds)


SWITCHES = (
    *(_flag(name, *variable) for name, variable in _FLAGS.items()),
    *(forced_switch(n, Forced(INDUCTOR, n.removeprefix("torch.inductor."), unloaded)) for n, unloaded in _FORCED.items()),
    *(_beside(name, value) for name, value in _BESIDE.items()),
)
