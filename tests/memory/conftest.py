"""What tests of memory leave behind."""

import gc
import time
from collections.abc import Iterator

import pytest

import msctx


@pytest.fixture
def nothing_left_allocated(only_new_objects_are_searched: None) -> Iterator[None]:
    yield
    for _ in range(100):
        gc.collect()  # which returns at once while another thread collects, pytest-xdist's for instance
        if msctx.memory_stats()["current_bytes"] == 0:
            return
        time.sleep(0.02)
    assert msctx.memory_stats()["current_bytes"] == 0
