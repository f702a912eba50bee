"""Switches of torch.compile: what is compiled, what it keeps on disk, what it checks and logs about its own work; and inductor's
configuration, which must be written without loading inductor: that takes a second."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch._logging._internal import log_registry

from msctx.graph import grad_and_value_and_grad as gradients
from msctx.graph import graph_mode, inductor_passes, report
from msctx.import_hooks import when_imported
from msctx.native import precision_policies, ranks_and_process_group
from msctx.switches.base import OF_THE_ENGINE, OF_THE_TUNER, Placed, Switch, Texts, of, slot
from msctx.torch_config_overrides import INDUCTOR, NOTHING, UNSET, Forced, by_variable

# --- torch.compile's stance: mode=PYNATIVE_MODE -----------------------------------------------------------------------

_FRAMES = "torch._dynamo.eval_frame"
_wants_eager = False
"""While Dynamo is not loaded, which takes a second."""


def _is_eager() -> bool:
    frames = sys.modules.get(_FRAMES)
    return _wants_eager if frames is None else frames._stance.stance == "force_eager"


def _force_eager(on: bool) -> None:
    """False leaves a stance of the program's own."""
    global _wants_eager
    _wants_eager = on
    if _FRAMES in sys.modules and on != _is_eager():
        torch.compiler.set_stance("force_eager" if on else "default")


when_imported("torch._dynamo", lambda: _force_eager(True) if _wants_eager else None)


def _stance() -> Any:
    frames = sys.modules.get(_FRAMES)
    return _is_eager() if frames is None else frames._stance


def _put_stance(found: Any) -> None:
    if isinstance(found, bool):
        _force_eager(found)  # also where Dynamo has been loaded since
    else:
        sys.modules[_FRAMES]._set_stance(found)


# --- what is kept on disk, and logged ---------------------------------------------------------------------------------

_CACHE = "msctx.graph.cache"


class _Job(Forced):
    def holds(self, value: str) -> bool:
        """Any will do: with one, torch keeps what it has learnt about shapes."""
        return (self.forced is NOTHING and self.read() is not None) or super().holds(value)


class _TraceFolder(Forced):
    """Each rank has a folder in the one that is given, as for the other files of save_graphs."""

    def holds(self, path: str | None) -> bool:
        return super().holds(_of_rank(path))

    def write(self, path: str | None) -> None:
        super().write(_of_rank(path))


def _of_rank(path: str | None) -> str | None:
    rank = ranks_and_process_group.known_rank()
    return path and os.path.abspath(os.path.join(os.path.expanduser(path), *([] if rank is None else [f"rank_{rank}"])))


def _logs(name: str) -> Switch:
    """The levels of torch's loggers; ``torch._logging.set_logs`` would forget the levels that the program has set."""
    loggers = [logging.getLogger(one) for one in log_registry.log_alias_to_log_qnames[name.removeprefix("torch.logs.")]]

    def read() -> list[int]:
        return [logger.level for logger in loggers]

    def each(levels: int | list[int]) -> list[int]:
        return [levels] * len(loggers) if isinstance(levels, int) else levels

    def write(levels: int | list[int]) -> None:
        for logger, level in zip(loggers, each(levels), strict=True):
            logger.setLevel(level)

    return Switch(name, read, write, satisfied=lambda levels: read() == each(levels))


# --- by what guards distinguish compiled code beside torch's own settings -------------------------------------------------
# Code that is compiled under settings that change nothing but how it is compiled would go on running after them, and code
# from before would go on inside. Guards look at the dtype of an autocast of every device, also of one that nobody has: it stands
# for the settings.

Content = tuple[tuple[str, Any], ...]
_DEVICE = "mtia"
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_numbers: dict[Content, int] = {}
"""Content → which dtype stands for it. After as many contents as there are dtypes, two share one."""
compiled: set[Content] = set()
"""The contents under which this process has compiled anything."""


PATHS = {"debug_dir", "save_graphs_path", *OF_THE_ENGINE, *(f"tuner.{key}" for key in OF_THE_TUNER)}
"""The keys that name a place: the same text under another directory is another content."""


class _Apart(threading.local, Placed):
    @property
    def content(self) -> Content | None:
        return tuple(self.now.items()) if self.now else None

    def write(self, texts: Texts) -> None:
        super().write(texts)
        content = self.content
        torch.set_autocast_enabled(_DEVICE, content is not None)
        if content is not None:
            torch.set_autocast_dtype(_DEVICE, _DTYPES[_numbers.setdefault(content, len(_numbers)) % len(_DTYPES)])

    def save(self) -> Any:
        return super().save(), torch.get_autocast_dtype(_DEVICE), torch.is_autocast_enabled(_DEVICE)

    def load(self, found: Any) -> None:
        texts, dtype, enabled = found
        super().load(texts)
        torch.set_autocast_dtype(_DEVICE, dtype)
        torch.set_autocast_enabled(_DEVICE, enabled)


_here = _Apart(PATHS)


report.ENDED.append(lambda: compiled.add(_here.content or ()))


# --- inductor's configuration, above all that programs set ------------------------------------------------------------


@cache
def obstacle() -> str:
    """Why batch_invariant cannot be set: this version of torch has none, by its source; ``""``: it has."""
    source = Path(torch.__path__[0], "_inductor", "config.py").read_text(encoding="utf-8")
    return "" if "\nbatch_invariant" in source else f"torch {torch.__version__} has no {INDUCTOR}.batch_invariant"


_KEY = len("torch.inductor.")


def _own_variables(default: str, *names: str) -> dict[str, Callable[[], Any]]:
    return {name: by_variable(f"TORCHINDUCTOR_{name[_KEY:].upper()}", default) for name in names}


_DEFAULTS = _own_variables("0", "torch.inductor.deterministic", "torch.inductor.cpp_wrapper")  # AOTInductor needs cpp_wrapper
_DEFAULTS |= _own_variables("0" if torch.version.hip else "1", "torch.inductor.layout_optimization")
_FORCED: dict[str, Callable[[], Any]] = {
    **_own_variables("0", "torch.inductor.freezing", "torch.inductor.max_autotune", "torch.inductor.max_autotune_gemm"),
    **_own_variables("0", "torch.inductor.batch_invariant", "torch.inductor.emulate_precision_casts"),
    **_own_variables("0", "torch.inductor.memory_planning"),
    **_own_variables("1", "torch.inductor.fx_graph_cache", "torch.inductor.cpp_cache_precompile_headers"),
    **dict.fromkeys(("torch.inductor.conv_1x1_as_mm", "torch.inductor.fallback_random"), lambda: False),
    **dict.fromkeys(("torch.inductor.debug_index_asserts", "torch.inductor._micro_pipeline_tp"), lambda: False),
    **dict.fromkeys(("torch.inductor.allow_buffer_reuse", "torch.inductor.inplace_buffers"), lambda: True),
    **dict.fromkeys(("torch.inductor.reorder_for_locality", "torch.inductor.assert_indirect_indexing"), lambda: True),
    **dict.fromkeys(("torch.inductor.bucket_all_gathers_fx", "torch.inductor.bucket_reduce_scatters_fx"), lambda: "none"),
    "torch.inductor.bucket_all_reduces_fx": lambda: "none",
    "torch.inductor.autotune_local_cache": lambda: True,
    "torch.inductor.reorder_for_compute_comm_overlap": lambda: False,
    "torch.inductor.reorder_for_compute_comm_overlap_passes": list,
    "torch.inductor.max_autotune_conv_backends": lambda: os.environ.get(
        "TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS", "ATEN,TRITON"
    ).upper(),
    "torch.inductor.aot_inductor.debug_compile": by_variable("AOT_INDUCTOR_DEBUG_COMPILE"),
    "torch.inductor.aot_inductor.debug_symbols": by_variable("AOT_INDUCTOR_DEBUG_SYMBOLS"),
    "torch.inductor.trace.enabled": by_variable("TORCH_COMPILE_DEBUG"),
    "torch.inductor.trace.provenance_tracking_level": lambda: int(
        os.environ.get("INDUCTOR_PROVENANCE", os.environ.get("TORCH_COMPILE_DEBUG", "0"))
    ),
}
"""Switch → the value that its key has when inductor is loaded. Those of _DEFAULTS are not forced."""


class _Beside(Forced):
    """Whether a pass of ours runs beside the program's own in one of inductor's places for them."""

    def __init__(self, key: str, kind: type[inductor_passes.Beside]) -> None:
        super().__init__(INDUCTOR, key, lambda: None)
        self._kind = kind

    def read(self) -> bool:
        return self.forced is not NOTHING

    def holds(self, value: bool) -> bool:
        return self.read() == value

    def write(self, value: bool) -> None:
        if value:
            super().write(self._kind(self._programs_own))
        elif self.read():
            self.load((NOTHING, self.own, threading.current_thread()))

    def when_loaded(self) -> None:
        self.forced.when_loaded()

    def _programs_own(self) -> Any:
        own = self.own
        is_ours = isinstance(own, inductor_passes.Beside)  # an option of torch.compile has put back what it read
        return self.entry.default if own is UNSET or is_ours else own


class _KeepsProducts(_Beside):
    """Matrix products of one row or column stay calls of PyTorch's operators: inductor makes sums of them, in another order.

    It has no setting for that: its decompositions and its lowering of bmm go while this holds. The pass changes nothing; by it
    torch's caches distinguish the code.
    """

    _undo: Callable[[], None] | None = None

    def _enforce(self, own: Any = None) -> None:
        super()._enforce(own)
        if self.read() and self._undo is None and _LOWERING in sys.modules:
            self._undo = self._take()
        elif not self.read() and self._undo is not None:
            self._undo()
            self._undo = None

    def _take(self) -> Callable[[], None]:
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
        return undo


_LOWERING = "torch._inductor.lowering"
_keeps_products = _KeepsProducts("joint_custom_post_pass", inductor_passes.Beside)
when_imported(_LOWERING, _keeps_products._enforce)
_PRODUCTS = {
    getattr(op, name) for op in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm) for name in op.overloads()
}


_DYNAMO, _FUNCTORCH = "torch._dynamo.config", "torch._functorch.config"
SWITCHES = (
    Switch("graph.compilation", lambda: graph_mode.compilation, partial(setattr, graph_mode, "compilation")),
    Switch(
        "graph.modules",
        lambda: graph_mode.found() is graph_mode.outermost,
        lambda on: graph_mode.put_back(graph_mode.outermost if on else None),
        state=(graph_mode.found, graph_mode.put_back),
    ),
    Switch("graph.grad_for_scalar", lambda: gradients.for_scalars, partial(setattr, gradients, "for_scalars")),
    Switch("torch.dynamo.force_eager", _is_eager, _force_eager, state=(_stance, _put_stance)),
    of("torch.dynamo.skip_nnmodule_hook_guards", Forced(_DYNAMO, "skip_nnmodule_hook_guards", lambda: True)),
    of("torch.dynamo.verbose", Forced(_DYNAMO, "verbose", by_variable("TORCHDYNAMO_VERBOSE"))),
    of("torch.functorch.debug_assert", Forced(_FUNCTORCH, "debug_assert", lambda: False)),
    of(
        "torch.functorch.enable_autograd_cache",
        Forced(_FUNCTORCH, "enable_autograd_cache", by_variable("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")),
    ),
    slot(
        "torch.compiler.cache",
        f"{_CACHE}:SLOT",
        satisfied=lambda wanted: bool(import_module(_CACHE).serves(wanted)),
        blocked=lambda wanted: str(import_module(_CACHE).obstacle(wanted)),
    ),
    of("torch.compiler.force_disable_caches", precision_policies.DISABLING),
    of("torch.compiler.job_id", _Job("torch.compiler.config", "job_id", lambda: None)),
    of("torch.dynamo.apart", _here, scope="thread"),
    _logs("torch.logs.dynamo"),
    _logs("torch.logs.aot"),
    _logs("torch.logs.inductor"),
    *(of(name, Forced(INDUCTOR, name[_KEY:], unloaded, "default")) for name, unloaded in _DEFAULTS.items()),
    *(of(name, Forced(INDUCTOR, name[_KEY:], unloaded)) for name, unloaded in _FORCED.items()),
    of("torch.inductor.trace.debug_dir", _TraceFolder(INDUCTOR, "trace.debug_dir", lambda: None)),
    of("torch.inductor.keeps_products", _keeps_products),
    of("torch.inductor.marks_quantized_inputs", _Beside("pre_grad_custom_pass", inductor_passes.Marking)),
    of("torch.inductor.removes_concatenations", _Beside("joint_custom_pre_pass", inductor_passes.Concatenations)),
)
