"""Takes back what a test of contexts lays at the base of the process."""

from collections.abc import Iterator

import pytest

import msctx


@pytest.fixture
def base() -> Iterator[None]:
    """For tests of set_context: takes it back at the end."""
    yield
    msctx.reset_context()
