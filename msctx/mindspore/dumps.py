"""MindSpore's marks of what is dumped."""

from __future__ import annotations

from typing import Any


def set_dump(target: Any, enabled: bool = True) -> None:
    """:func:`msctx.set_dump`, which raises what MindSpore raises."""
    from msctx.observers.dump import set_dump

    set_dump(target, enabled)
