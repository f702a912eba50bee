"""What tests of memory leave behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import msctx


@pytest.fixture
def nothing_left_in_the_pool() -> Iterator[None]:
    yield
    gc.collect()
    assert msctx.memory_stats()["current_bytes"] == 0
