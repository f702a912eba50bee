"""A made-up library for the tests of apply.py."""

from collections.abc import Iterator

import pytest
from fake_switches import FOUND, Globals

from msctx import apply
from msctx.rebase import rebase


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Globals]:
    """Three switches of a library that is not there: a, b and c."""
    found = Globals("a", "b", "c")
    monkeypatch.setattr(apply, "SWITCHES", {name: found.switch(name) for name in found})
    yield found
    assert not any(apply._ledger.values()), "a switch is still held"


@pytest.fixture
def base(library: Globals) -> Iterator[apply.Hold]:
    """A base over that library; it is taken away."""
    hold = apply.Hold("set_context", base=True)
    yield hold
    rebase(hold, {})
    assert library == FOUND
