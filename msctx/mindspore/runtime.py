"""MindSpore's ``runtime``: memory, threads, streams and events of the device, through torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from msctx.errors import Diagnostic, MsctxError
from msctx.mindspore import keys_and_rules as keys
from msctx.mindspore.absent_names import SETTINGS, Absent, no_attribute, of
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError
from msctx.options import UNSET
from msctx.outside_dynamo import outside_dynamo
from msctx.setter_functions import build

dispatch_threads_num: Any
launch_blocking: Any


@outside_dynamo
def set_memory(
    init_size: str = "2GB",
    increase_size: Any = UNSET,
    max_size: Any = UNSET,
    optimize_level: Any = UNSET,
    huge_page_reserve_size: str = "0GB",
) -> None:
    """The pool of device memory, in sizes such as ``"4GB"``; only what is given is set. It can be set once.

    Args:
        init_size: torch has no counterpart: values other than the default are ignored, with a note.
        increase_size: ``mempool_block_size``.
        max_size: ``max_device_memory``.
        optimize_level: ``memory_optimize_level``, ``"O0"`` or ``"O1"``.
        huge_page_reserve_size: as ``init_size``.

    Raises:
        TypeError: not text.
        ValueError: not a size, or another level.
        RuntimeError: the second call.
    """
    what = "ms.runtime.set_memory"
    where = keys.origin(what)
    given = {"increase_size": increase_size, "max_size": max_size, "optimize_level": optimize_level}
    given = {name: value for name, value in given.items() if value is not UNSET}
    rest = {"init_size": init_size, "huge_page_reserve_size": huge_page_reserve_size}
    if wrong := [p for name, value in (given | rest).items() for p in keys.wrong_type(name, value, (str,), where)]:
        raise OptionTypeError(wrong)
    options = {f"runtime.set_memory.{name}": value for name, value in given.items()}
    if any(keys.set_by(f"runtime.set_memory.{name}") for name in ("increase_size", "max_size", "optimize_level")):
        raise OptionRuntimeError([Diagnostic(what, "it can be set only once", where)])
    left = [name for name, default in (("init_size", "2GB"), ("huge_page_reserve_size", "0GB")) if rest[name] != default]
    keys.tell_all([f"runtime.set_memory({name}): {SETTINGS[f'runtime.set_memory.{name}']}" for name in left])
    keys.store(options, what)


# --- torch's own functions of the device --------------------------------------------------------------------------------


class NoStreams(MsctxError, RuntimeError):
    """The target is the CPU, which has no streams."""


def _of_torch(name: str, theirs: str, on_cpu: Any = UNSET) -> Callable[..., Any]:
    """The function of ``torch.cuda`` or ``torch.npu``; *on_cpu*: its result on the CPU, whose memory torch does not count."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if device := keys.torch_module(keys.target()):
            return getattr(device, theirs)(*args, **kwargs)
        if on_cpu is UNSET:
            raise NoStreams(f"ms.runtime.{name}: device_target is CPU, which has no streams; GPU and Ascend have them")
        return on_cpu

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch's ``{theirs}`` for the device of ``device_target``."
    return function


memory_allocated = _of_torch("memory_allocated", "memory_allocated", 0)
max_memory_allocated = _of_torch("max_memory_allocated", "max_memory_allocated", 0)
memory_reserved = _of_torch("memory_reserved", "memory_reserved", 0)
max_memory_reserved = _of_torch("max_memory_reserved", "max_memory_reserved", 0)
memory_summary = _of_torch("memory_summary", "memory_summary", "")
empty_cache = _of_torch("empty_cache", "empty_cache", None)
reset_peak_memory_stats = _of_torch("reset_peak_memory_stats", "reset_peak_memory_stats", None)
reset_max_memory_reserved = _of_torch("reset_max_memory_reserved", "reset_peak_memory_stats", None)
reset_max_memory_allocated = _of_torch("reset_max_memory_allocated", "reset_peak_memory_stats", None)
Stream = _of_torch("Stream", "Stream")
Event = _of_torch("Event", "Event")
StreamCtx = _of_torch("StreamCtx", "stream")
set_cur_stream = _of_torch("set_cur_stream", "set_stream")
current_stream = _of_torch("current_stream", "current_stream")
default_stream = _of_torch("default_stream", "default_stream")
synchronize = _of_torch("synchronize", "synchronize")


def memory_stats() -> dict[str, int]:
    """The state of the pool of device memory, in bytes, by MindSpore's names."""
    reserved, allocated = memory_reserved(), memory_allocated()
    return {
        "total_reserved_memory": reserved,
        "total_allocated_memory": allocated,
        "total_idle_memory": reserved - allocated,
        "max_reserved_memory": max_memory_reserved(),
        "max_allocated_memory": max_memory_allocated(),
    }


# --- not supported --------------------------------------------------------------------------------------------------

globals().update(of("runtime"))
__getattr__ = partial(no_attribute, __name__)


def set_cpu_affinity(enable_affinity: bool, affinity_cpu_list: Any = None, module_to_cpu_dict: Any = None) -> None:
    """Bind threads to cores: msctx has no counterpart. False is accepted, and changes nothing; True raises."""
    if enable_affinity:
        Absent("runtime.set_cpu_affinity")()


build(sys.modules[__name__], "runtime", keys.set_one)
