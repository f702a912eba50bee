"""For the code of cases: the calls that reached CANN, and faults in them."""

import ctypes
import sys

_recorder = ctypes.CDLL("libascendcl.so")
_recorder.recorder_take.restype = ctypes.c_char_p
_recorder.recorder_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]


def take(*, wait: bool = True) -> list[str]:
    """All lines since the last time; *wait*: once torch_npu's thread that makes the calls has made them."""
    torch_npu = sys.modules.get("torch_npu") if wait else None
    if torch_npu is not None and torch_npu.npu.is_initialized():
        torch_npu.npu.synchronize()
    return _recorder.recorder_take().decode().splitlines()


def calls(*names: str) -> list[str]:
    """The calls since the last time, such as ``aclSetCompileopt(ACL_PRECISION_MODE, force_fp16)``; *names*: of these alone."""
    return [line for line in take() if not line.startswith("aclrtSynchronizeDevice") and (not names or line.startswith(names))]


def fail(name: str, code: int = 500000, nth: int = 1) -> None:
    _recorder.recorder_fail(name.encode(), nth, code)
