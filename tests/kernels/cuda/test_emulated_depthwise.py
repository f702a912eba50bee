"""The depthwise kernels of CUDA, emulated: every instantiation against float64, on both layouts, in all dtypes, to the bit."""

import ctypes
import itertools
import re

import kernels_of
import numpy as np
import pytest
import torch
from depthwise_cases import BOUNDS, CASES, DTYPES, LAYOUTS, ROUNDING, TARGET, bits, error, problem, run, tensors, truth
from emulated import Emulation, library, modules

from msctx.native.cuda import depthwise
from msctx.native.cuda.depthwise import KERNELS, OPS, DepthwiseProblem, Parameters, launches, own_window

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_manifest_lists_exactly_the_kernels_there_are(emulation: Emulation) -> None:
    names = set(re.findall(rb"\0(depthwise_[a-z0-9_]+)(?=\0)", library(modules()).read_bytes()))
    assert {name.decode() for name in names} == set(KERNELS)
    assert all(emulation.has(name) for name in KERNELS)


def test_host_and_kernels_mean_the_same_parameters(emulation: Emulation) -> None:
    assert emulation.parameters_size == ctypes.sizeof(Parameters)


def test_the_cases_meet_every_kernel() -> None:
    met = set()
    for general in (False, True):
        with kernels_of.window(general):
            for case, dtype, layout, op in itertools.product(CASES, DTYPES, LAYOUTS, OPS):
                met |= {launch.kernel for launch in launches(problem(case, dtype, layout), op)}
    assert met == set(KERNELS)


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
                stated = (2**-53 if dtype == "float64" else 2**-24) * depthwise.additions(p, op) + ROUNDING[dtype]
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


def test_conversions_round_to_nearest_even(emulation: Emulation) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    right = patterns.view(np.float16).astype(np.float32)
    found = emulation.from_binary16(patterns)
    assert np.array_equal(found, right, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(right))
    middles = (right[np.isfinite(right)][:-1].astype(np.float64) + right[np.isfinite(right)][1:]) / 2
    values = np.concatenate(
        [
            np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32),
            *(np.nextafter(middles.astype(np.float32), np.float32(to)) for to in (-np.inf, np.inf)),
            middles.astype(np.float32),
            np.array([65504, 65519.996, 65520, 65536, 3.4e38, np.inf, -np.inf, np.nan, 0.0, -0.0, 2**-25, 1e-45], np.float32),
        ]
    )
    half, brain = emulation.to_16(values)
    with np.errstate(over="ignore"):
        right_half = values.astype(np.float16)
    right_brain = torch.from_numpy(values).to(torch.bfloat16)
    is_nan = np.isnan(values)
    assert np.array_equal(half[~is_nan], right_half.view(np.uint16)[~is_nan])
    assert np.array_equal(brain[~is_nan], right_brain.view(torch.int16).numpy().view(np.uint16)[~is_nan])
    assert np.isnan(half[is_nan].view(np.float16)).all()
    assert torch.from_numpy(brain[is_nan].view(np.int16)).view(torch.bfloat16).isnan().all()
