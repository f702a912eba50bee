"""Switches of inductor's configuration, which must be written without loading inductor: that takes a second."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from msctx.errors import SwitchError
from msctx.inductor_pass import Beside
from msctx.switches.base import Switch
from msctx.switches.forced import NOTHING, Forced, entry_of, forced_switch
from msctx.torch_config import is_threads_own, override, put_override

_MODULE = "torch._inductor.config"


def _entry(key: str) -> Any:
    return entry_of(_MODULE, key)


@cache
def obstacle(key: str) -> str:
    """Why a key cannot be set: this version of torch has none of that name, by its source; ``""``: it has."""
    try:
        source = Path(torch.__path__[0], "_inductor", "config.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "" if re.search(rf"^{key}\b", source, re.MULTILINE) else f"torch {torch.__version__} has no {_MODULE}.{key}"


# --- in place of inductor's default -----------------------------------------------------------------------------------


class _Flag:
    """A truth value of ``torch._inductor.config`` in every thread, unless ``torch.compile`` is given another.

    An assignment to the config module holds for the calling thread alone (trap 7), so the default is written, which all threads
    read; the thread's own value, too, where it has one. While inductor is not loaded, the environment variable that it reads when
    it loads stands for it; loading inside the scope is allowed for.
    """

    def __init__(self, key: str, variable: str, default: str) -> None:
        self.key, self.variable, self.default = key, variable, default

    def read(self) -> bool:
        if _entry(self.key) is None:
            return os.environ.get(self.variable, self.default) == "1"
        return bool(getattr(sys.modules[_MODULE], self.key))

    def save(self) -> tuple[str | None, bool | None, Any, threading.Thread]:
        entry, variable, here = _entry(self.key), os.environ.get(self.variable), threading.current_thread()
        own = None if entry is None else override(sys.modules[_MODULE], self.key)
        return variable, None if entry is None else entry.default, own, here

    def write(self, on: bool) -> None:
        self._set_variable("1" if on else "0")
        if (entry := _entry(self.key)) is not None:
            config, entry.default = sys.modules[_MODULE], on
            own = override(config, self.key)
            put_override(config, self.key, on if isinstance(own, bool) else own)

    def load(self, state: tuple[str | None, bool | None, Any, threading.Thread]) -> None:
        variable, default, own, thread = state
        is_ours = thread is threading.current_thread() or (
            own is not None and not is_threads_own(sys.modules[_MODULE], self.key)
        )
        if isinstance(own, bool) and not is_ours and thread.is_alive():
            raise SwitchError(f"another thread has its own torch._inductor.config.{self.key}: reset it there")
        self._set_variable(variable)
        entry = _entry(self.key)
        if entry is None:
            return
        if default is None:  # it was loaded inside the scope: as if it had been loaded before
            from torch.utils._config_module import _UNSET_SENTINEL

            default, own = (self.default if variable is None else variable) == "1", _UNSET_SENTINEL
        entry.default = default
        config = sys.modules[_MODULE]
        put_override(config, self.key, own if is_ours else override(config, self.key))

    def _set_variable(self, value: str | None) -> None:
        if value is None:
            os.environ.pop(self.variable, None)
        else:
            os.environ[self.variable] = value


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
    value = _Flag(name.removeprefix("torch.inductor."), variable, default)
    return Switch(name=name, read=value.read, write=value.write, state=(value.save, value.load), family=name)


class _Beside(Forced):
    """Whether a pass of ours runs beside the program's own in one of inductor's places for them."""

    def __init__(self, key: str, module: str, name: str) -> None:
        super().__init__(_MODULE, key, lambda: None)
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
    *(forced_switch(n, Forced(_MODULE, n.removeprefix("torch.inductor."), unloaded)) for n, unloaded in _FORCED.items()),
    *(_beside(name, value) for name, value in _BESIDE.items()),
)
