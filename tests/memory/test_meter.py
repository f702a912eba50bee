"""How much memory a stretch of a program takes, and how much the caps leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import msctx
from msctx.memory.meter import Meter

CPU = torch.device("cpu")
MB = 2**20


@pytest.mark.usefixtures("nothing_left_allocated")
def test_a_meter_counts_the_most_at_once_beyond_what_was_there() -> None:
    with msctx.context(memory_optimize_level="O0"):
        before = torch.empty(MB, dtype=torch.uint8)
        outer = Meter(CPU)
        for _ in range(3):
            torch.empty(2 * MB, dtype=torch.uint8)
        inner = Meter(CPU)
        both = torch.empty(MB, dtype=torch.uint8), torch.empty(3 * MB, dtype=torch.uint8)
        del both
        assert (inner.stop(), outer.stop()) == (4 * MB, 4 * MB)
        later = Meter(CPU)
        del before
        assert later.stop() == 0


def test_on_an_accelerator_its_own_statistics_are_read(far: Callable[..., str]) -> None:
    far("""
        import torch
        from msctx.memory.meter import Meter, room_under_caps

        device = torch.device("far")
        before = torch.empty(1000, dtype=torch.uint8, device=device)
        torch.far.reset_peak_memory_stats()
        begin = torch.far.memory_allocated()
        meter = Meter(device)
        more = torch.empty(4096, dtype=torch.uint8, device=device)
        taken = torch.far.memory_allocated() - begin
        del more
        assert meter.stop() == taken >= 4096
        assert room_under_caps(device) is None
    """)
