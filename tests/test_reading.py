"""What is shown may be read while another thread writes it."""

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from msctx import inspection
from msctx.native import core, memory
from msctx.torch_config import NOTHING, Forced


def between(read: Callable[[], Any], code: CodeType, write: Callable[[], object], place: int) -> bool:
    """Read, and write before the instruction of *code* that is at this place; whether there was one."""
    left = place

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                write()
        return trace

    found = sys.gettrace()
    sys.settrace(trace)
    try:
        read()
    finally:
        sys.settrace(found)
    return left < 0


def pool(on: bool) -> None:
    memory.write_pool(100 if on else None)


FORCED = Forced("not loaded yet", "an entry", lambda: False)  # then its configuration is read


def forced(on: bool) -> None:
    FORCED.forced = True if on else NOTHING


def variable(on: bool) -> None:
    if on:
        os.environ["TORCHINDUCTOR_FREEZING"] = "1"
    else:
        os.environ.pop("TORCHINDUCTOR_FREEZING", None)


CASES = {
    "the pool": (memory.read_pool, memory.read_pool.__code__, pool),
    "what is forced on inductor": (FORCED.read, Forced.read.__code__, forced),
    "the environment": (lambda: inspection.variables(os.environ), inspection.variables.__code__, variable),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("on", [True, False])
def test_a_write_at_each_place_of_a_read(case: str, on: bool) -> None:
    read, code, write = CASES[case]
    core.load()
    place = 0
    try:
        write(not on)
        while between(read, code, lambda: write(on), place):
            write(not on)
            place += 1
    finally:
        write(False)
    assert place > 5
