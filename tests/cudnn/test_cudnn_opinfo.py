"""PyTorch's own samples of every convolution operator, by cuDNN's algorithms and our own kernels: behind stand-ins, and on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

NAMED = (
    {"fprop": "implicit_gemm", "dgrad": "algo_1", "wgrad": "algo_1"},
    {"fprop": "direct", "dgrad": "algo_0", "wgrad": "algo_3"},
    {"fprop": "fft_tiling", "dgrad": "fft", "wgrad": "fft"},
    {"fprop": "winograd_nonfused", "dgrad": "winograd", "wgrad": "winograd_nonfused"},
)
OPERATORS = [f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)]
CHECK = """
import contextlib, sys
sys.path.insert(0, {native!r})
import test_opinfo as opinfo

def check(operator, dtype, device, error, inside, most=None):
    for ((_, rest, named), tensors), right, sizes in opinfo.samples(operator, dtype)[:most]:
        with inside():
            found = opinfo.outcome(operator, [t.to(device) for t in tensors], rest, named)
        for ours, exact, size in zip(found, right, sizes, strict=True):
            assert ours.shape == exact.shape
            at_most = error * opinfo.largest(size)
            assert opinfo.largest(ours.cpu().double() - exact) <= at_most, (operator, [t.shape for t in tensors], rest, named)
"""


@pytest.fixture
def check() -> str:
    return CHECK.format(native=str(Path(__file__).parents[1] / "native"))


@pytest.mark.full
@pytest.mark.parametrize("operator", OPERATORS)
def test_behind_the_stand_ins(asking: Callable[[str], str], check: str, operator: str) -> None:
    asking(f"""{check}
from standin_driver import *
start_driver("f32", "f64")
for named in {NAMED!r}:
    ask(**{{f"conv_{{direction}}_algo": name for direction, name in named.items()}}, fallback="silent")
    for dtype, error in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        check({operator!r}, dtype, "far", error, contextlib.nullcontext)
assert {{row.direction for row in rows()}} == {{"fprop", "dgrad", "wgrad"}}
assert any(row.provider == "cudnn" for row in rows())
""")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.usefixtures("torch_as_found")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_a_gpu(check: str, operator: str, dtype: torch.dtype) -> None:
    import msctx

    torch.backends.cudnn.allow_tf32 = False
    space: dict[str, Any] = {"torch": torch}
    exec(check, space)
    error = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype]
    for named in NAMED:
        options = {f"conv_{direction}_algo": name for direction, name in named.items()}
        space["check"](operator, dtype, "cuda", error, lambda options=options: msctx.context(**options, fallback="silent"))
