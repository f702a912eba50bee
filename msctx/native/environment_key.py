"""What a measurement depends on beside its problem: a result of other hardware or other software is not used here."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msctx._version import __version__
from msctx.errors import NativeError

if TYPE_CHECKING:
    from msctx.native.core import Core

FLAGS = re.compile(
    r"avx2|fma|avx512(f|bw|vl|_bf16|_fp16|_vnni)|amx_(tile|bf16|int8|fp16|complex)|asimd(hp|dp)?|sve2?|bf16|i8mm"
)
"""The flags of a processor that decide which kernels it runs, torch's and ours."""
CUDNN = "cuDNN "
"""How the isa of CUDA's stamp begins, and no other."""
SOFT = ("compiler", "msctx")
"""What is reported and does not matter: the kernels give the same bits whatever compiled them."""


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Of a result and of this process: texts for people, compared field by field.

    For CUDA *cpu* is the GPU, *flags* what it can and the driver, *isa* cuDNN; *kernels* and *compiler* are those for CUDA.
    """

    cpu: str
    flags: str
    isa: str
    torch: str
    kernels: str
    compiler: str
    msctx: str

    @property
    def place(self) -> str:
        """The kind of device that it is of."""
        return "cuda" if self.isa.startswith(CUDNN) else "cpu"

    def differs(self, other: Stamp) -> tuple[list[str], list[str]]:
        """The fields in which two stamps differ: those that forbid to use a result, and those that are only reported."""
        names = [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]
        return [n for n in names if n not in SOFT], [n for n in names if n in SOFT]


@cache
def stamp(library: Core, place: str = "cpu") -> Stamp:
    """That of this process, of what it measures on a kind of device."""
    import torch

    if place == "cuda":
        return _of_cuda()
    kernels = library.made.kernels.stem.rpartition("-")[2]
    version = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return Stamp(*cpu(), library.isa(), version, kernels, str(library.c.msctx_compiler()), __version__)


def _of_cuda() -> Stamp:
    import torch

    from msctx.native.cuda import driver as cuda_libraries
    from msctx.native.cuda import plans

    kernels = compiler = ""  # where there are none, none of ours has been measured
    with suppress(NativeError):
        kernels, compiler = plans.origin()[:16], str(cuda_libraries.find())
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    gpus = {gpu.name: f"sm_{gpu.major}{gpu.minor}" for gpu in found}
    flags = ", ".join([*dict.fromkeys(gpus.values()), f"driver {driver()}"])
    version = f"{torch.__version__} CUDA {torch.version.cuda}"
    return Stamp(", ".join(gpus), flags, f"{CUDNN}{torch.backends.cudnn.version()}", version, kernels, compiler, __version__)


def driver() -> str:
    """The version of NVIDIA's driver, as its kernel module reports it."""
    try:
        return str(re.findall(r"\d+\.[\d.]+", Path("/proc/driver/nvidia/version").read_text())[0])
    except (OSError, IndexError):
        return "unknown"


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
