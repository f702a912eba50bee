"""For the code of cases: the calls that reached CANN, and faults in them."""

from __future__ import annotations

import ctypes
import sys

_recorder = ctypes.CDLL("libascendcl.so")
_recorder.recorder_take.restype = ctypes.c_char_p
_recorder.recorder_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]


def calls(*names: str) -> list[str]:
    """The calls since the last time, such as ``aclSetCompileopt(ACL_PRECISION_MODE, force_fp16)``; *names*: of these alone."""
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is not None and torch_npu.npu.is_initialized():
        torch_npu.npu.synchronize()  # a thread of torch_npu makes them
    lines = _recorder.recorder_take().decode().splitlines()
    return [line for line in lines if not line.startswith("aclrtSynchronizeDevice") and (not names or line.startswith(names))]


def fail(name: str, code: int = 500000, nth: int = 1) -> None:
    """The nth call of a function from now on returns an error."""
    _recorder.recorder_fail(name.encode(), nth, code)
