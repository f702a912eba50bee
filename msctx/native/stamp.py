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
def stamp(library: Core) -> Stamp:
    """That of this process."""
    import torch

    from msctx.native import build

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
