"""Each test compiles afresh."""

import pytest


@pytest.fixture(autouse=True)
def _afresh(afresh: None) -> None: ...
