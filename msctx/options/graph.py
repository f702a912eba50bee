"""What shall become of code that is compiled: one value of one switch, to which all options about it come together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Compilation:
    """How msctx compiles modules and functions.

    Attributes:
        whole: what cannot be captured is an error (STRICT); else it runs eagerly (LAX).
        fused: by inductor, or one library kernel per node; None: as torch.compile does unasked.
        only: nothing runs; what is compiled fills the caches.
        config: entries of torch._inductor.config, for this code alone.
    """

    whole: bool = False
    fused: bool | None = None
    only: bool = False
    config: tuple[tuple[str, Any], ...] = ()
