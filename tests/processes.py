"""What tests of processes wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300  # however busy the machine is
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(number: int) -> bool:
    """Whether the process is there, and is more than what its parent has not requested yet."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
