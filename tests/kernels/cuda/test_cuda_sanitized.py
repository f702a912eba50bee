"""The emulated CUDA kernels under the address sanitizer and that of undefined behaviour, on small problems."""

from pathlib import Path

import pytest
from emulated import library, modules
from sanitizers import check, run_sanitized, runtime_libraries

SCRIPT = Path(__file__).with_name("cuda_sanitized.py")
ELEMENTS = ("f32", "f16")


@pytest.fixture(scope="module")
def libraries() -> list[str]:
    return runtime_libraries()


@pytest.mark.full
def test_kernels_do_nothing_undefined(libraries: list[str]) -> None:
    watched, plain = (str(library(modules(*ELEMENTS), sanitize)) for sanitize in (True, False))
    done = run_sanitized(libraries, str(SCRIPT), watched, plain, after_return=False)
    assert int(check(done).split()[0]) > 200
