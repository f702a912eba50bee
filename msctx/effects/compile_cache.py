"""What is kept on disk: MindSpore's cache of graphs, and CANN's of kernels. torch has one for both, torch_npu one of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, honoured
from msctx.effects.compilation import LEFT_TO_NPU
from msctx.effects.graph_engine import with_graphs
from msctx.options.compile_cache import CompileCache

OFF = CompileCache(off=True)
OF_NPU = {
    "op_compiler_cache_mode": "torch.npu.op_compiler_cache_mode",
    "op_compiler_cache_dir": "torch.npu.op_compiler_cache_dir",
}
LIMITED = f"CANN reads environment variables: {{}}. kernel_cache/op_cache.ini in op_compiler_cache_dir wins; each {STAYS}"


def cache(want: Want) -> CompileCache | None:
    """What all options of torch's cache come to together; ``None``: torch's own way."""
    graphs = want.in_force("enable_compile_cache")
    if graphs is not None:
        return _limited(CompileCache(path=want.other("compile_cache_path", ".")), want) if graphs.value else OFF
    if want.device == "ascend":
        return None
    mode, folder = want.in_force("op_compiler_cache_mode"), want.in_force("op_compiler_cache_dir")
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


def _kept(want: Want) -> Outcome:
    if (found := cache(want)) is None:
        return NOTHING_ASKED
    assignments: dict[str, Any] = {"torch.compiler.cache": found, "torch.compiler.force_disable_caches": found.off}
    if found.off:
        assignments["torch.inductor.cpp_cache_precompile_headers"] = False
    else:
        assignments["torch.inductor.fx_graph_cache"] = True
        assignments["torch.inductor.autotune_local_cache"] = True
        assignments["torch.functorch.enable_autograd_cache"] = True
        if not _has_same_bits(want):
            assignments["torch.compiler.job_id"] = "msctx"
    return approximated(assignments, LEFT_TO_NPU) if want.device == "ascend" else honoured(assignments)


def _is_off(want: Want, switch: str, value: Any) -> Outcome | None:
    """What becomes of a folder where whoever set the switch wants none."""
    if want.option.name == switch or want.other(switch) != value:
        return None
    return Outcome("inert", {}, f"{switch}={value}", expected=True)


@effect("enable_compile_cache", "compile_cache_path")
def graphs(want: Want) -> Outcome:
    return _is_off(want, "enable_compile_cache", False) or _kept(want)


@effect("op_compiler_cache_mode", "op_compiler_cache_dir")
def kernels(want: Want) -> Outcome:
    if off := _is_off(want, "op_compiler_cache_mode", "disable"):
        return off
    if want.device != "ascend":
        return _kept(want)
    return honoured({OF_NPU[want.option.name]: want.value} | with_graphs(want))


@effect("op_compiler_cache_dir.op_cache_ini")
def op_cache_ini(want: Want) -> Outcome:
    kept = _kept(want)
    if want.device != "ascend" or not want.content:
        return kept
    section = want.content["op_compiler_cache"]
    limits = {
        "env.ASCEND_MAX_OP_CACHE_SIZE": str(section["max_op_cache_size"]),
        "env.ASCEND_REMAIN_CACHE_SIZE_RATIO": str(section["remain_cache_size_ratio"]),
    }
    shown = " and ".join(f"{name.removeprefix('env.')}={value}" for name, value in limits.items())
    return approximated({**kept.assignments, **limits}, LIMITED.format(shown))
