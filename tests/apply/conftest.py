"""A made-up library for the tests of ledger.py."""

import pytest
from fake_switches import FOUND, Globals

from msctx.context import ledger
from msctx.context.ledger import HELD


@pytest.fixture
def library(monkeypatch):
    found = Globals("a", "b", "c")
    monkeypatch.setattr(ledger, "SWITCHES", {name: found.switch(name) for name in found})
    yield found
    assert not any(HELD.values()), "a switch is still held"


@pytest.fixture
def base(library):
    """A base over that library; it is taken away."""
    hold = ledger.Hold("set_context", base=True)
    yield hold
    ledger.apply({}, hold)
    assert library == FOUND
