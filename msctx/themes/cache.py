"""What is kept on disk: MindSpore's cache of graphs, and CANN's of kernels. torch has one for both, torch_npu one of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msctx.options import Setting
from msctx.options.kinds import Bool, Choice, Path
from msctx.options.option import Option, session_option
from msctx.options.rules import TRUE, WITHOUT_LIST, Forbids, Needs, Overrides, Rule, When
from msctx.options.switch_values import CompileCache
from msctx.themes.base import STAYS, On, Outcome, approximated, as_it_is, honoured, once
from msctx.themes.shared_by_themes import LEFT_TO_NPU, with_graphs

KEEPS = When("op_compiler_cache_mode", ("enable", "force"))

# fmt: off
OPTIONS = (
    Option("enable_compile_cache", Bool, default=False, example=True,
        help="Keeps compiled graphs on disk in compile_cache_path and loads them in the next run if the code is the same. "
             "false really switches the caches off, also those that torch keeps by itself."),
    Option("compile_cache_path", Path, default=".", example="compile_cache",
        help="The directory for the compiled graphs of enable_compile_cache; it is made when missing, and each rank of a "
             "distributed run has its own folder in it."),
    session_option("op_compiler_cache_mode", Choice({
            "enable": "kernels are kept on disk and found again", "force": "kept ones are thrown away first, new ones are kept",
            "disable": "nothing is read or written",
        }), default="enable", example="disable", ge="ge.op_compiler_cache_mode",
        help="Whether compiled kernels are kept on disk, in op_compiler_cache_dir. torch has one cache for kernels and graphs; in "
             "one place enable_compile_cache wins there. torch_npu has its own for the kernels of an NPU."),
    session_option("op_compiler_cache_dir", Path, default="$HOME/atc_data", example="op_cache", ge="ge.op_compiler_cache_dir",
        help="The directory in which op_compiler_cache_mode keeps compiled kernels, in a folder kernel_cache; "
             "$ASCEND_CACHE_PATH counts when it is unset."),
    session_option("op_compiler_cache_dir.op_cache_ini", Path, example="op_cache.ini", content="OP_CACHE",
        help="An .ini file that limits the cache of op_compiler_cache_dir: max_op_cache_size is its size in MB (500 unless "
             "named, -1 for no limit), remain_cache_size_ratio the percentage that stays (50) when the oldest kernels are "
             "thrown away. It wins over kernel_cache/op_cache.ini, $ASCEND_MAX_OP_CACHE_SIZE and $ASCEND_REMAIN_CACHE_SIZE_RATIO, "
             "and limits the folder of enable_compile_cache, too."),
)

RULES: tuple[Rule, ...] = (
    Overrides(When("op_debug_level"), KEEPS, always=True),
    Overrides(WITHOUT_LIST, KEEPS, always=True),
    Overrides(WITHOUT_LIST, When("enable_compile_cache", TRUE), always=True),
    *(  # torch has one cache for graphs and kernels
        Overrides(When("enable_compile_cache", (True, False)), loser, devices=("cpu", "cuda"))
        for loser in (When("op_compiler_cache_mode", ("enable", "force", "disable")), When("op_compiler_cache_dir"))
    ),
    Needs(When("compile_cache_path"), (When("enable_compile_cache", TRUE),), "inert"),
    Needs(When("op_compiler_cache_dir.op_cache_ini"),
        (KEEPS, When("op_compiler_cache_dir"), When("enable_compile_cache", TRUE)), "inert"),
    Forbids(When("op_compiler_cache_dir"), When("op_compiler_cache_mode", ("disable",)), "off",
        "op_compiler_cache_mode=disable switches the cache off"),
    Forbids(When("compile_cache_path"), When("enable_compile_cache", (False,)), "off",
        "enable_compile_cache=False switches the cache off"),
    *(
        Forbids(When("op_compiler_cache_dir"), other, "inert", f"{other} ignores the cache")
        for other in (When("op_debug_level"), WITHOUT_LIST)
    ),
)
# fmt: on

OFF = CompileCache(off=True)
CACHES = ("torch.inductor.fx_graph_cache", "torch.inductor.autotune_local_cache", "torch.functorch.enable_autograd_cache")
OF_NPU = {
    "op_compiler_cache_mode": "torch.npu.op_compiler_cache_mode",
    "op_compiler_cache_dir": "torch.npu.op_compiler_cache_dir",
}
LIMITED = f"CANN reads {{}}; kernel_cache/op_cache.ini in op_compiler_cache_dir wins; each {STAYS}"


@once
def cache(on: On) -> CompileCache | None:
    """What all options of torch's cache come to together; ``None``: torch's own way."""
    graphs, mode, folder = (on.get(n) for n in ("enable_compile_cache", "op_compiler_cache_mode", "op_compiler_cache_dir"))
    if graphs is not None:
        return _limited(CompileCache(path=on.get("compile_cache_path", ".")), on) if graphs else OFF
    if on.device == "ascend":
        return None
    if mode == "disable":
        return OFF
    if mode is None and folder is None:
        return None
    return _limited(CompileCache(path=folder or "", kernels=True, renew=mode == "force"), on)


def _limited(found: CompileCache, on: On) -> CompileCache:
    section = on.content("op_compiler_cache_dir.op_cache_ini").get("op_compiler_cache")
    if section is None:
        return found
    return replace(found, megabytes=section["max_op_cache_size"], percent=section["remain_cache_size_ratio"])


def _has_same_bits(on: On) -> bool:
    """What earlier runs have learnt about shapes decides which kernels run, on the host too."""
    return on.get("deterministic") == "ON" or any(on.at("cpu").get(f"{what}_invariant") for what in ("thread", "batch"))


def _kept(on: On) -> Outcome:
    if (found := cache(on)) is None:
        return as_it_is()
    assignments: dict[str, Any] = {"torch.compiler.cache": found, "torch.compiler.force_disable_caches": found.off}
    if found.off:
        assignments["torch.inductor.cpp_cache_precompile_headers"] = False
    else:
        assignments |= dict.fromkeys(CACHES, True)
        if not _has_same_bits(on):
            assignments["torch.compiler.job_id"] = "msctx"
    return approximated(assignments, LEFT_TO_NPU) if on.device == "ascend" else honoured(assignments)


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    kept = _kept(on)
    if on.device != "ascend" or setting.option.name in ("enable_compile_cache", "compile_cache_path"):
        return kept
    if setting.option.name in OF_NPU:
        return honoured({OF_NPU[setting.option.name]: setting.value} | with_graphs(on))
    if not setting.content:
        return kept
    section = setting.content["op_compiler_cache"]  # of op_compiler_cache_dir.op_cache_ini
    limits = {
        "env.ASCEND_MAX_OP_CACHE_SIZE": str(section["max_op_cache_size"]),
        "env.ASCEND_REMAIN_CACHE_SIZE_RATIO": str(section["remain_cache_size_ratio"]),
    }
    shown = " and ".join(f"{name.removeprefix('env.')}={value}" for name, value in limits.items())
    return approximated({**kept.assignments, **limits}, LIMITED.format(shown))
