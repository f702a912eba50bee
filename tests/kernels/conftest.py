"""The kernels without torch, built once for all tests."""

import pytest

from kernels import Kernels, Row
from msctx.native import build


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    if why := build.obstacle():
        pytest.skip(why)
    build.library()  # its kernels are the same files: two workers that begin with one each would compile them twice
    return Kernels(str(build.kernels_library()))


@pytest.fixture
def row(request: pytest.FixtureRequest, kernels: Kernels) -> Row:
    """The row that the test is parametrized with: one of ``kernels.ROWS``."""
    if (found := kernels.named(request.param)) is None:
        pytest.skip(f"none of {', '.join(kernels.isas)} has it")
    return found
