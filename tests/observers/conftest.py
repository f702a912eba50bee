"""What the tests of the collector share."""

from collections.abc import Callable, Iterator

import pytest
from listeners import TESTED, Listens

from msctx.observers.operator_events import Row


@pytest.fixture
def collected() -> Iterator[Callable[..., list[Row]]]:
    def rows_of(run: Callable[[], object], **requested: int) -> list[Row]:
        reader = Listens(**(requested or {"inputs": 1, "outputs": 1, "statistics": 1, "digests": 1}))
        TESTED.load(reader)
        run()
        TESTED.load(None)
        return reader.rows

    yield rows_of
    TESTED.load(None)
