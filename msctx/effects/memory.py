"""Memory: caps in bytes, and the pool that host tensors come from."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, not_built, refused

POOL = (
    "max_device_memory",
    "mempool_block_size",
    "env_config_path.sys.mem_reuse",
    "memory_optimize_level",
    "static_memory_policy",
)
"""The options that put the native core's pool in place of torch's CPU allocator."""
PIECE = 64 << 20
KEEP_OF_LEVEL = {"O0": "all", "O1": "some"}
KEEP_OF_POLICY = {0: "some", 1: "all", 2: "all", 3: "some", 4: "all"}


LATER = {"cuda": not_built("the settings of CUDA's allocator"), "ascend": not_built("the Ascend back end")}


def is_for_host(want: Want) -> bool:
    """Whether an option of device memory means the host's: the CPU is the device.

    Where there is an accelerator, programs keep data sets, not models, in host memory.
    """
    target = want.settings.get("device_target")
    return want.facts.devices == ("cpu",) or (target is not None and target.value == "CPU")


def pool(want: Want) -> dict[str, Any]:
    """The assignment that all these options come to together: what is kept, and the size of a piece."""

    def asked(name: str) -> Any:
        setting = want.settings.get(name, "cpu")
        return setting.value if setting is not None else None

    keep = KEEP_OF_POLICY.get(asked("static_memory_policy"), "all")
    keep = KEEP_OF_LEVEL.get(asked("memory_optimize_level"), keep)
    if asked("env_config_path.sys.mem_reuse") is False:
        keep = "nothing"
    return {"native.memory_pool": {"keep": keep, "piece": asked("mempool_block_size") or PIECE}}


@effect("max_device_memory")
def max_device_memory(want: Want) -> Outcome | None:
    """The tightest of the caps in force, outer scopes' included, goes to the caching allocator; on a CPU each of them counts."""
    settings = want.settings.all(want.option.name, want.device)
    if want.device == "cpu":
        if not is_for_host(want):
            return None
        if want.facts.native:
            return refused(want.facts.native)
        caps = [[setting.value, setting.origin] for setting in reversed(settings)]
        return honoured(pool(want) | {"native.memory_caps": caps}, arithmetic(want, caps))
    cap = min(setting.value for setting in settings)
    switch = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}[want.device]
    return approximated({switch: cap}, "counts what torch's caching allocator holds; the device context itself is not counted")


def arithmetic(want: Want, caps: list[list[Any]]) -> str:
    """How much there is: the least of what is asked, of what outer scopes ask, and of what is free."""
    outer = [f"{in_words(size)} of {origin}" for size, origin in caps[:-1]]
    free = [f"{in_words(want.facts.free_memory)} free now"] if want.facts.free_memory else []
    least = min([size for size, _ in caps] + ([want.facts.free_memory] if free else []))
    parts = [f"{in_words(caps[-1][0])} asked for", *outer, *free]
    return f"{in_words(least)}, the least of {', '.join(parts)}" if len(parts) > 1 else ""


def in_words(size: int) -> str:
    """In four digits; kernels/glue/allocator.cpp says the same of the same size."""
    amount, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"


@effect("mempool_block_size", "env_config_path.sys.mem_reuse", "memory_optimize_level", "static_memory_policy")
def pool_policy(want: Want) -> Outcome | None:
    if want.device != "cpu":
        return LATER[want.device]
    if not is_for_host(want):
        return None
    if want.option.name == "static_memory_policy" and want.value == 0:
        return honoured(reason="each takes what it needs, when it runs")
    if want.facts.native:
        return refused(want.facts.native)
    if want.option.name == "memory_optimize_level":
        return honoured(pool(want) | recomputation(want), RECOMPUTED if want.value == "O1" else "")
    return honoured(pool(want))


RECOMPUTED = (
    "in eager code: blocks of the models that ctx.watch names are computed again in the backward pass, under max_device_memory "
    "as few as needed"
)


def recomputation(want: Want) -> dict[str, Any]:
    """O1 switches memory_offload off, an outer scope's too."""
    offload = {"models.saved_on_host": False} if want.value == "O1" and want.other("memory_offload") == "ON" else {}
    return {"models.recompute": want.value == "O1"} | offload
