"""The emulated CUDA kernels under the address sanitizer and that of undefined behaviour, on small problems."""

from pathlib import Path

import pytest
from emulated import library, modules
from sanitizers import check, run_sanitized, runtime_libraries

from msctx.native.cuda.manifest import Module

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


@pytest.mark.full
def test_a_read_beyond_a_tensor_is_seen(libraries: list[str], tmp_path: Path) -> None:
    """The same build and start, with an x that is too short by one element."""
    path = library([Module("depthwise_fprop.cu", ("ELEMENT=f32",))], sanitize=True)
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import numpy as np
from pathlib import Path
from emulated import Emulation
from msctx.native.cuda.depthwise import DepthwiseProblem
p = DepthwiseProblem("float32", "nchw", 1, 1, 1, (8, 8), (3, 3))
short = {{"x": np.ones(p.x_size - 1, np.float32), "w": np.ones(9, np.float32), "y": np.ones(p.y_size, np.float32)}}
Emulation(Path({str(path)!r})).run(p, "fprop", short)
"""
    script = tmp_path / "short.py"
    script.write_text(code)
    done = run_sanitized(libraries, str(script), after_return=False)
    assert done.returncode == 99, done.stdout + done.stderr[-3000:]
    assert "heap-buffer-overflow" in done.stderr
