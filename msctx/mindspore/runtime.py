"""MindSpore's ``runtime``: memory, threads, streams and events of the device, through torch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.errors import Diagnostic, MsctxError
from msctx.mindspore import state
from msctx.mindspore.absent import Absent, names
from msctx.mindspore.checks import GB, RESERVE, Check, Note, Nothing, OneOf, Size, is_a
from msctx.mindspore.errors import OptionTypeError
from msctx.mindspore.functions import described_setter

dispatch_threads_num = described_setter("runtime.dispatch_threads_num")


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
        init_size: torch has no counterpart: values other than the default are ignored, with a note.
        increase_size: ``mempool_block_size``.
        max_size: ``max_device_memory``.
        optimize_level: ``memory_optimize_level``, ``"O0"`` or ``"O1"``.
        huge_page_reserve_size: as ``init_size``.

    Raises:
        TypeError: not text.
        ValueError: not a size in MindSpore's form, or another level.
        RuntimeError: the second call.
    """
    values = (init_size, increase_size, max_size, optimize_level, huge_page_reserve_size)
    given = dict(zip(MEMORY, values, strict=True))
    call = state.Call("ms.runtime.set_memory")
    call.check_types(**{name: (value, str) for name, value in given.items()})
    if call.what in state.marks() or any(state.set_by(f"runtime.set_memory.{name}") for name in MEMORY):
        call.refuse_again()
    options = {}
    for name, value in given.items():
        with suppress(Nothing):
            converted = MEMORY[name](value, call.look(name))
            if name in DEFAULTS and value != DEFAULTS[name]:
                call.look(name).drop("torch's allocators have nothing like it: it is ignored")
            if name not in DEFAULTS and not isinstance(value, _Default):
                options[f"runtime.set_memory.{name}"] = converted
    call.raise_first()
    state.tell_all(call.notes)
    state.store(options, call.what)
    state.marks().add(call.what)


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
    """The module of torch for the target; None for the CPU, whose memory torch does not count, and which has no streams."""
    return state.torch_module(state.target())


def memory_stats() -> dict[str, Any]:
    """The state of the pool of device memory, in bytes; zeros on CPU."""
    from msctx.mindspore.context import get_value

    device = _device()
    counted = device.memory_stats() if device else {}
    found: dict[str, Any] = {name: int(counted.get(key, 0)) for name, key in STATISTICS.items()}
    found["total_idle_memory"] = found["total_reserved_memory"] - found["total_allocated_memory"]
    blocks = int(counted.get("segment.all.current", 0))
    unit = int(get_value("mempool_block_size") * GB) if device else 0
    found["common_mem_pool_stats"] = {"block_unit_size": unit, "block_counts": blocks, "blocks_info": {}}
    found["persistent_mem_pool_stats"] = {"block_unit_size": unit, "block_counts": 0, "blocks_info": {}}
    return found


def memory_reserved() -> int:
    """Bytes held by the pool; 0 on CPU."""
    return int(memory_stats()["total_reserved_memory"])


def max_memory_reserved() -> int:
    """The most bytes that the pool held so far; 0 on CPU."""
    return int(memory_stats()["max_reserved_memory"])


def memory_allocated() -> int:
    """Bytes occupied by tensors; 0 on CPU."""
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
    """Start counting the peaks of held and occupied memory anew."""
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
    """Return memory that no tensor occupies to the device; on CPU there is none to return."""
    if device := _device():
        device.empty_cache()


# --- streams and events: torch's own ------------------------------------------------------------------------------------


class NoStreams(MsctxError, RuntimeError):
    """The target is the CPU, which has no streams."""


def _accelerator(what: str) -> Any:
    """``torch.cuda`` or ``torch.npu``."""
    if (device := _device()) is None:
        raise NoStreams(f"ms.runtime.{what}: device_target is CPU, which has no streams; they are there with GPU and Ascend")
    return device


def _need(what: str, name: str, value: Any, kind: Any, allowed: str) -> None:
    if not isinstance(value, kind):
        raise OptionTypeError([Diagnostic(name, is_a(value), state.origin(f"ms.runtime.{what}"), allowed)])


class _Torch(type):
    """A class that makes objects of torch, which count as its own."""

    def __instancecheck__(cls, value: Any) -> bool:
        import torch

        return isinstance(value, getattr(torch, cls.__name__))


class Stream(metaclass=_Torch):
    """A stream of the device: torch's own, so that it can be used with torch's functions too."""

    def __new__(cls, priority: int = 0, **kwargs: Any) -> Any:
        _need("Stream", "priority", priority, int, "int")
        device = _accelerator("Stream")
        if (stream := kwargs.pop("stream", None)) is not None:
            return device.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
        _need("Stream", "stream_id", kwargs.get("stream_id", 0), int, "int")
        return device.Stream(priority=priority, **kwargs)


class Event(metaclass=_Torch):
    """An event of the device: torch's own."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> Any:
        _need("Event", "enable_timing", enable_timing, bool, "bool")
        _need("Event", "blocking", blocking, bool, "bool")
        return _accelerator("Event").Event(enable_timing=enable_timing, blocking=blocking)


def synchronize() -> None:
    """Wait until the device has done everything that it was given."""
    _accelerator("synchronize").synchronize()


def current_stream() -> Any:
    """The stream that operators are given to now."""
    return _accelerator("current_stream").current_stream()


def default_stream() -> Any:
    """The stream that operators are given to unless another one is chosen."""
    return _accelerator("default_stream").default_stream()


def set_cur_stream(stream: Any) -> None:
    """Give operators to another stream from now on; None changes nothing."""
    _need("set_cur_stream", "stream", stream, (Stream, type(None)), "Stream, None")
    device = _accelerator("set_cur_stream")
    if stream is not None:
        device.set_stream(stream)


class StreamCtx:
    """A with-block in which operators are given to another stream; None changes nothing."""

    def __init__(self, ctx_stream: Any) -> None:
        _need("StreamCtx", "ctx_stream", ctx_stream, (Stream, type(None)), "Stream, None")
        _accelerator("StreamCtx")
        self.stream = ctx_stream
        self.before: Any = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.before = current_stream()
            set_cur_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            set_cur_stream(self.before)


# --- not carried out --------------------------------------------------------------------------------------------------

_affinity = Absent("ms.runtime.set_cpu_affinity", "os.sched_setaffinity and OMP_PLACES set on which cores threads run")


@outside_dynamo
def set_cpu_affinity(
    enable_affinity: bool,
    affinity_cpu_list: list[str] | None = None,
    module_to_cpu_dict: dict[str, list[int]] | None = None,
) -> None:
    """Bind threads to cores: msctx has no counterpart. False is accepted, and changes nothing. It can be called once.

    Raises:
        TypeError: wrong types.
        RuntimeError: the second call.
        NotCarriedOut: True.
    """
    call = state.Call("ms.runtime.set_cpu_affinity")
    call.check_types(
        enable_affinity=(enable_affinity, bool),
        affinity_cpu_list=(affinity_cpu_list, list),
        module_to_cpu_dict=(module_to_cpu_dict, dict),
    )
    if call.what in state.marks():
        call.refuse_again()
    if enable_affinity:
        _affinity()
    state.marks().add(call.what)


communication_stream = Absent("ms.runtime.communication_stream", "torch.distributed keeps its streams to itself")
set_kernel_launch_group = Absent("ms.runtime.set_kernel_launch_group", "PyTorch launches kernels from one thread")
set_kernel_launch_capture = Absent(
    "ms.runtime.set_kernel_launch_capture", "torch.cuda.graph and torch.compile(mode='reduce-overhead') capture graphs"
)
memory_replay = Absent("ms.runtime.memory_replay", "torch.cuda.memory records and shows what was allocated")

_HERE = (__name__, "ms.runtime")
__all__ = [name for name, value in globals().items() if name[0] != "_" and getattr(value, "__module__", "") in _HERE]

__getattr__ = names(__name__, __all__)
