"""Threads for the tests of the native core: how many is a matter of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def threads() -> Callable[[int], AbstractContextManager[None]]:
    """A with-block in which torch uses so many threads."""
    return _threads


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Where threads are not the subject: waiting for others at each small problem takes longer than all the rest."""
    with _threads(1):
        yield
