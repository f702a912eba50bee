"""The loaded library: loading and checking it, and its C functions with Python's types."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import platform
import re
import threading
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p, py_object
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import NativeError

if TYPE_CHECKING:
    from msctx.native.build import Build

ISA_VARIABLE = "MSCTX_ISA"
PLACES = ("cpu", "cuda", "ascend")
"""The kinds of devices that have a policy of their own."""
CUDA = ("libcudnn.so.9", "libtorch_cuda.so", "CUDA")
"""The libraries in which torch has cuDNN and its handle, and the dispatch key of its tensors."""

# --- types of the C functions -----------------------------------------------------------------------------------------

_free = ctypes.CDLL(None).free
_free.argtypes = [c_void_p]


def json_of(value: Any) -> bytes:
    """Plain data as the library reads it (kernels/include/msctx/json.h)."""
    return json.dumps(value, ensure_ascii=False).encode()


def _enough(found: int | None, *_: Any) -> int:
    if not found:
        raise MemoryError
    return found


def _read_json(text: int | None, *_: Any) -> Any:
    try:
        return None if text is None else json.loads(ctypes.string_at(text))
    finally:
        _free(text)


TEXT = c_char_p, lambda found, *_: None if found is None else found.decode()
DONE = c_int, _enough
"""0: there was no memory, which raises ``MemoryError``."""
HANDLE = c_void_p, _enough
JSON = c_void_p, _read_json
"""A text of JSON, which the caller frees; ``None`` where the pointer is null."""


class Parallel(ctypes.Structure):
    """Threads, as kernels/include/msctx/interface.h has them."""

    _fields_ = [("threads", c_int), ("pool", c_void_p), ("run", c_void_p)]


# What takes or returns an int, nothing, bytes, or what ctypes has made needs no declaration
_RETURNS: dict[Any, str] = {
    TEXT: "isa isa_in_use compiler install install_cuda install_npu hook_problem pool_set precision_install",
    DONE: "set_policy book_open book_close fingerprint learn",
    JSON: "book_rows measured collected running",
    HANDLE: "book_new",
    (c_char_p,): "serve_cuda_kernels",
    (c_double,): "measuring_seconds",
    (c_int64,): "measurements collect_dropped pool_empty_cache cap_set",
    (c_void_p,): "text enter_module",
    (Parallel,): "own_threads",
}
_TAKES: dict[str, list[Any]] = {
    "install": [py_object],
    "serve_cuda_kernels": [py_object, c_char_p],
    "book_delete": [c_void_p],
    "book_open": [c_void_p],
    "book_close": [c_void_p],
    "book_rows": [c_void_p],
    "book_unmatched": [c_void_p, c_int],
    "fingerprint": [c_char_p, c_void_p, c_int64, c_void_p, POINTER(Parallel)],
    "ask_before_measuring": [py_object],
    "watch": [c_int64, c_char_p],
    "watch_model": [c_int64, c_int],
    "look_for_weights": [py_object],
    "collect": [c_char_p, c_int64, py_object, py_object, py_object],
    "collected": [c_int64],
    "enter_module": [c_void_p],
    "cap_set": [c_int64, c_int64, c_char_p],
    "cap_close": [c_int64],
    "cap_counts": [c_int64, POINTER(c_int64)],
}


class Core:
    """The library in this process; ``c`` has its functions, most of which release the GIL."""

    def __init__(self, made: Build) -> None:
        import torch

        ctypes.CDLL(str(made.kernels))  # found by its name when the glue is loaded
        torch.ops.load_library(str(made.glue))
        self.made = made
        self.c = c = ctypes.CDLL(str(made.glue))
        for name in ("msctx_enter_module", "msctx_on_trial", "msctx_precision_switch", "msctx_precision_note_autocast"):
            setattr(c, name, getattr(ctypes.PyDLL(str(made.glue)), name))  # it is done before the GIL would be released
        for name, arguments in _TAKES.items():
            getattr(c, f"msctx_{name}").argtypes = arguments
        for (result, *read), names in _RETURNS.items():
            for function in (getattr(c, f"msctx_{name}") for name in names.split()):
                function.restype = result
                if read:
                    function.errcheck = read[0]
        self.hooked = {"cpu"}
        wanted = os.environ.get(ISA_VARIABLE)
        if wanted and not c.msctx_use_isa(wanted.encode()):
            raise NativeError(f"{ISA_VARIABLE}={wanted!r}: this processor has {', '.join(self.isas())}")
        if problem := c.msctx_install(_warn):
            raise NativeError(f"the native core could not be registered with PyTorch's dispatcher: {problem}")
        atexit.register(c.msctx_leave_python)

    def isas(self) -> list[str]:
        """The instruction sets of this processor that the kernels are built for, best first."""
        found: list[str] = []
        while (name := self.c.msctx_isa(len(found))) is not None:
            found.append(name)
        return found

    def fingerprint(self, data: int, size: int) -> tuple[int, int]:
        """What distinguishes so many bytes from others; in this thread alone."""
        found = (c_uint64 * 2)()
        self.c.msctx_fingerprint(None, data, size, found, self.c.msctx_own_threads(1))
        return found[0], found[1]


def _warn(message: bytes) -> int:
    """Called by the library in the thread of the convolution; 1: raise there."""
    try:
        notices.warn(message.decode(errors="replace"))
    except Warning:  # warnings turned into errors
        return 1
    return 0


# --- loading ----------------------------------------------------------------------------------------------------------

_lock = threading.RLock()
"""Held by the thread that loads."""
_core: Core | None = None
_failed = ""


def loaded() -> Core | None:
    """The library, if this process has loaded it."""
    return _core


def hooked() -> set[str]:
    """The places whose operators it serves."""
    return {*_core.hooked} if _core is not None else set()


def load() -> Core:
    """The library; built, loaded and checked the first time.

    Raises:
        NativeError: it cannot be had; the same reason is given again without another try.
    """
    global _core, _failed
    if _core is not None:
        return _core
    with _lock:
        if _failed:
            raise NativeError(_failed)
        if _core is None:
            from msctx.native import build, watched_models

            try:
                made = build.build()
                with uninterrupted():
                    _core = Core(made)
                    watched_models.send_all(_core)
            except (NativeError, OSError, AttributeError) as error:
                _failed = f"{error}: {error.__cause__}" if error.__cause__ is not None else str(error)
                raise NativeError(_failed) from error
    return _core


def load_with_cuda() -> Core:
    """The library, with cuDNN's algorithms.

    Raises:
        NativeError: it cannot be had, or this torch's cuDNN has no interface in which algorithms are named.
    """
    library = load()
    with _lock:
        if "cuda" not in library.hooked:
            if problem := library.c.msctx_install_cuda(*map(str.encode, CUDA)):
                raise NativeError(f"cuDNN's algorithms cannot be named here: {problem}")
            library.hooked.add("cuda")
            from msctx.native.cuda import depthwise_launches, driver

            # without a driver nothing of ours runs there, as its rows show
            library.c.msctx_serve_cuda_kernels(depthwise_launches.plan, driver.LIBRARY.encode())
    return library


ASCEND910B1 = 220
"""The number by which torch_npu knows the first chip whose matrix unit computes float32."""


def has_float32_products() -> bool:
    """Whether the matrix unit of the NPU that is here computes float32; nothing is initialised to find out."""
    import torch_npu

    return bool(torch_npu._C._npu_get_soc_version() >= ASCEND910B1)


def load_with_npu() -> Core:
    """The library, with products on an NPU.

    Raises:
        NativeError: it cannot be had.
    """
    library = load()
    with _lock:
        if "ascend" not in library.hooked:
            if problem := library.c.msctx_install_npu(has_float32_products()):
                raise NativeError(f"matmuls cannot be hooked on this NPU: {problem}")
            library.hooked.add("ascend")
    return library


def hook_problem(place: str) -> str:
    """``""`` while PyTorch's dispatcher calls our kernels, or may yet, else whose it calls."""
    return str(_core.c.msctx_hook_problem(PLACES.index(place))) if _core is not None else ""


def cudnn_obstacle() -> str:
    """Why cuDNN's algorithms cannot be named in this process, or ``""``; cheap. Import torch before."""
    if problem := hook_problem("cuda"):
        return problem
    for name in CUDA[:2]:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            return f"{name} is not loaded: this torch has no cuDNN 9"
    return ""


def obstacle() -> str:
    """Why the native core cannot serve now, or ``""``; cheap."""
    if problem := hook_problem("cpu"):
        return f"{problem}, registered after msctx's; enter the context before that library is loaded"
    if _core is not None or _failed:
        return _failed
    from msctx.native import build

    return build.obstacle()


# --- the processor ----------------------------------------------------------------------------------------------------

FLAGS = re.compile(
    r"avx2|fma|avx512(f|bw|vl|_bf16|_fp16|_vnni)|amx_(tile|bf16|int8|fp16|complex)|asimd(hp|dp)?|sve2?|bf16|i8mm"
)
"""The flags of a processor that decide which kernels it runs, torch's and ours."""


@cache
def cpu() -> tuple[str, str]:
    """The processor's name, and those of its flags that matter."""
    found = cpuinfo()
    model = found.get("model name") or found.get("CPU part") or platform.processor() or platform.machine()
    flags = sorted(found.get("flags", found.get("Features", "")).split())
    return model, " ".join(flag for flag in flags if FLAGS.fullmatch(flag))


def cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in reversed(lines))}


def amx_obstacle() -> str:
    """Why the kernels have no matrix unit here, or ``""``: the same before the library is loaded and after."""
    if isa := os.environ.get(ISA_VARIABLE):
        return "" if isa.startswith("amx") else f"{ISA_VARIABLE}={isa} has no AMX"
    flags = cpu()[1].split()  # none: they are not known
    return "" if not flags or {"amx_tile", "amx_bf16", "amx_int8"} <= {*flags} else "this processor has no AMX"
