"""Memory: caps in bytes, the counted memory of host tensors, and the settings of the accelerators' allocators."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.effects.graph_mode import compilation
from msctx.tables import in_words

POOL = ("max_device_memory", "env_config_path.sys.mem_reuse", "memory_optimize_level")
"""The options that put the native core's allocator in place of torch's CPU allocator."""
SHOW_FREE = ("max_device_memory",)
"""The options for which a plan that is shown reports how much memory is free."""
DEVICES_ALONE = "it sizes the memory pools of GPU and Ascend. For a cap on the CPU, set max_device_memory"
NOT_KEPT = "nothing is kept while env_config_path.sys.mem_reuse is false"
IN_GRAPHS = {
    True: {"torch.inductor.allow_buffer_reuse": True, "torch.inductor.inplace_buffers": True},
    False: {
        "torch.inductor.allow_buffer_reuse": False,
        "torch.inductor.inplace_buffers": False,
        "torch.inductor.memory_planning": False,
    },
}
"""Memory is reused → what becomes of the buffers in compiled code."""
AGAIN = (
    "a tensor's memory goes back to the driver when it is released, which may give its address to the next one; code that "
    "torch.compile makes inside reuses no buffer"
)
"""What comes of memory that is not reused, on an accelerator: its allocator has no way to hold addresses back."""
CAP = {
    "cuda": "counts torch's caching allocator, and what the device's context and other libraries hold according to NVML when the cap "
    "is set; what these take later is not counted",
    "ascend": "counts what torch's caching allocator holds; the device context itself is not counted",
}
"""Device → what differs of max_device_memory."""
CACHING: dict[str, dict[bool, dict[str, Any]]] = {
    "cuda": {True: {"torch.cuda.caching_allocator": True}, False: {"torch.cuda.caching_allocator": False}},
    "ascend": {True: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": None}, False: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": "1"}},
}
"""Device → memory is reused → the assignments."""
ALLOCATOR = {"cuda": "torch's CUDA allocator", "ascend": "torch_npu's allocator"}
UNCACHED = "{} keeps and counts nothing while env_config_path.sys.mem_reuse is false"
PART_OF_CAP = 8
MIB = 1 << 20


def is_for_host(want: Want) -> bool:
    """Whether an option of device memory means the host's: the CPU is the device.

    Where there is an accelerator, programs keep data sets, not models, in host memory.
    """
    target = want.settings.get("device_target")
    return want.facts.devices == ("cpu",) or (target is not None and target.value == "CPU")


def pool(want: Want) -> dict[str, Any]:
    """The one assignment for all these options: how much is kept, of the peak in percent."""
    most = 100 if want.other("memory_optimize_level") == "O1" else 150
    return {"native.memory_pool": most if reuses(want) else 0}


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
        return honoured(pool(want) | {"native.memory_caps": caps}, arithmetic(caps, want.facts.free_memory))
    if not reuses(want):
        return refused(UNCACHED.format(ALLOCATOR[want.device]))
    switch = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}[want.device]
    sum_of = arithmetic([[setting.value, setting.origin] for setting in reversed(settings)])
    return approximated({switch: tightest(want)}, "; ".join(filter(None, (sum_of, CAP[want.device]))))


def arithmetic(caps: list[list[Any]], is_free: int = 0) -> str:
    """How much there is: the least of what is requested, of the tightest outer scope, and of what is free (0: not known)."""
    outer = [f"{in_words(size)} of {origin}" for size, origin in [min(caps[:-1], key=itemgetter(0))]] if caps[1:] else []
    free = [f"{in_words(is_free)} free now"] if is_free else []
    least = min([size for size, _ in caps] + ([is_free] if free else []))
    parts = [f"{in_words(caps[-1][0])} requested", *outer, *free]
    return f"{in_words(least)}, the least of {', '.join(parts)}" if len(parts) > 1 else ""


@effect("mempool_block_size", "env_config_path.sys.mem_reuse", "memory_optimize_level", "static_memory_policy")
def pool_policy(want: Want) -> Outcome | None:
    if want.device != "cpu":
        return on_accelerator(want)
    if not is_for_host(want):
        return None
    if want.option.name in ("mempool_block_size", "static_memory_policy"):
        return inert(DEVICES_ALONE)
    if want.option.name == "memory_optimize_level" and recomputes_graphs(want):
        if want.facts.native:
            return approximated(recomputation(want), f"{GRAPHS}; without msctx's allocator: {want.facts.native}")
        return honoured(pool(want) | recomputation(want), GRAPHS)
    if want.facts.native:
        return refused(want.facts.native)
    if want.option.name == "env_config_path.sys.mem_reuse":
        apart = "no tensor gets an address that another one had; code that torch.compile makes inside reuses no buffer"
        return honoured(pool(want) | in_graphs(want), "" if want.value else apart)
    if want.option.name == "memory_optimize_level" and want.value == "O1":
        return honoured(pool(want) | recomputation(want), RECOMPUTED)
    if not reuses(want):
        return refused(NOT_KEPT)
    return honoured(pool(want) | recomputation(want))


def recomputes_graphs(want: Want) -> bool:
    """Whether memory first is asked for in graph mode, where it is up to the compiler what is computed again."""
    return bool(want.other("memory_optimize_level") == "O1" and want.other("mode") == 0)


GRAPHS = (
    "of compiled code only the inputs are kept for the backward pass (activation_memory_budget=0): the rest is computed again"
)
KEPT_BY_TORCHAIR = "graphs that torchair compiles keep what they need for the backward pass: it computes nothing again"
CACHED = (
    "one caching allocator for all code of the process: what one graph releases the next one takes. It is counted as it runs, not "
    "planned from the graphs"
)
RECOMPUTED = (
    "in eager code: blocks of the models that ctx.watch names are computed again in the backward pass, under max_device_memory "
    "as few as needed"
)


def recomputation(want: Want) -> dict[str, Any]:
    """O1 switches memory_offload off, an outer scope's too."""
    yields = want.value == "O1" and any(
        found.setting.option.name == "memory_offload" for found in want.settings.overridden(want.device)
    )
    graphs = {"graph.compilation": compilation(want)} if want.other("mode") == 0 and want.device != "ascend" else {}
    eager = want.value == "O1" and not recomputes_graphs(want)
    return {"models.recompute": eager} | ({"models.saved_on_host": False} if yields else {}) | graphs


# --- the allocators of accelerators -----------------------------------------------------------------------------------


def reuses(want: Want) -> bool:
    return want.other("env_config_path.sys.mem_reuse") is not False


def tightest(want: Want) -> int | None:
    """The least of the caps in force, outer scopes' included."""
    return min((setting.value for setting in want.settings.all("max_device_memory", want.device)), default=None)


def block_size(want: Want) -> int | None:
    """The size of a segment in MB. Torch takes no smaller one where a whole one does not fit, so under a cap it is a part of it."""
    block, cap = want.other("mempool_block_size"), tightest(want)
    if block is None:
        return None
    size: int = max(20, (block if cap is None else min(block, cap // PART_OF_CAP)) // MIB)
    return size


def allocator(want: Want) -> dict[str, Any]:
    """The assignment that all these options come to together; ``None`` in it: the settings are the user's own."""
    first = want.other("memory_optimize_level") == "O1"
    expands = first or want.other("static_memory_policy") in (3, 4)
    block = block_size(want)
    settings = ({"large_segment_size_mb": block} if block else {}) | ({"expandable_segments": True} if expands else {})
    return {"torch.accelerator.allocator_settings": settings or None}


ON_ACCELERATOR: dict[tuple[str, Any], tuple[Callable[..., Outcome], str]] = {
    ("memory_optimize_level", "O0"): (honoured, "the allocator as it is, nothing is computed again"),
    ("memory_optimize_level", "O1"): (honoured, f"{RECOMPUTED}; segments grow where they are"),
    ("static_memory_policy", 0): (honoured, "each takes what it needs, when it runs"),
    ("static_memory_policy", 2): (approximated, CACHED),
    ("static_memory_policy", 3): (honoured, "segments that grow where they are"),
    ("static_memory_policy", 4): (approximated, f"segments that grow where they are; {CACHED}"),
}
"""What is requested → what the caching allocator gives of it."""


def in_graphs(want: Want) -> dict[str, Any]:
    """Of buffers in compiled code: ``buffer_optimize`` may forbid what ``mem_reuse`` allows."""
    is_left = want.value and want.other("buffer_optimize") == "off_optimize"
    return {} if is_left else IN_GRAPHS[want.value]


def on_accelerator(want: Want) -> Outcome:
    """The same options on a device whose memory torch already pools: they are settings of its allocator."""
    option, name = want.option.name, ALLOCATOR[want.device]
    if option == "env_config_path.sys.mem_reuse":
        found = CACHING[want.device][want.value] | in_graphs(want)
        return honoured(found) if want.value else approximated(found, AGAIN)
    found = allocator(want) | (recomputation(want) if option == "memory_optimize_level" else {})
    if option == "memory_optimize_level" and recomputes_graphs(want):
        return approximated(found, KEPT_BY_TORCHAIR) if want.device == "ascend" else honoured(found, GRAPHS)
    if not reuses(want) and want.value not in ("O0", 0):
        return refused(UNCACHED.format(name))
    if option == "mempool_block_size":
        return approximated(found, f"{name} takes {block_size(want)} MB at a time for requests of 1 to 10 MB")
    status, reason = ON_ACCELERATOR[option, want.value]
    return status(found, reason)
