"""Memory: caps in bytes, the allocators, and where activations and parameters of watched models are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from msctx.options import Setting
from msctx.options.kinds import Bool, Choice, Memory, MemoryKind, OnOff, Size
from msctx.options.option import SESSION, Option, session_option
from msctx.options.rules import TRUE, Excludes, Needs, Overrides, Rule, When, is_above_one
from msctx.tables import in_words
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, inert, joined, refused
from msctx.themes.graph import compilation

GB = 2**30

# fmt: off
OPTIONS = (
    Option("max_device_memory", Memory, default=Size(1024 * GB), example="4GB", also=("runtime.set_memory.max_size",),
        help="The most memory that this process may take on the device through torch's allocator; requesting more raises "
             "torch.OutOfMemoryError. An inner scope cannot loosen the cap of an outer one."),
    Option("variable_memory_max_size", MemoryKind('a size of at most 31GB, such as "8GB"', maximum=31 * GB), example="8GB",
        devices=("cuda", "ascend"), replaced_by="max_device_memory",
        help="Formerly the size of the memory for a model's parameters. MindSpore deprecates it in favour of "
             "max_device_memory, which caps parameters and everything else together; torch has no memory only for parameters"
             "."),
    Option("mempool_block_size", MemoryKind('a size of 1GB or more, such as "2GB"', minimum=GB), default=Size(GB), example="4GB",
        defaults={"runtime": Size(2 * GB)}, also=("runtime.set_memory.increase_size",),
        help="The step by which the pool of device memory grows: bigger blocks mean fewer requests to the driver and less "
             "fragmentation, but more memory held back. torch's allocators follow it only roughly, since a large tensor "
             "still gets a separate segment. It has no effect on a CPU."),
    Option("env_config_path.sys.mem_reuse", Bool, default=True, example=False, also=("env_config_path.sys.mem_Reuse",),
        help="Whether tensors whose lives do not overlap may share memory in compiled graphs and in the device's pool; "
             "false gives each separate memory, which helps to find who writes into whose memory."),
    Option("memory_optimize_level", Choice({
            "O0": "speed first: nothing is computed twice",
            "O1": "memory first: activations are recomputed in the backward pass, allocators give back what is idle",
        }), default="O0", example="O1", also=("runtime.set_memory.optimize_level",),
        help="What is preferred, speed or a small footprint: O1 computes blocks of watched models again in the backward "
             "pass (as few as max_device_memory requests) and lets allocators hold less. Up to MindSpore 2.3 the default on "
             "Ascend was O1."),
    Option("memory_offload", OnOff, default="OFF", example="ON",
        help="ON moves tensors that wait for the backward pass from the device to host memory and fetches them back in "
             "time; memory_optimize_level=O1 switches it off. Refused where the CPU is all there is."),
    session_option("static_memory_policy", Choice({
            0: "each graph takes what it needs, when it runs", 2: "all graphs of a session share a pool for the largest",
            3: "segments that can grow, against fragmentation", 4: "2 and 3 together",
        }, {1: 2}), default=0, example=2, ge="ge.exec.staticMemoryPolicy",
        help="How compiled graphs get their memory (1 is the old form of 2). 2 and 4 exclude graphs that run at the same "
             "time."),
    session_option("external_weight", Bool, default=False, example=True, ge="ge.externalWeight",
        help="Maps the parameters of watched models from files named by their content (tmp_weight_<pid>_<session> in "
             "ASCEND_WORK_PATH, else in the working directory), so that models share one copy of equal weights until one is "
             "trained."),
    session_option("variable_placement", Choice({
            "Device": "in the memory of the device", "Host": "in host memory, copied when a module runs",
        }), default="Device", example="Host",
        help="Where the parameters of watched models live: Host saves device memory and costs time; it needs "
             "mix_compile_mode=true. On a CPU the two are one place."),
    session_option("variable_format_optimize", Bool, example=True, ge="ge.exec.variable_acc",
        help="Keeps the weights of 2-D and 3-D convolutions in watched models in the layout that the device likes best, which is "
             "channels_last on CPU and CUDA and a private format on an NPU; false keeps them contiguous. Deprecated in CANN."),
    session_option("graph_memory_max_size", Memory, example="26GB", ge="ge.graphMemoryMaxSize",
        replaced_by="max_device_memory",
        help="Formerly the size of the memory for a network's activations. CANN sizes it by itself now, and torch does too."),
    Option("session.variable_memory_max_size", Memory, example="5GB", ge="ge.variableMemoryMaxSize",
        replaced_by="max_device_memory", source=SESSION,
        help="Formerly the size of the memory for a session's variables. CANN sizes it by itself now, and torch does too. "
             "The flat variable_memory_max_size is another option."),
)
# fmt: on

RULES: tuple[Rule, ...] = (
    Overrides(When("memory_optimize_level", ("O1",)), When("memory_offload", ("ON",)), always=True),
    Overrides(When("memory_offload", ("ON",)), When("mempool_block_size"), always=True, devices=("cuda", "ascend")),
    Excludes(When("static_memory_policy", (2, 4)), When("graph_max_parallel_model_num", test=is_above_one, words="above 1")),
    Needs(When("variable_placement", ("Host",)), (When("mix_compile_mode", TRUE),)),
)

POOL = ("max_device_memory", "env_config_path.sys.mem_reuse", "memory_optimize_level")
"""The options that put the native core's allocator in place of torch's CPU allocator."""
SHOW_FREE = ("max_device_memory",)
"""The options for which a plan that is shown reports how much memory is free."""
BUFFERS = ("torch.inductor.allow_buffer_reuse", "torch.inductor.inplace_buffers")
"""Whether buffers in compiled code are reused."""
AGAIN = "the driver may give addresses out again; compiled code reuses no buffer"
"""What comes of memory that is not reused, on an accelerator: its allocator has no way to hold addresses back."""
CAP = {
    "cuda": "memory that libraries take later is not counted",
    "ascend": "the memory of the device context is not counted",
}
"""Device → what differs of max_device_memory."""
ALLOCATOR = {"cuda": "torch's CUDA allocator", "ascend": "torch_npu's allocator"}
UNCACHED = "{} keeps and counts nothing while env_config_path.sys.mem_reuse is false"
PART_OF_CAP = 8
MIB = 1 << 20
GRAPHS = "compiled code recomputes activations in the backward pass"
KEPT_BY_TORCHAIR = "graphs that torchair compiles keep what their backward pass needs: nothing is computed again"
CACHED = "one caching allocator for all code, not planned from the graphs"
RECOMPUTED = "watched models' blocks are computed again, as few as max_device_memory requires"
GROWING = "segments grow in place"
ON_ACCELERATOR: dict[tuple[str, Any], tuple[Callable[..., Outcome], str]] = {
    ("memory_optimize_level", "O0"): (honoured, "the allocator stays as it is; nothing is computed again"),
    ("memory_optimize_level", "O1"): (honoured, f"{RECOMPUTED}; {GROWING}"),
    ("static_memory_policy", 0): (honoured, "each graph takes what it needs when it runs"),
    ("static_memory_policy", 2): (approximated, CACHED),
    ("static_memory_policy", 3): (honoured, GROWING),
    ("static_memory_policy", 4): (approximated, f"{GROWING}; {CACHED}"),
}
"""What is requested → what the caching allocator gives of it."""
PRIVATE = "for weights moved to the device from now on; not of convolutions under jit_compile=false"
ALWAYS = "what the forward pass saves goes to the host even while the device has room"
IN_HOST_MEMORY = (
    "what the forward pass saves is in host memory already",
    "set memory_optimize_level=O1, which computes it again instead, under max_device_memory as little as needed",
)
WATCHED = "parameters of watched models"
COPIED = "each operator copies them"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    value, is_cpu = setting.value, on.device == "cpu"
    match setting.option.name:
        case "memory_offload" if not is_cpu:
            switches = {"models.saved_on_host": value == "ON"}
            return approximated(switches, ALWAYS) if value == "ON" else honoured(switches)
        case "memory_offload" if on.facts.devices != ("cpu",):
            return None
        case "memory_offload":
            return refused(*IN_HOST_MEMORY) if value == "ON" else as_it_is()
        case "variable_placement" if is_cpu:
            return honoured(cause="the memory of the device is host memory: the two are one place")
        case "variable_placement" if on.get("external_weight"):
            return inert("overridden by external_weight, which maps the parameters from files, in host memory")
        case "variable_placement":
            return honoured(placement(on), joined(WATCHED, COPIED if value == "Host" else ""))
        case "external_weight":
            how = f"{WATCHED}: mapped from files, shared until written to"
            return honoured(placement(on), joined(how, "" if is_cpu else COPIED))
        case "variable_format_optimize" if on.device == "ascend":
            return approximated({"torch.npu.allow_internal_format": value}, PRIVATE)
        case "variable_format_optimize" if on.get("external_weight"):
            return inert("overridden by external_weight: its files hold the weights as they are")
        case "variable_format_optimize":
            wanted = {"models.weight_format": "channels_last" if value else "contiguous"}
            return honoured(wanted, "weights of 2-D and 3-D convolutions of the models that ctx.watch names")
        case _ if is_cpu and not is_for_host(on):
            return None
        case "max_device_memory":
            return _max_device_memory(on)
        case _ if not is_cpu:
            return _on_accelerator(on, setting)
        case "mempool_block_size" | "static_memory_policy":
            return inert("it sizes the memory pools of GPU and Ascend", "for a cap on the CPU, set max_device_memory")
        case "memory_optimize_level" if recomputes_graphs(on) and on.facts.native:
            return approximated(recomputation(on), f"{GRAPHS}; without msctx's allocator: {on.facts.native}")
        case "memory_optimize_level" if value == "O1":
            how = GRAPHS if recomputes_graphs(on) else RECOMPUTED
            return on.by_core(honoured(pool(on) | recomputation(on), how))
        case "memory_optimize_level" if not reuses(on):
            return on.by_core(refused("nothing is kept while env_config_path.sys.mem_reuse is false"))
        case "memory_optimize_level":
            return on.by_core(honoured(pool(on) | recomputation(on)))
        case "env_config_path.sys.mem_reuse":
            apart = "no tensor gets another one's address; compiled code reuses no buffer"
            return on.by_core(honoured(pool(on) | in_graphs(on, value), "" if value else apart))
    return None


def is_for_host(on: On) -> bool:
    """Whether an option of device memory means the host's: the CPU is the device.

    Where there is an accelerator, programs keep data sets, not models, in host memory.
    """
    return on.facts.devices == ("cpu",) or on.get("device_target") == "CPU"


def pool(on: On) -> dict[str, Any]:
    """The one assignment for all these options: how much is kept, of the peak in percent."""
    most = 100 if on.get("memory_optimize_level") == "O1" else 150
    return {"native.memory_pool": most if reuses(on) else 0}


def _max_device_memory(on: On) -> Outcome:
    """The tightest of the caps in force, outer scopes' included, goes to the caching allocator; on a CPU each of them counts."""
    settings = on.source.on(on.device).get("max_device_memory", ())
    if on.device == "cpu":
        caps = tuple((setting.value, setting.origin) for setting in reversed(settings))
        what = arithmetic(caps, on.facts.free_memory) or "at most what the host has free"
        return on.by_core(honoured(pool(on) | {"native.memory_caps": caps}, what))
    if not reuses(on):
        return refused(UNCACHED.format(ALLOCATOR[on.device]))
    switch = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}[on.device]
    least = min(settings, key=lambda setting: setting.value)
    outer = f"{in_words(least.value)} of {least.origin} holds" if least is not settings[0] else ""
    return approximated({switch: least.value}, joined(outer, CAP[on.device]))


def arithmetic(caps: Sequence[tuple[int, str]], is_free: int = 0) -> str:
    """How much there is: the least of what is requested, of the tightest outer scope, and of what is free (0: not known)."""
    outer = [f"{in_words(size)} of {origin}" for size, origin in [min(caps[:-1], key=itemgetter(0))]] if caps[1:] else []
    free = [f"{in_words(is_free)} free"] if is_free else []
    least = min([size for size, _ in caps] + ([is_free] if free else []))
    parts = [f"{in_words(caps[-1][0])} requested", *outer, *free]
    return f"{in_words(least)}: least of {', '.join(parts)}" if len(parts) > 1 else ""


def recomputes_graphs(on: On) -> bool:
    """Whether memory first is requested in graph mode, where it is up to the compiler what is computed again."""
    return bool(on.get("memory_optimize_level") == "O1" and on.get("mode") == 0)


def recomputation(on: On) -> dict[str, Any]:
    """O1 switches memory_offload off, an outer scope's too."""
    is_first = on.get("memory_optimize_level") == "O1"
    yields = is_first and any(found.setting.option.name == "memory_offload" for found in on.source.overridden(on.device))
    graphs = {"graph.compilation": compilation(on)} if on.get("mode") == 0 and on.device != "ascend" else {}
    eager = is_first and not recomputes_graphs(on)
    return {"models.recompute": eager} | ({"models.saved_on_host": False} if yields else {}) | graphs


# --- the allocators of accelerators -----------------------------------------------------------------------------------


def reuses(on: On) -> bool:
    return on.get("env_config_path.sys.mem_reuse") is not False


def block_size(on: On) -> int | None:
    """The size of a segment in MB. Torch takes no smaller one where a whole one does not fit, so under a cap it is a part of it."""
    block, caps = on.get("mempool_block_size"), on.source.on(on.device).get("max_device_memory", ())
    if block is None:
        return None
    size: int = max(20, min([block, *(cap.value // PART_OF_CAP for cap in caps)]) // MIB)
    return size


def allocator(on: On) -> dict[str, Any]:
    """The assignment that all these options come to together; ``None`` in it: the settings are the user's own."""
    first = on.get("memory_optimize_level") == "O1"
    expands = first or on.get("static_memory_policy") in (3, 4)
    block = block_size(on)
    settings = ({"large_segment_size_mb": block} if block else {}) | ({"expandable_segments": True} if expands else {})
    return {"torch.accelerator.allocator_settings": settings or None}


def in_graphs(on: On, is_reused: bool) -> dict[str, Any]:
    """Of buffers in compiled code: ``buffer_optimize`` may forbid what ``mem_reuse`` allows."""
    if not is_reused:
        return dict.fromkeys((*BUFFERS, "torch.inductor.memory_planning"), False)
    return {} if on.get("buffer_optimize") == "off_optimize" else dict.fromkeys(BUFFERS, True)


def _on_accelerator(on: On, setting: Setting) -> Outcome:
    """The same options on a device whose memory torch already pools: they are settings of its allocator."""
    option, name = setting.option.name, ALLOCATOR[on.device]
    if option == "env_config_path.sys.mem_reuse":
        by_npu = {"env.PYTORCH_NO_NPU_MEMORY_CACHING": None if setting.value else "1"}
        found = by_npu if on.device == "ascend" else {"torch.cuda.caching_allocator": setting.value}
        found |= in_graphs(on, setting.value)
        return honoured(found) if setting.value else approximated(found, AGAIN)
    found = allocator(on) | (recomputation(on) if option == "memory_optimize_level" else {})
    if option == "memory_optimize_level" and recomputes_graphs(on):
        return approximated(found, KEPT_BY_TORCHAIR) if on.device == "ascend" else honoured(found, f"{GRAPHS}; {GROWING}")
    if not reuses(on) and setting.value not in ("O0", 0):
        return refused(UNCACHED.format(name))
    if option == "mempool_block_size":
        much = "that much" if (size := block_size(on)) == setting.value // MIB else f"{size} MB"
        return approximated(found, f"{name}: requests of 1 to 10 MB take {much} at once")
    status, reason = ON_ACCELERATOR[option, setting.value]
    return status(found, reason)


def placement(on: On) -> dict[str, Any]:
    """The assignments that both options come to together."""
    place = "file" if on.get("external_weight") else "host" if on.get("variable_placement") == "Host" else None
    found: dict[str, Any] = {"models.parameters": place}
    return found if on.device == "cpu" else found | {"models.copies_of_parameters": place is not None}
