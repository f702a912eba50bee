"""What a measurement depends on beside its problem: a result of other hardware or other software is not used here."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msctx._version import __version__

if TYPE_CHECKING:
    from msctx.native.core import Core

FLAGS = re.compile(
    r"avx2|fma|avx512(f|bw|vl|_bf16|_fp16|_vnni)|amx_(tile|bf16|int8|fp16|complex)|asimd(hp|dp)?|sve2?|bf16|i8mm"
)
"""The flags of a processor that decide which kernels it runs, torch's and ours."""


class Stamp(NamedTuple):
    """Of a result and of this process. Texts alone: they are compared, and read by people."""

    cpu: str
    flags: str
    isa: str
    torch: str
    kernels: str
    compiler: str
    msctx: str

    def differs(self, other: Stamp) -> tuple[list[str], list[str]]:
        """The fields in which two stamps differ: those that forbid to use a result, and those that are only told."""
        names = [name for name, a, b in zip(self._fields, self, other, strict=True) if a != b]
        return [n for n in names if n not in SOFT], [n for n in names if n in SOFT]


SOFT = ("compiler", "msctx")
"""What is told and does not matter: the kernels give the same bits whatever compiled them."""


@cache
def stamp(library: Core, place: str = "cpu") -> Stamp:
    """That of this process, of what it measures on a kind of device.

    On CUDA the fields are: cpu, the GPUs; flags, what they can and the driver; isa, cuDNN; there are no kernels of ours.
    """
    import torch

    from msctx.native import build

    if place == "cuda":
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return Stamp(
            cpu=", ".join(dict.fromkeys(gpu.name for gpu in gpus)),
            flags=", ".join([*dict.fromkeys(f"sm_{gpu.major}{gpu.minor}" for gpu in gpus), f"driver {driver()}"]),
            isa=f"cuDNN {torch.backends.cudnn.version()}",
            torch=f"{torch.__version__} CUDA {torch.version.cuda}",
            kernels="",
            compiler="",
            msctx=__version__,
        )
    made_of, compiler = build.origin(Path(library.path))
    model, flags = _cpu()
    return Stamp(
        cpu=model,
        flags=flags,
        isa=library.isa(),
        torch=f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        kernels=made_of[:16],
        compiler=compiler.partition(" (")[2].removesuffix(")"),  # its version, without a path of this machine
        msctx=__version__,
    )


def driver() -> str:
    """The version of NVIDIA's driver, as its kernel module tells it."""
    try:
        return re.findall(r"\d+\.[\d.]+", Path("/proc/driver/nvidia/version").read_text())[0]
    except (OSError, IndexError):
        return "unknown"


def _cpu() -> tuple[str, str]:
    """The processor's name, and those of its flags that matter."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    said = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in reversed(lines))}
    flags = said.get("flags", said.get("Features", "")).split()
    model = said.get("model name") or said.get("CPU part") or platform.processor() or platform.machine()
    return model, " ".join(sorted(flag for flag in flags if FLAGS.fullmatch(flag)))
