"""What torch.compile keeps on disk: MindSpore's cache of graphs, and CANN's of kernels. torch has one for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured
from msctx.effects.compilation import LEFT_TO_NPU
from msctx.effects.graph_engine import with_graphs
from msctx.options.compile_cache import CompileCache

OFF = CompileCache(off=True)


def cache(want: Want) -> CompileCache | None:
    """What all options of caches come to together; ``None``: torch's own way."""
    graphs = want.in_force("enable_compile_cache")
    mode, folder = want.in_force("op_compiler_cache_mode"), want.in_force("op_compiler_cache_dir")
    if graphs is not None:
        return _limited(CompileCache(path=want.other("compile_cache_path", ".")), want) if graphs.value else OFF
    if mode is not None and mode.value == "disable":
        return OFF
    if mode is None and folder is None:
        return None
    renew = mode is not None and mode.value == "force"
    return _limited(CompileCache(path=folder.value if folder else "", kernels=True, renew=renew), want)


def _limited(found: CompileCache, want: Want) -> CompileCache:
    setting = want.in_force("op_compiler_cache_dir.op_cache_ini")
    if setting is None or not setting.content:
        return found
    section = setting.content["op_compiler_cache"]
    return replace(found, megabytes=section["max_op_cache_size"], percent=section["remain_cache_size_ratio"])


def _has_same_bits(want: Want) -> bool:
    """What earlier runs have learnt about shapes decides which kernels run."""
    return want.other("deterministic") == "ON" or any(want.other(f"{what}_invariant") for what in ("thread", "batch"))


def _kept(want: Want, found: CompileCache, more: dict[str, Any]) -> Outcome:
    assignments: dict[str, Any] = {"torch.compiler.cache": found, "torch.compiler.force_disable_caches": found.off}
    if found.off:
        assignments["torch.inductor.cpp_cache_precompile_headers"] = False
    else:
        assignments["torch.inductor.fx_graph_cache"] = True
        assignments["torch.inductor.autotune_local_cache"] = True
        assignments["torch.functorch.enable_autograd_cache"] = True
        if not _has_same_bits(want):
            assignments["torch.compiler.job_id"] = "msctx"
    assignments |= more
    return approximated(assignments, LEFT_TO_NPU) if want.device == "ascend" and not more else honoured(assignments)


def _is_off(want: Want, switch: str, value: Any) -> Outcome | None:
    """What becomes of a folder where whoever set the switch wants none."""
    if want.option.name == switch or want.other(switch) != value:
        return None
    return Outcome("inert", {}, f"{switch}={value}", expected=True)


@effect("enable_compile_cache", "compile_cache_path")
def graphs(want: Want) -> Outcome:
    if off := _is_off(want, "enable_compile_cache", False):
        return off
    found = cache(want)
    return NOTHING_ASKED if found is None else _kept(want, found, {})


@effect("op_compiler_cache_mode", "op_compiler_cache_dir")
def kernels(want: Want) -> Outcome:
    if off := _is_off(want, "op_compiler_cache_mode", "disable"):
        return off
    found = cache(want)
    if found is None or want.device != "ascend":
        return NOTHING_ASKED if found is None else _kept(want, found, {})
    folder = want.in_force("op_compiler_cache_dir")
    mode = "disable" if found.off else "force" if found.renew else "enable"
    return _kept(
        want,
        found,
        {"torch.npu.op_compiler_cache_mode": mode, "torch.npu.op_compiler_cache_dir": folder and folder.value}
        | with_graphs(want),
    )


@effect("op_compiler_cache_dir.op_cache_ini")
def op_cache_ini(want: Want) -> Outcome:
    found = cache(want)
    return NOTHING_ASKED if found is None else _kept(want, found, {})
