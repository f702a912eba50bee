"""What torch's old precision API says."""

from typing import Any

from torch import _C


def old_getters() -> dict[str, Any]:
    """What code that knows only the old API gets to see."""
    found: dict[str, Any] = {}
    for getter in (_C._get_float32_matmul_precision, _C._get_cublas_allow_tf32, _C._get_cudnn_allow_tf32):
        try:
            found[getter.__name__] = getter()
        except RuntimeError:
            found[getter.__name__] = "raises"
    return found
