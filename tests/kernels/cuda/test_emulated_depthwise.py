"""The depthwise kernels of CUDA, emulated: every instantiation against float64, on both layouts, in all dtypes, to the bit."""

import ctypes
import itertools
import mmap
import re

import numpy as np
import pytest
import torch
from depthwise_cases import BOUNDS, CASES, DTYPES, LAYOUTS, ROUNDING, TARGET, bits, error, problem, run, tensors, truth
from emulated import Emulation, library, modules

from msctx.native.cuda import depthwise
from msctx.native.cuda.depthwise import OPS, DepthwiseProblem, Parameters, launches, own_window, workspace
from msctx.native.cuda.manifest import KERNELS, WINDOWS

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_manifest_lists_exactly_the_kernels_there_are(emulation: Emulation) -> None:
    names = set(re.findall(rb"\0(depthwise_[a-z0-9_]+)(?=\0)", library(modules()).read_bytes()))
    assert {name.decode() for name in names} == set(KERNELS)
    assert all(emulation.has(name) for name in KERNELS)


def test_host_and_kernels_mean_the_same_parameters(emulation: Emulation) -> None:
    assert emulation.parameters_size == ctypes.sizeof(Parameters)


def test_the_cases_meet_every_kernel() -> None:
    met = {
        launch.kernel
        for case in CASES
        for dtype in DTYPES
        for layout in LAYOUTS
        for op in OPS
        for general in (False, True)
        for launch in launches(problem(case, dtype, layout), op, general)
    }
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
            stated = (2**-53 if dtype == "float64" else 2**-24) * depthwise.additions(p, op, general) + ROUNDING[dtype]
            assert error(forwards, right[op]) <= min(BOUNDS[dtype], stated), op
            assert bits(forwards) == bits(backwards), op
        if op != "wgrad":  # those of a window add in the order of the general one
            assert len({bits(each) for pair in found for each in pair}) == 1, op


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_blocks_compute_the_same_bits(emulation: Emulation, layout: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid has a limit, and blocks go on behind it: what a large problem needs, tried on a small one."""
    p = problem("several chunks", "float32", layout)
    given = tensors(p)
    for general in (False, True):
        many = run(emulation, p, op, given, general=general)
        with monkeypatch.context() as patch:
            patch.setattr(depthwise, "MOST_BLOCKS", 2)
            assert launches(p, op, general)[0].grid == 2
            assert bits(run(emulation, p, op, given, general=general)) == bits(many)


def test_sums_are_cut_by_the_problem_into_chunks_that_hold_each_position_once() -> None:
    for case in CASES:
        for layout in LAYOUTS:
            p = problem(case, "float32", layout)
            for window in (own_window(p)[0], 0):
                positions = p.n * -(-p.out[0] // depthwise.rows_of("wgrad", window)) * p.out[1]
                count, each = depthwise.chunks(p, window)
                assert count * each >= positions > (count - 1) * each
    p = problem("several chunks", "float32", "nchw")
    assert depthwise.chunks(p, 3)[0] > 1
    assert workspace(p, "wgrad") == depthwise.chunks(p, 3)[0] * p.w_size * 4


def test_thousands_of_chunks_are_added_in_steps(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "MOST_ADDITIONS", 4)
    p = DepthwiseProblem("float32", "channels_last", 1, 1, 1, (200, 400), (3, 3), pad=(1, 1))
    assert depthwise.chunks(p, 3)[0] == 5000
    given = tensors(p)
    stated = 2**-24 * depthwise.additions(p, "wgrad")
    assert error(run(emulation, p, "wgrad", given), truth(p, given)["wgrad"]) <= stated < 2e-5


def test_no_sum_is_so_long_that_performance_would_leave_it_out() -> None:
    """Of float32, for which it allows 3e-5."""
    for layout in LAYOUTS:
        for n, c, extent, window in ((256, 1024, 56, 7), (512, 32, 224, 3), (1, 3, 2048, 31), (64, 512, 28, 5)):
            p = DepthwiseProblem("float32", layout, n, c, 1, (extent, extent), (window, window), pad=(window // 2, window // 2))
            for op in OPS:
                assert 2**-24 * depthwise.additions(p, op) <= 3e-5, (layout, n, c, extent, window, op)
            assert workspace(p, "wgrad") <= 4 * p.y_size


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


def test_every_float16_and_bfloat16_passes_through(emulation: Emulation) -> None:
    """All 65536 values of each, multiplied by one: what is read is what is stored (-0 becomes 0 in the sum)."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in ("float16", "bfloat16"):
        p = DepthwiseProblem(dtype, "nchw", 1, 1, 1, (256, 256), (1, 1))
        x = patterns.view(getattr(torch, dtype)).view(1, 1, 256, 256)
        found = run(emulation, p, "fprop", {"x": x, "w": torch.ones(1, 1, 1, 1, dtype=x.dtype), "y": torch.zeros_like(x)})
        assert torch.equal(found.isnan(), x.isnan())
        assert torch.equal(found[~x.isnan()], x[~x.isnan()])


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_indices_beyond_32_bits(emulation: Emulation, layout: str) -> None:
    """Tensors of more than 2**31 elements, of which the system keeps the few pages that are touched."""
    width, step = 2**31 + 4097, 2**24
    p = DepthwiseProblem("bfloat16", layout, 1, 1, 1, (1, width), (1, 1), stride=(1, step))
    with mmap.mmap(-1, 2 * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) as memory:  # MAP_NORESERVE
        large = np.frombuffer(memory, np.uint16)
        last = (p.out[1] - 1) * step
        assert last >= 2**31
        large[last] = 0x4040  # 3
        y, w = np.full(p.out[1], 0x7FC0, np.uint16), np.array([0x4000], np.uint16)  # 2
        emulation.run(p, "fprop", {"x": large, "w": w, "y": y})
        assert y[-1] == 0x40C0  # 6
        assert not y[:-1].any()
        y[...] = 0x3F80  # 1
        emulation.run(p, "wgrad", {"x": large, "w": w, "y": y})
        assert w[0] == 0x4040
        # the same memory as a gradient of y: nearly all of it is of padding
        inner = DepthwiseProblem("bfloat16", layout, 1, 1, 1, (1, 3), (1, 1), pad=(0, width // 2 - 1))
        assert inner.out[1] == width
        large[last] = 0
        large[width // 2 + 1] = 0x4040
        x, w[0] = np.full(3, 0x7FC0, np.uint16), 0x4000
        emulation.run(inner, "dgrad", {"x": x, "w": w, "y": large})
        assert x.tolist() == [0, 0, 0x40C0]
        del large


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_of_its_own_is_for_its_very_shape(window: tuple[int, int]) -> None:
    size, stride = window
    same = {"window": (size, size), "stride": (stride, stride)}
    made = {"layout": "nchw", "n": 1, "c": 1, "multiplier": 1, "extent": (30, 30)}
    assert own_window(DepthwiseProblem("float16", **made, **same)) == window  # type: ignore[arg-type]
    for other in ({"dilation": (1, 2)}, {"stride": (stride, stride + 1)}, {"window": (size, size - 1)}):
        assert own_window(DepthwiseProblem("float16", **{**made, **same, **other})) == (0, 0)  # type: ignore[arg-type]
    assert own_window(DepthwiseProblem("float64", **made, **same)) == (0, 0)  # type: ignore[arg-type]
