"""The depthwise kernels of CUDA, emulated: every instantiation against float64, on both layouts, in all dtypes, to the bit."""

import ctypes
import itertools
import re
from pathlib import Path
from typing import Any

import kernels_of
import numpy as np
import pytest
import torch
from emulated import GARBAGE, Emulation, library, modules
from sanitizers import check, run_sanitized, runtime_libraries

from msctx.native import build
from msctx.native.cuda import depthwise_launches
from msctx.native.cuda.compiled_kernels import KERNELS, OPS
from msctx.native.cuda.depthwise_launches import DepthwiseProblem, Parameters, launches, own_window

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYOUTS = ("nchw", "channels_last")
TARGET = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
ROUNDING = {"float32": 0.0, "float64": 0.0, "float16": 2**-11, "bfloat16": 2**-8}
"""Of a result that is narrower than its sum."""
BOUNDS = {"float32": 2e-6, "float64": 4e-15, "float16": 2**-11 + 2e-6, "bfloat16": 2**-8 + 2e-6}
"""Of \\|error\\| / max\\|result\\|: half a unit of the dtype where that is a narrow one, and what the sums lose."""

CASES: dict[str, tuple[Any, ...]] = {
    "3x3": (2, 5, 2, (9, 8), (3, 3), (1, 1), (1, 1)),
    "3x3, stride 2": (2, 3, 1, (10, 7), (3, 3), (2, 2), (1, 1)),
    "3x3, stride 2, phases": (1, 2, 3, (7, 9), (3, 3), (2, 2), (2, 0)),
    "5x5": (1, 33, 1, (6, 11), (5, 5), (1, 1), (2, 3)),
    "5x5, stride 2": (3, 2, 2, (13, 8), (5, 5), (2, 2), (3, 1)),
    "7x7": (2, 3, 2, (8, 13), (7, 7), (1, 1), (3, 2)),
    "7x7, no padding": (1, 2, 1, (7, 7), (7, 7)),
    "1x1": (3, 7, 2, (5, 3), (1, 1)),
    "1x1, stride 3": (1, 4, 1, (8, 7), (1, 1), (3, 2), (1, 0)),
    "not square": (2, 3, 2, (9, 12), (2, 3), (1, 3), (2, 4), (2, 1)),
    "dilation 2, stride 2": (1, 3, 1, (11, 10), (3, 3), (2, 2), (2, 3), (2, 2)),
    "dilation 4, stride 6": (1, 2, 2, (21, 20), (4, 3), (6, 6), (5, 1), (4, 9)),
    "1-D": (2, 5, 2, (1, 37), (1, 5), (1, 2), (0, 2)),
    "31x31": (1, 2, 1, (20, 33), (31, 31), (1, 1), (15, 15)),
    "several chunks": (3, 2, 1, (40, 51), (3, 3), (1, 1), (1, 1)),
    "rows that no window reaches": (1, 2, 1, (10, 11), (3, 3), (4, 5)),
}
"""n, c, multiplier, extent, window, stride, padding, dilation."""


def problem(case: str, dtype: str, layout: str) -> DepthwiseProblem:
    return DepthwiseProblem(dtype, layout, *CASES[case])


def shapes(p: DepthwiseProblem) -> dict[str, tuple[int, ...]]:
    return {"x": (p.n, p.c, *p.extent), "w": (p.k, 1, *p.window), "y": (p.n, p.k, *p.out)}


def tensors(p: DepthwiseProblem, seed: int = 0) -> dict[str, torch.Tensor]:
    """Normal x and w, and as y its gradient; in the dtype of the problem, channels first."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes(p).items()}
    return {name: tensor.to(getattr(torch, p.dtype)) for name, tensor in made.items()}


def truth(p: DepthwiseProblem, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each op makes of the values given, in float64 by torch on the CPU."""
    x, w, y = (given[name].double().clone() for name in "xwy")
    x.requires_grad_()
    w.requires_grad_()
    found = torch.nn.functional.conv2d(x, w, None, p.stride, p.pad, p.dilation, p.c)
    assert tuple(found.shape) == tuple(y.shape)
    gradients = torch.autograd.grad(found, (x, w), y)
    return {"fprop": found.detach(), "dgrad": gradients[0], "wgrad": gradients[1]}


def stored(tensor: torch.Tensor, is_last: bool) -> np.ndarray[Any, Any]:
    """Its bits as they lie in memory."""
    tensor = (tensor.permute(0, 2, 3, 1) if is_last else tensor).contiguous()
    found = tensor.view(torch.int16).numpy().view(np.uint16) if tensor.element_size() == 2 else tensor.numpy()
    return found.copy()


def run(emulation: Emulation, p: DepthwiseProblem, op: str, given: dict[str, torch.Tensor], **how: bool) -> torch.Tensor:
    """The result of *op*, channels first. What it does not write is garbage."""
    assert op in OPS
    target = TARGET[op]
    is_last = {name: p.layout == "channels_last" and name != "w" for name in "xwy"}
    arrays = {name: stored(given[name], is_last[name]) for name in "xwy"}
    arrays[target].view(np.uint8)[...] = GARBAGE
    emulation.run(p, op, arrays, **how)
    array = arrays[target]
    found = torch.from_numpy(array.view(np.int16)) if array.dtype == np.uint16 else torch.from_numpy(array)
    found = found.view(getattr(torch, p.dtype))
    return found.permute(0, 3, 1, 2) if is_last[target] else found


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """|error| / max|result|."""
    assert found.shape == right.shape
    return float((found.double() - right).abs().max() / right.abs().max())


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="session")
def emulation() -> Emulation:
    if why := build.obstacle():
        pytest.skip(why)
    return Emulation(library(modules()))


def test_the_manifest_lists_exactly_the_kernels_there_are(emulation: Emulation) -> None:
    names = set(re.findall(rb"\0(depthwise_[a-z0-9_]+)(?=\0)", library(modules()).read_bytes()))
    assert {name.decode() for name in names} == set(KERNELS)
    assert all(emulation.has(name) for name in KERNELS)


def test_host_and_kernels_mean_the_same_parameters(emulation: Emulation) -> None:
    assert emulation.parameters_size == ctypes.sizeof(Parameters)


QUICK = {("float32", "nchw"), ("bfloat16", "channels_last")}
KINDS = [pytest.param(*k, marks=[] if k in QUICK else pytest.mark.full) for k in itertools.product(DTYPES, LAYOUTS)]


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("case", CASES)
def test_results(emulation: Emulation, dtype: str, layout: str, case: str) -> None:
    """By its own kernel and by the general one, with threads in both orders; a second run leaves the same bits."""
    p = problem(case, dtype, layout)
    given = tensors(p)
    right = truth(p, given)
    for op in OPS:
        kernels = (False, True) if own_window(p)[0] else (True,)
        found = [
            [run(emulation, p, op, given, general=general, backwards=backwards) for backwards in (False, True)]
            for general in kernels
        ]
        for general, (forwards, backwards) in zip(kernels, found, strict=True):
            with kernels_of.window(general):
                stated = (2**-53 if dtype == "float64" else 2**-24) * depthwise_launches.additions(p, op) + ROUNDING[dtype]
            assert error(forwards, right[op]) <= min(BOUNDS[dtype], stated), op
            assert bits(forwards) == bits(backwards), op
        if op != "wgrad":  # those of a window add in the order of the general one
            assert len({bits(each) for pair in found for each in pair}) == 1, op


EMPTY = {
    "no image": DepthwiseProblem("float32", "nchw", 0, 3, 2, (5, 4), (3, 3), pad=(1, 1)),
    "no channel": DepthwiseProblem("float32", "nchw", 2, 0, 2, (5, 4), (3, 3), pad=(1, 1)),
    "padding alone": DepthwiseProblem("float32", "channels_last", 2, 3, 1, (0, 4), (3, 3), pad=(2, 1)),
    "padding alone, any window": DepthwiseProblem("float32", "nchw", 2, 3, 1, (4, 0), (2, 1), pad=(0, 3)),
}


@pytest.mark.parametrize("case", EMPTY)
def test_empty_extents(emulation: Emulation, case: str) -> None:
    p = EMPTY[case]
    for op in OPS:
        found = run(emulation, p, op, tensors(p))
        assert (found.numel() == 0) is (launches(p, op) == []), op
        assert not found.any(), op


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["3x3, stride 2", "5x5", "not square"])
def test_inf_and_nan_reach_the_results_that_they_reach_in_float64(emulation: Emulation, case: str, layout: str) -> None:
    """In a corner, where padding is multiplied by an Inf of w, and in the midst."""
    kinds = itertools.product(("float32", "bfloat16"), (float("inf"), float("nan")), "xwy")
    for dtype, value, place in kinds:
        p = problem(case, dtype, layout)
        given = tensors(p)
        given[place].view(-1)[0] = value
        given[place].view(-1)[given[place].numel() // 2] = -value
        right = truth(p, given)
        assert sum(not result.isfinite().all() for result in right.values()) >= 1
        for op, general in itertools.product((op for op in OPS if TARGET[op] != place), (False, True)):
            found = run(emulation, p, op, given, general=general).double()
            where = dtype, value, place, op, general
            assert torch.equal(found.isnan(), right[op].isnan()), where
            one, other = (t.nan_to_num(0).isinf() * t.sign() for t in (found, right[op]))
            assert torch.equal(one.nan_to_num(0), other.nan_to_num(0)), where


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "scale", "step"),
    [("float32", 2.0**-140, 2.0**-149), ("float16", 2.0**-22, 2.0**-24), ("bfloat16", 2.0**-129, 2.0**-133)],
)
def test_denormals_are_kept(emulation: Emulation, dtype: str, scale: float, step: float, layout: str) -> None:
    for case in ("3x3", "dilation 2, stride 2"):
        p = problem(case, dtype, layout)
        given = tensors(p)
        for op, factor in {"fprop": "x", "dgrad": "y", "wgrad": "y"}.items():
            small = {**given, factor: (given[factor].double() * scale).to(given[factor].dtype)}
            assert small[factor].count_nonzero() > small[factor].numel() // 2
            right = truth(p, small)[op]
            terms = p.n * p.out[0] * p.out[1] if op == "wgrad" else p.window[0] * p.window[1] * p.multiplier
            found = run(emulation, p, op, small).double()
            assert right.abs().max() > step
            assert (found - right).abs().max() <= (step / 2 + terms * 2.0**-149 / 2) + BOUNDS[dtype] * right.abs().max()


@pytest.mark.full
def test_kernels_do_nothing_undefined() -> None:
    """Under the address sanitizer and that of undefined behaviour, on small problems."""
    libraries, watched = runtime_libraries(), library(modules("f32", "f16"), sanitize=True)
    script = str(Path(__file__).with_name("cuda_sanitized.py"))
    assert int(check(run_sanitized(libraries, script, str(watched), after_return=False)).split()[0]) > 200
