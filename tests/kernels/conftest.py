"""The kernels without torch, built once for all tests; of each family of algorithms two rows are tested in the quick tier."""

import re

import pytest
from variants import kernels_library

from kernels import ROWS, Kernels, Row
from msctx.native import build


def _family(row: str) -> str:
    return re.sub(r"_(tf32|nonfused|tiling|precomp|\d)|(?<=tiles_)w?g\w+", "", row.split("-")[-1])


FAMILIES = {family: [row for row in ROWS if _family(row) == family] for family in map(_family, ROWS)}
QUICK = {row for rows in FAMILIES.values() for row in (rows[0], rows[-1])}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        row = getattr(item, "callspec", None) and item.callspec.params.get("row")  # type: ignore[attr-defined]
        if row in ROWS and row not in QUICK:
            item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    if why := build.obstacle():
        pytest.skip(why)
    build.build()  # its kernels are the same files: two workers that begin with one each would compile them twice
    return Kernels(str(kernels_library()))


@pytest.fixture
def row(request: pytest.FixtureRequest, kernels: Kernels) -> Row:
    """The row that the test is parametrized with: one of ``kernels.ROWS``."""
    if (found := kernels.named(request.param)) is None:
        pytest.skip(f"none of {', '.join(kernels.isas)} has it")
    return found
