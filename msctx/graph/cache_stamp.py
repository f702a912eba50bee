"""What compiled code depends on beside its source: the libraries it was compiled with, and the processor it was compiled for."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

import torch

from msctx._version import __version__
from msctx.native import environment_key

_FLAGS = re.compile(
    r"(s?sse|ssse|avx|amx|sve)\w*|sme2?|fma4?|f16c|bmi[12]|abm|adx|popcnt|v?aes|v?pclmulqdq|gfni|sha\w*|movbe|movdir\w+|rd(rand|seed)"
    r"|asimd\w*|fp(hp)?|bf16|i8mm|crc32|atomics|fphp|lrcpc|dcpop"
)
"""The flags of a processor that decide which instructions a compiler uses for it."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Of compiled code and of this process: texts for people. All must be equal, else the code is not used."""

    torch: str
    python: str
    msctx: str
    system: str
    processor: str
    flags: str

    @property
    def name(self) -> str:
        """Of the folder for code with this stamp."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    def differs(self, here: Stamp) -> list[str]:
        """What keeps code with this stamp from being used here, a sentence for each field."""
        found = []
        for name in (f.name for f in fields(self) if f.name != "flags"):
            if (theirs := getattr(self, name)) != (mine := getattr(here, name)):
                found.append(f"{name} is {mine} here, and was {theirs}")
        theirs, mine = {*self.flags.split()}, {*here.flags.split()}
        found += [f"this processor has no {' '.join(sorted(theirs - mine))}"] * bool(theirs - mine)
        found += [f"it was made without {' '.join(sorted(mine - theirs))}"] * bool(mine - theirs)
        return found


@cache
def stamp() -> Stamp:
    """That of this process."""
    model, _ = environment_key.cpu()
    libc = " ".join(platform.libc_ver()).strip()
    return Stamp(
        torch=f"{torch.__version__} {str(torch.version.git_version)[:12]}",
        python=str(sys.implementation.cache_tag),
        msctx=__version__,
        system=f"{platform.system()} {platform.machine()} {libc}".strip(),
        processor=f"{model}, {torch.backends.cpu.get_cpu_capability()}",
        flags=" ".join(flag for flag in environment_key.flags() if _FLAGS.fullmatch(flag)),
    )


def read(found: Any) -> Stamp | None:
    """A stamp as it stands in a file; ``None``: it is not one."""
    names = {f.name for f in fields(Stamp)}
    if not isinstance(found, dict) or {*found} != names or not all(isinstance(v, str) for v in found.values()):
        return None
    return Stamp(**found)


def place() -> str:
    """Where torch and Python lie, as a number: C++ that is compiled against headers elsewhere has another name in the cache."""
    places = [*torch.__path__, sys.base_prefix]
    return hashlib.sha256("\n".join(places).encode()).hexdigest()[:12]
