"""Where torch shall keep what it compiles: one value of one switch, to which all options about it come together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The folder of torch's caches of compiled code.

    Attributes:
        megabytes: of which the oldest is thrown away when there is more, -1: there is no limit; None: as is found there.
    """

    path: str = ""  # as compile_cache_path or op_compiler_cache_dir names it; "": where that option has it by default
    kernels: bool = False  # laid out as that of op_compiler_cache_mode, ``kernel_cache`` in *path*; else ``rank_<number>``
    off: bool = False  # nothing is kept
    renew: bool = False  # what is kept there is thrown away first
    megabytes: int | None = None
    percent: int = 50  # of *megabytes* that stays then
