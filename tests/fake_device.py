"""An accelerator without hardware: registers the device "far" for good, so only in an interpreter of its own.

Its kernels are in fake_device.cpp.
"""

from __future__ import annotations

import atexit
import contextlib
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
from processes import compiled

from msctx.errors import NativeError
from msctx.native.build import find_compiler
from msctx.native.cachedir import digest, obtain

SOURCE = Path(__file__).resolve().with_name("fake_device.cpp")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
LINK = ("-Wl,--as-needed", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined")


def obstacle() -> str:
    """Why there can be no such device here, or ``""``."""
    try:
        find_compiler()
    except NativeError as error:
        return str(error)
    return ""


def library(file: Path = SOURCE) -> Path:
    """The compiled fake_device.cpp, or another *file*. In the cache under a hash of all it is made of: it is compiled once."""
    tool, folder = find_compiler(), Path(torch.__file__).parent
    flags = (*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    torchs = (torch.__version__, torch.version.git_version, platform.libc_ver())

    def make() -> bytes:
        paths = ("-isystem", folder / "include", f"-L{folder / 'lib'}")
        with TemporaryDirectory() as scratch:
            return compiled(*tool.command, *flags, *paths, file, *LINK, result=Path(scratch, "result.so"))

    return obtain(
        "far", f"{digest({file.name: file.read_bytes()}, flags, LINK, torchs, tool.command, tool.version)[:16]}.so", make
    )


def register(path: str | Path | None = None) -> ModuleType:
    """Make "far" a device of torch and torch.far its module, unless they are; *path* is the library if it is known."""
    if not hasattr(torch, "far"):
        torch.ops.load_library(str(path or library()))
        torch.utils.rename_privateuse1_backend("far")
        torch._register_device_module("far", _module())
        torch.utils.generate_methods_for_privateuse1_backend(for_packed_sequence=True, for_storage=True)
        # As with every accelerator, a thread of autograd drops the last of a graph when backward() has returned already. Where
        # the interpreter has ended by then, that thread takes the process down: it is given the time (and the GIL).
        atexit.register(time.sleep, 0.1)
    return torch.far


class Stream(torch.Stream):
    """A stream of far, whatever device is current."""

    def __new__(cls, device: Any = "far", **more: Any) -> Stream:
        return super().__new__(cls, device=device, **more)


def _module() -> ModuleType:
    """torch.far: the names of torch.cuda, for one device that has always been initialised."""
    module = ModuleType("torch.far", __doc__)
    accelerator = torch.accelerator
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": accelerator.set_device_index,
        "device": lambda _: contextlib.nullcontext(),
        "get_device_name": lambda _=None: "far",
        "synchronize": accelerator.synchronize,
        "Stream": Stream,
        "stream": lambda stream: stream or contextlib.nullcontext(),  # a torch.Stream is a context
        "memory_allocated": accelerator.memory_allocated,
        "max_memory_allocated": accelerator.max_memory_allocated,
        "memory_reserved": accelerator.memory_reserved,
        "max_memory_reserved": accelerator.max_memory_reserved,
        "reset_peak_memory_stats": accelerator.reset_peak_memory_stats,
        "memory_stats": accelerator.memory_stats,
        "empty_cache": accelerator.empty_cache,
        # Random numbers are drawn from the generator of the CPU, which torch.manual_seed seeds anyway
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": lambda _: None,
        "get_rng_state": lambda _="far": torch.get_rng_state(),
        "set_rng_state": lambda state, _="far": torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    vars(module).update(names)
    sys.modules["torch.far"] = module
    return module


def prepare() -> None:
    register()
    for name in ("msctx.memory.recompute", "msctx.memory.memory_format", "torch._dynamo", "torch.optim"):
        import_module(name)  # once, and not in each fork
