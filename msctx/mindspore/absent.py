"""What MindSpore has and msctx has not: names that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msctx.errors import did_you_mean
from msctx.mindspore.errors import NotCarriedOut

ELSEWHERE = {
    **dict.fromkeys(
        (
            "set_auto_parallel_context",
            "get_auto_parallel_context",
            "reset_auto_parallel_context",
            "ParallelMode",
        ),
        "torch.distributed has its own ways to run in parallel, and no context for them",
    ),
    **dict.fromkeys(("set_ps_context", "get_ps_context", "reset_ps_context"), "PyTorch has no such parameter servers"),
    **dict.fromkeys(("set_offload_context", "get_offload_context"), "set_context(memory_offload='ON') is what there is"),
    "reset_context": "MindSpore has none either; msctx.reset_context() takes everything back",
    "jit": "torch.compile is PyTorch's way",
    "JitConfig": "torch.compile is PyTorch's way",
    "get_jit_config": "msctx has no option jit_config",
    "Tensor": "this is MindSpore's context alone, not its tensors: use torch.Tensor",
    "nn": "this is MindSpore's context alone, not its networks: use torch.nn",
    "ops": "this is MindSpore's context alone, not its operators: use torch",
}
"""Names of MindSpore that scripts may reach for → what to say."""


def names(module: str, there: Mapping[str, Any]) -> Callable[[str], Any]:
    """A module's ``__getattr__``: a missing name gets its reason, or the nearest one that is there."""

    def missing(name: str) -> Any:
        public = [known for known in there if not known.startswith("_")]
        reason = f": {ELSEWHERE[name]}" if name in ELSEWHERE else did_you_mean(name, public)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{reason}", name=name)

    return missing


def not_carried_out(name: str, why: str) -> Callable[..., Any]:
    """A function of MindSpore for which msctx has nothing: calling it says so."""

    def function(*args: Any, **kwargs: Any) -> Any:
        raise NotCarriedOut(f"{name}() is not carried out by msctx: {why}. Nothing was changed.")

    function.__module__, _, function.__name__ = name.rpartition(".")
    function.__qualname__ = function.__name__
    function.__doc__ = f"Not carried out by msctx: {why}."
    return function
