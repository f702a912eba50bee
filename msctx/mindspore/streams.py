"""Streams and events of MindSpore's ``runtime``: torch's own, of the device that is the target."""

from __future__ import annotations

from typing import Any

from msctx.errors import Diagnostic, MsctxError
from msctx.mindspore import state
from msctx.mindspore.absent import Absent
from msctx.mindspore.checks import is_a
from msctx.mindspore.errors import OptionTypeError


class NoStreams(MsctxError, RuntimeError):
    """The target is the CPU, which has no streams."""


def _device(what: str) -> Any:
    """``torch.cuda`` or ``torch.npu``."""
    target = state.target()
    if target == "CPU":
        raise NoStreams(f"ms.runtime.{what}: device_target is CPU, which has no streams; they are there with GPU and Ascend")
    if not state.is_here(target):
        raise state.missing(target)
    return state.torch_module(target)


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
        device = _device("Stream")
        if (stream := kwargs.pop("stream", None)) is not None:
            return device.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
        if "stream_id" in kwargs:
            _need("Stream", "stream_id", kwargs["stream_id"], int, "int")
        return device.Stream(priority=priority, **kwargs)


class Event(metaclass=_Torch):
    """An event of the device: torch's own."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> Any:
        _need("Event", "enable_timing", enable_timing, bool, "bool")
        _need("Event", "blocking", blocking, bool, "bool")
        return _device("Event").Event(enable_timing=enable_timing, blocking=blocking)


def synchronize() -> None:
    """Wait until the device has done everything that it was given."""
    _device("synchronize").synchronize()


def current_stream() -> Any:
    """The stream that operators are given to now."""
    return _device("current_stream").current_stream()


def default_stream() -> Any:
    """The stream that operators are given to unless another one is chosen."""
    return _device("default_stream").default_stream()


def set_cur_stream(stream: Any) -> None:
    """Give operators to another stream from now on; None changes nothing."""
    if stream is not None:
        _need("set_cur_stream", "stream", stream, Stream, "Stream, None")
    device = _device("set_cur_stream")
    if stream is not None:
        device.set_stream(stream)


class StreamCtx:
    """A with-block in which operators are given to another stream; None changes nothing."""

    def __init__(self, ctx_stream: Any) -> None:
        if ctx_stream is not None:
            _need("StreamCtx", "ctx_stream", ctx_stream, Stream, "Stream, None")
        _device("StreamCtx")
        self.stream = ctx_stream
        self.before: Any = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.before = current_stream()
            set_cur_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            set_cur_stream(self.before)


communication_stream = Absent("ms.runtime.communication_stream", "torch.distributed keeps its streams to itself")
