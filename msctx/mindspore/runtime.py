"""MindSpore's ``runtime``: memory, threads and streams of the device, through torch."""

from __future__ import annotations

from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.mindspore import state
from msctx.mindspore.absent import Absent, names
from msctx.mindspore.checks import DROP, RESERVE, Check, Look, Note, OneOf, Size
from msctx.mindspore.errors import Found, raise_first
from msctx.mindspore.functions import named, refuse_again, setter
from msctx.mindspore.streams import (
    Event,
    Stream,
    StreamCtx,
    communication_stream,
    current_stream,
    default_stream,
    set_cur_stream,
    synchronize,
)
from msctx.vocabulary import describe

dispatch_threads_num = describe(
    setter("runtime.dispatch_threads_num", named("runtime.dispatch_threads_num")),
    f"{__name__}.dispatch_threads_num",
    named("runtime.dispatch_threads_num"),
)


@outside_dynamo
def launch_blocking() -> None:
    """``pynative_synchronize=True``: wait for the device after each operator."""
    state.store({"runtime.launch_blocking": True}, "ms.runtime.launch_blocking")


# --- memory -----------------------------------------------------------------------------------------------------------


class _Default(str):
    """A default value that nobody wrote: such an argument sets nothing."""

    __slots__ = ()


MEMORY: dict[str, Check] = {
    "init_size": Size(zero=("0GB", "0.0GB")),
    "increase_size": Size(least=1.0),
    "max_size": Size(),
    "optimize_level": OneOf(("O0", "O1")),
    "huge_page_reserve_size": Size(zero=(), pattern=RESERVE),
}
"""Argument → its check."""
DEFAULTS = {"init_size": _Default("2GB"), "huge_page_reserve_size": _Default("0GB")}
"""What torch's allocators have nothing for → the value that asks for nothing."""


@outside_dynamo
def set_memory(
    init_size: str = DEFAULTS["init_size"],
    increase_size: str = _Default("2GB"),
    max_size: str = _Default("1024GB"),
    optimize_level: str = _Default("O0"),
    huge_page_reserve_size: str = DEFAULTS["huge_page_reserve_size"],
) -> None:
    """The pool of device memory, in sizes such as ``"4GB"``; only what is given is set. It can be called once.

    Args:
        init_size: there is nothing like it in torch: another value than the default is dropped, with a note.
        increase_size: ``mempool_block_size``.
        max_size: ``max_device_memory``.
        optimize_level: ``memory_optimize_level``, ``"O0"`` or ``"O1"``.
        huge_page_reserve_size: there is nothing like it in torch, see ``init_size``.

    Raises:
        TypeError: not text.
        ValueError: not a size in MindSpore's form, or another level.
        RuntimeError: the second call.
    """
    what = "ms.runtime.set_memory"
    given = {
        "init_size": init_size,
        "increase_size": increase_size,
        "max_size": max_size,
        "optimize_level": optimize_level,
        "huge_page_reserve_size": huge_page_reserve_size,
    }
    found: list[Found] = []
    notes: list[Note] = []
    looks = {name: Look(name, state.origin(what), found, notes) for name in given}
    for name, value in given.items():
        looks[name].type(value, (str,))
    raise_first(found)
    if what in state.MARKS or any(state.set_by(f"runtime.set_memory.{name}") for name in MEMORY):
        refuse_again(what)
    options = {}
    for name, value in given.items():
        converted = MEMORY[name](value, looks[name])
        if converted is not DROP and not isinstance(value, _Default):
            if name not in DEFAULTS:
                options[f"runtime.set_memory.{name}"] = converted
            elif value != DEFAULTS[name]:
                looks[name].drop("torch's allocators have nothing like it: it is ignored")
    raise_first(found)
    state.tell_all(notes)
    state.store(options, what)
    state.MARKS.add(what)


STATISTICS = {
    "total_reserved_memory": "reserved_bytes.all.current",
    "total_allocated_memory": "allocated_bytes.all.current",
    "total_idle_memory": "",
    "total_eager_free_memory": "",
    "max_reserved_memory": "reserved_bytes.all.peak",
    "max_allocated_memory": "allocated_bytes.all.peak",
}
"""MindSpore's name → that of torch.cuda.memory_stats()."""


def _device() -> Any:
    """The module of torch for the target; None for the CPU, whose memory torch does not count."""
    target = state.target()
    if target == "CPU":
        return None
    if not state.is_here(target):
        raise state.missing(target)
    return state.torch_module(target)


def memory_stats() -> dict[str, Any]:
    """The state of the pool of device memory, in bytes; zeros on CPU."""
    device = _device()
    counted = device.memory_stats() if device else {}
    found: dict[str, Any] = {name: int(counted.get(key, 0)) for name, key in STATISTICS.items()}
    found["total_idle_memory"] = found["total_reserved_memory"] - found["total_allocated_memory"]
    blocks = int(counted.get("segment.all.current", 0))
    unit = 0 if device is None else int(_block_size())
    found["common_mem_pool_stats"] = {"block_unit_size": unit, "block_counts": blocks, "blocks_info": {}}
    found["persistent_mem_pool_stats"] = {"block_unit_size": unit, "block_counts": 0, "blocks_info": {}}
    return found


def _block_size() -> float:
    from msctx.mindspore.context import get_value

    return float(get_value("mempool_block_size")) * 2**30


def memory_reserved() -> int:
    """How many bytes the pool holds; 0 on CPU."""
    return int(memory_stats()["total_reserved_memory"])


def max_memory_reserved() -> int:
    """The most bytes that the pool held so far; 0 on CPU."""
    return int(memory_stats()["max_reserved_memory"])


def memory_allocated() -> int:
    """How many bytes tensors occupy; 0 on CPU."""
    return int(memory_stats()["total_allocated_memory"])


def max_memory_allocated() -> int:
    """The most bytes that tensors occupied so far; 0 on CPU."""
    return int(memory_stats()["max_allocated_memory"])


def memory_summary() -> str:
    """:func:`memory_stats` as a table."""
    statistics = memory_stats()
    lines = [f"{name.replace('_', ' '):<28}{statistics[name] / 2**20:>14.2f} MB" for name in STATISTICS]
    return "\n".join(["memory of the device", *lines, ""])


def reset_peak_memory_stats() -> None:
    """Let the most that was held and occupied count from now on."""
    if device := _device():
        device.reset_peak_memory_stats()


def reset_max_memory_reserved() -> None:
    """:func:`reset_peak_memory_stats`: torch resets both peaks together."""
    _reset("reset_max_memory_reserved", "max_memory_allocated")


def reset_max_memory_allocated() -> None:
    """:func:`reset_peak_memory_stats`: torch resets both peaks together."""
    _reset("reset_max_memory_allocated", "max_memory_reserved")


def _reset(name: str, other: str) -> None:
    if device := _device():
        state.tell_all([Note(f"runtime.{name}", f"torch resets both peaks together: {other}() begins anew too", False)])
        device.reset_peak_memory_stats()


def empty_cache() -> None:
    """Give memory that no tensor occupies back to the device; on CPU there is none to give back."""
    if device := _device():
        device.empty_cache()


# --- what is not carried out ------------------------------------------------------------------------------------------

_affinity = Absent("ms.runtime.set_cpu_affinity", "os.sched_setaffinity and OMP_PLACES set on which cores threads run")


@outside_dynamo
def set_cpu_affinity(
    enable_affinity: bool,
    affinity_cpu_list: list[str] | None = None,
    module_to_cpu_dict: dict[str, list[int]] | None = None,
) -> None:
    """Bind threads to cores: msctx has nothing for it. False is taken, and changes nothing. It can be called once.

    Raises:
        TypeError: wrong types.
        RuntimeError: the second call.
        NotCarriedOut: True.
    """
    what = "ms.runtime.set_cpu_affinity"
    found: list[Found] = []
    where = state.origin(what)
    Look("enable_affinity", where, found, []).type(enable_affinity, (bool,))
    Look("affinity_cpu_list", where, found, []).type(affinity_cpu_list, (list,))
    Look("module_to_cpu_dict", where, found, []).type(module_to_cpu_dict, (dict,))
    raise_first(found)
    if what in state.MARKS:
        refuse_again(what)
    if enable_affinity:
        _affinity()
    state.MARKS.add(what)


set_kernel_launch_group = Absent("ms.runtime.set_kernel_launch_group", "PyTorch launches kernels from one thread")
set_kernel_launch_capture = Absent(
    "ms.runtime.set_kernel_launch_capture", "torch.cuda.graph and torch.compile(mode='reduce-overhead') capture graphs"
)
memory_replay = Absent("ms.runtime.memory_replay", "torch.cuda.memory records and shows what was allocated")

__all__ = [
    "Event",
    "Stream",
    "StreamCtx",
    "communication_stream",
    "current_stream",
    "default_stream",
    "dispatch_threads_num",
    "empty_cache",
    "launch_blocking",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_replay",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_max_memory_allocated",
    "reset_max_memory_reserved",
    "reset_peak_memory_stats",
    "set_cpu_affinity",
    "set_cur_stream",
    "set_kernel_launch_capture",
    "set_kernel_launch_group",
    "set_memory",
    "synchronize",
]

__getattr__ = names("mindspore.runtime", dict.fromkeys(__all__))
