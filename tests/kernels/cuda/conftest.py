"""The emulation of the CUDA kernels, compiled once for all tests."""

import pytest
from emulated import Emulation, library, modules

from msctx.native import build


@pytest.fixture(scope="session")
def emulation() -> Emulation:
    if why := build.obstacle():
        pytest.skip(why)
    return Emulation(library(modules()))
