"""MindSpore's names that msctx has not: each can be imported, and raises an error once it is used."""

from __future__ import annotations

import sys
from typing import Any

from msctx.mindspore.errors import NotSupportedError


class Absent:
    """A name of MindSpore without counterpart in msctx. It can be imported; calling it or reading its attributes raises."""

    def __init__(self, name: str, why: str) -> None:
        self.__module__, _, self.__name__ = name.rpartition(".")
        self.__qualname__ = self.__name__
        self.__doc__ = f"Not supported by msctx: {why}."
        self._full_name, self._why = name, why

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error("()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python and its tools ask of any object
            raise AttributeError(name)
        raise self._error(f".{name}")

    def __repr__(self) -> str:
        return f"<{self._full_name}, not supported by msctx>"

    def _error(self, what: str) -> NotSupportedError:
        return NotSupportedError(f"{self._full_name}{what} is not supported by msctx: {self._why}. Nothing was changed.")


class _Operators(Absent):
    """Of MindSpore's operators, msctx has the one that an option acts on."""

    @property
    def Print(self) -> Any:
        from msctx.observers.printing import Print

        return Print


def _absent(reasons: dict[str, str]) -> dict[str, Absent]:
    return {name: Absent(f"ms.{name}", why) for name, why in reasons.items()}


PARALLEL = "torch.distributed with DistributedDataParallel or FSDP is PyTorch's way to run in parallel, and needs no context"
SERVERS = "PyTorch has no such parameter servers; torch.distributed with DistributedDataParallel or FSDP is its way"
OFFLOAD = "set_context(memory_offload='ON') is what there is, and FSDP's CPUOffloadPolicy for models in parallel"
CONTEXT = "this is only MindSpore's context, models stay in torch: use"

OF_CONTEXT = _absent(
    {
        "ParallelMode": PARALLEL,
        "set_auto_parallel_context": PARALLEL,
        "get_auto_parallel_context": PARALLEL,
        "reset_auto_parallel_context": PARALLEL,
        "set_ps_context": SERVERS,
        "get_ps_context": SERVERS,
        "reset_ps_context": SERVERS,
        "set_offload_context": OFFLOAD,
        "get_offload_context": OFFLOAD,
    }
)
"""Absent names of MindSpore's module ``context``, which its top level has too."""
OF_TOP = OF_CONTEXT | _absent(
    {
        "JitConfig": "ms.jit takes its options itself",
        "get_jit_config": "msctx has no option jit_config",
        "hal": "its newer names are available: runtime has streams, events and memory, device_context has the devices",
        "communication": "this is only MindSpore's context: use torch.distributed, whose init_process_group() is init()",
        "grad": "use msctx.grad, on which grad_for_scalar acts",
        "value_and_grad": "use msctx.value_and_grad, on which grad_for_scalar acts",
        "Profiler": "set_context(profiling_mode=...) records with torch.profiler",
        "amp": f"{CONTEXT} set_context(precision_mode=...) and msctx.current().grad_scaler()",
        "dataset": f"{CONTEXT} torch.utils.data",
        "mint": f"{CONTEXT} torch",
        "Model": f"{CONTEXT} a training loop of torch",
        "nn": f"{CONTEXT} torch.nn",
        "Tensor": f"{CONTEXT} torch.Tensor",
    }
)
"""Absent names of MindSpore's top level."""
OF_TOP["ops"] = _Operators("ms.ops", f"{CONTEXT} torch")


class _NoModules:
    """Importing another of MindSpore's modules raises an error with the reason."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        parent, _, below = name.partition("msctx.mindspore.")
        if below and not parent:
            known = OF_TOP.get(below.partition(".")[0])
            why = known._why if known else f"{CONTEXT} torch"
            raise ImportError(f"ms.{below} is not supported by msctx: {why}", name=name)


sys.meta_path.append(_NoModules)  # last: it finds modules that no other finder has
