"""The driver's launcher: what it says where there is no driver, and every kernel on a GPU against float64 on the CPU."""

from ctypes import CDLL, addressof, c_void_p
from typing import Any

import kernels_of
import pytest
import torch

from msctx.errors import NativeError
from msctx.native.cuda import compiled_kernels, driver
from msctx.native.cuda.compiled_kernels import DTYPES, KERNELS, LAYOUTS, OPS, THREADS
from msctx.native.cuda.depthwise_launches import DepthwiseProblem, launches, own_window, workspace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
BOUNDS = {"float32": 2e-6, "float64": 4e-15, "float16": 2**-11 + 2e-6, "bfloat16": 2**-8 + 2e-6}
"""Of \\|error\\| / max\\|result\\|, as in the emulation's tests."""
TARGET = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
SHAPES: dict[str, tuple[Any, ...]] = {
    "3x3": (3, 40, 2, (33, 29), (3, 3), (1, 1), (1, 1)),
    "3x3, stride 2": (2, 7, 1, (31, 18), (3, 3), (2, 2), (1, 0)),
    "5x5": (2, 33, 1, (17, 40), (5, 5), (1, 1), (2, 3)),
    "5x5, stride 2": (2, 5, 2, (28, 19), (5, 5), (2, 2), (3, 1)),
    "7x7": (2, 64, 1, (14, 15), (7, 7), (1, 1), (3, 2)),
    "any": (2, 6, 2, (23, 26), (2, 3), (3, 2), (4, 1), (2, 5)),
    "31x31": (1, 3, 1, (40, 33), (31, 31), (1, 1), (15, 15)),
    "no image": (0, 3, 2, (5, 4), (3, 3), (1, 1), (1, 1)),
}


def test_without_a_driver_the_error_names_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver._driver.cache_clear()
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
    with pytest.raises(NativeError, match=r"libnothing\.so\.1 cannot be loaded .*need an NVIDIA GPU and its driver"):
        driver.Kernels(b"")
    driver._driver.cache_clear()


def test_which_cubin_runs_where() -> None:
    assert [driver.arch_of(8, 0), driver.arch_of(8, 9), driver.arch_of(9, 0)] == ["sm_80", "sm_80", "sm_90a"]
    with pytest.raises(NativeError, match=r"capability 7\.5: they are compiled for 8\.x and 9\.0"):
        driver.arch_of(7, 5)


@pytest.fixture(scope="module")
def loaded() -> dict[str, driver.Kernels]:
    """By the name of a kernel, the module that holds it."""
    torch.zeros(1, device="cuda")  # makes the context
    arch = driver.arch()
    modules = {module: driver.Kernels(compiled_kernels.cubin(module, arch)) for module in {*KERNELS.values()}}
    return {name: modules[module] for name, module in KERNELS.items()}


def run(loaded: dict[str, driver.Kernels], p: DepthwiseProblem, op: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    places = {**given, TARGET[op]: torch.full_like(given[TARGET[op]], float("nan"))}
    places["workspace"] = torch.full((workspace(p, op),), 0x7F, dtype=torch.uint8, device="cuda")
    for launch in launches(p, op):
        values = [*(c_void_p(places[name].data_ptr()) for name in launch.tensors), launch.parameters]
        arguments = (c_void_p * len(values))(*map(addressof, values))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        kernel = loaded[launch.kernel].function(launch.kernel)
        assert not CDLL(driver.LIBRARY).cuLaunchKernel(kernel, launch.grid, 1, 1, THREADS, 1, 1, 0, stream, arguments, None)
    return places[TARGET[op]]


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_on_a_gpu(loaded: dict[str, driver.Kernels], dtype: str, layout: str, shape: str) -> None:
    """On a stream of its own, twice to the same bits; not within |error| / max|result| of the bound fails."""
    p = DepthwiseProblem(dtype, layout, *SHAPES[shape])
    generator = torch.Generator().manual_seed(0)
    sizes = {"x": (p.n, p.c, *p.extent), "w": (p.k, 1, *p.window), "y": (p.n, p.k, *p.out)}
    host = {n: torch.randn(s, generator=generator, dtype=torch.float64).to(getattr(torch, dtype)) for n, s in sizes.items()}
    x, w = (host[name].double().clone().requires_grad_() for name in "xw")
    y = torch.nn.functional.conv2d(x, w, None, p.stride, p.pad, p.dilation, p.c)
    right = {
        "fprop": y.detach(),
        **dict(zip(("dgrad", "wgrad"), torch.autograd.grad(y, (x, w), host["y"].double()), strict=True)),
    }
    last = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    with torch.cuda.stream(torch.cuda.Stream()):
        given = {n: t.cuda().contiguous(memory_format=torch.contiguous_format if n == "w" else last) for n, t in host.items()}
        for op in OPS:
            for general in (False, True) if own_window(p)[0] else (True,):
                with kernels_of.window(general):
                    found, again = (run(loaded, p, op, given).cpu() for _ in range(2))
                assert torch.equal(found, again)
                error = (found.double() - right[op]).abs()
                assert not error.numel() or error.max() <= BOUNDS[dtype] * right[op].abs().max(), op
