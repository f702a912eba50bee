"""Takes back what a test of contexts lays at the base of the process."""

from collections.abc import Callable, Iterator

import pytest

import msctx
from msctx.context.process_wide import BASE


@pytest.fixture
def base() -> Iterator[None]:
    yield
    msctx.reset_context()


@pytest.fixture
def begin_anew(base: None) -> Callable[[], None]:
    """Another process, as far as the options of this one go: it reads MSCTX_*."""

    def begin_anew() -> None:
        msctx.reset_context()
        BASE.read_environment = False

    return begin_anew
