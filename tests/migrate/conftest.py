"""Scripts for the tests of `msctx migrate`."""

import textwrap

import pytest
from migrations import Of, Write

from msctx import migrate


@pytest.fixture
def write(tmp_path) -> Write:

    def write(text: str | bytes, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return str(path)

    return write


@pytest.fixture
def of(write) -> Of:
    """What a script with this text comes to; it imports mindspore as ms on line 1."""
    return lambda text: migrate.read(write("import mindspore as ms\n" + textwrap.dedent(text)))
