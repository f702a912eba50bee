"""Interpreters in which the device far has cuDNN's algorithms, from a stand-in: see standin.py."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import fake_device
import pytest

HERE = Path(__file__).parent
PRELUDE = f"""
import sys
sys.path[:0] = {[str(folder) for folder in (HERE, HERE.parent, HERE.parent / "kernels" / "cuda")]!r}
import standin
from standin import *
import torch, warnings
from msctx.native import tuning_in_core
tuning_in_core.is_busy = lambda: False
cudnn = start()
torch.set_num_threads(1)
torch.manual_seed(0)
"""


@pytest.fixture(scope="session", autouse=True)
def standins() -> None:
    """Compiled before the time limits of the processes that load them count."""
    if not fake_device.obstacle():
        for source in HERE.glob("*_standin.cpp"):
            fake_device.library(source)


@pytest.fixture
def asking(far: Callable[..., str]) -> Callable[[str], str]:
    """Run code after the prelude."""
    return lambda code: far(PRELUDE + textwrap.dedent(code))


@pytest.fixture
def measuring(far_library: str, passes: Callable[..., str], tmp_path: Path) -> Callable[[str], str]:
    """Run code after the prelude in an interpreter that measures, as a forked one does not; ``folder`` is this test's."""
    return lambda code: passes(f"{PRELUDE}folder = {str(tmp_path)!r}\n{textwrap.dedent(code)}")
