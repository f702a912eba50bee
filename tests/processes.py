"""What tests of processes wait for, and what they compile."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from msctx.errors import NativeError


def compiled(*command: object, result: Path) -> bytes:
    words = [*map(str, command), "-o", str(result)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NativeError(f"{words[0]} failed:\n{done.stderr}")
    return result.read_bytes()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300  # however busy the machine is
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
