"""Each test compiles afresh."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _afresh(afresh: None) -> None: ...
