"""How figures of a table are written: with the range over processes, and bold only where that and A/A bear them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LEAST = 3
"""Processes: of fewer no figure is bold."""
NOISY = 1.1
"""By which factor A/A is off where figures within it are none."""


def noise(controls: Iterable[float]) -> float:
    """The most by which torch differed from itself, as a factor."""
    return max((max(c, 1 / c) for c in controls), default=1.0)


def figure(median: float, low: float, high: float, off: float, is_proven: bool = True) -> str:
    """A figure with its interval; bold where that holds neither 1 nor anything else that A/A showed, which is off by a factor."""
    text = f"{median:.2f} ({low:.2f} to {high:.2f})"
    return f"**{text}**" if is_proven and (low > off or high < 1 / off) else text


def of_processes(median: float, each: Sequence[float] | None, controls: Sequence[float]) -> str:
    """The figure of some processes, none where it lies within an A/A that is off by more than 10 %.

    Without what each process found it stands alone, and is never bold.
    """
    off = noise(controls)
    if off > NOISY and 1 / off <= median <= off:
        return "-"
    return figure(median, min(each), max(each), off, len(each) >= LEAST) if each else f"{median:.2f}"


def legend(kept: bool, processes: int) -> str:
    """The sentence under a table that explains bold figures."""
    dash = '"-": within the deviation of A/A, which exceeds 10 %.'
    if not kept:
        return f"The processes' own figures were not stored: no figure has an interval, and none is bold. {dash}"
    if processes < LEAST:
        return f"In brackets: the range over processes. With fewer than {LEAST} processes no figure is bold. {dash}"
    return f"In brackets: the range over processes. Bold: it contains neither 1 nor the largest deviation of A/A. {dash}"
