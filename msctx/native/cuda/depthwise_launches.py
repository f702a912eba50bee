"""Which kernels run for a depthwise convolution, and how, as the native core is told: the problem alone decides."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import Structure, c_char, c_int32, c_int64, c_ubyte, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from msctx.errors import NativeError
from msctx.native.cuda import compiled_kernels, driver
from msctx.native.cuda.compiled_kernels import DTYPES, KERNELS, LAYOUTS, OPS, THREADS, WINDOWS, Module, finish, name, sum_size

MOST_BLOCKS = 2**20
"""Of one launch: each goes on to further results until there are none left."""
WANTED_BLOCKS = 4096
"""With so many a GPU of today is full: wgrad cuts its sums into no more chunks than that takes."""
LEAST_POSITIONS = 8
"""Of one chunk for each thread, or it costs more than it saves."""
MOST_ADDITIONS = 320
"""Of one thread in one chunk, or rounding loses more than `performance` allows in float32."""
MOST_AT_ONCE = 64
"""Terms of sums that are added in several steps: ``most_at_once`` of depthwise.cuh."""


class Parameters(ctypes.Structure):
    """``DepthwiseProblem`` of kernels/cuda/depthwise.cuh: the same fields in the same order."""

    _fields_ = [
        *((field, ctypes.c_int64) for field in ("n", "c", "multiplier")),
        *((field, ctypes.c_int64 * 2) for field in ("extent", "out", "window", "stride", "pad", "dilation")),
        *((field, ctypes.c_int64) for field in ("chunks", "chunk")),
    ]


@dataclass(frozen=True, slots=True)
class DepthwiseProblem:
    """x [n][c][extent], w [c * multiplier][1][window], y [n][c * multiplier][out]; pairs are (height, width), 1-D has height 1.

    *dtype* is torch's name of it. In *layout* ``channels_last`` x and y lie as [n][height][width][channel]; w never does.
    """

    dtype: str
    layout: str
    n: int
    c: int
    multiplier: int
    extent: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def out(self) -> tuple[int, int]:
        def along(axis: int) -> int:
            reach = self.dilation[axis] * (self.window[axis] - 1) + 1
            return (self.extent[axis] + 2 * self.pad[axis] - reach) // self.stride[axis] + 1

        return along(0), along(1)

    @property
    def k(self) -> int:
        return self.c * self.multiplier

    @property
    def x_size(self) -> int:
        return self.n * self.c * self.extent[0] * self.extent[1]

    @property
    def w_size(self) -> int:
        return self.k * self.window[0] * self.window[1]


@dataclass(frozen=True, slots=True)
class Launch:
    """*kernel* on *grid* blocks; its arguments are the tensors of these names (x, w, y, workspace), then *parameters* by value."""

    kernel: str
    grid: int
    tensors: tuple[str, ...]
    parameters: Parameters


def own_window(problem: DepthwiseProblem) -> tuple[int, int]:
    """Window and stride of the kernel that is made for this problem, or (0, 0): the general one computes it."""
    window, stride = (problem.window[0], problem.stride[0])
    is_square = problem.window == (window, window) and problem.stride == (stride, stride) and problem.dilation == (1, 1)
    is_made = is_square and problem.dtype != "float64" and (window, stride) in WINDOWS
    return (window, stride) if is_made else (0, 0)


def rows_of(op: str, window: int) -> int:
    """Results below each other that a thread computes: ``rows`` of the sources."""
    if not window:
        return 1
    return 2 if op == "dgrad" and window == 7 else 4


def _channels(problem: DepthwiseProblem) -> int:
    """Channels that a block of wgrad's threads works on at once."""
    return 1 if problem.layout == "nchw" else 32


def _across(problem: DepthwiseProblem, window: int) -> int:
    """Blocks that wgrad needs for one chunk."""
    groups = 1 if window else _up(problem.window[0] * problem.window[1], 8)
    return _up(problem.k, _channels(problem)) * groups


def chunks(problem: DepthwiseProblem, window: int) -> tuple[int, int]:
    """Into how many chunks wgrad's sums are cut, and how many positions each has."""
    lanes, rows = THREADS // _channels(problem), rows_of("wgrad", window)
    positions = problem.n * _up(problem.out[0], rows) * problem.out[1]
    wanted = _up(WANTED_BLOCKS, max(1, _across(problem, window)))
    count = max(min(wanted, _up(positions, LEAST_POSITIONS * lanes)), _up(positions, MOST_ADDITIONS // rows * lanes))
    each = _up(positions, count) if count else 0
    return (_up(positions, each) if each else 0), each


def workspace(problem: DepthwiseProblem, op: str) -> int:
    """Bytes beside the tensors."""
    window, _ = own_window(problem)
    return chunks(problem, window)[0] * problem.w_size * sum_size(problem.dtype) if op == "wgrad" else 0


def additions(problem: DepthwiseProblem, op: str) -> int:
    """The longest chain of additions, each of which rounds, that a result comes from."""
    taps = problem.window[0] * problem.window[1]
    if op != "wgrad":
        chain = taps if taps <= MOST_AT_ONCE else sum(problem.window)
        return chain * (problem.multiplier if op == "dgrad" else 1)
    window, _ = own_window(problem)
    count, each = chunks(problem, window)
    lanes, sums = THREADS // _channels(problem), _up(count, MOST_AT_ONCE)
    in_steps = min(count, MOST_AT_ONCE) + min(sums, MOST_AT_ONCE) + _up(sums, MOST_AT_ONCE)
    return _up(each, lanes) * rows_of("wgrad", window) + (lanes - 1).bit_length() + in_steps


def launches(problem: DepthwiseProblem, op: str) -> Sequence[Launch]:
    """What computes y (fprop), the gradient of x (dgrad) or of w (wgrad), in this order on one stream; nothing for no results."""
    window, stride = own_window(problem)
    main, rows = name(op, problem.dtype, problem.layout, window, stride), rows_of(op, window)
    parameters = _parameters(problem, *(chunks(problem, window) if op == "wgrad" else (0, 0)))
    if op == "wgrad":
        grid = min(parameters.chunks * _across(problem, window), MOST_BLOCKS)
        finishing = Launch(finish(problem.dtype), _grid(problem.w_size), ("workspace", "w"), parameters)
        found = [Launch(main, grid, ("x", "y", "workspace"), parameters), finishing]
    elif op == "fprop":
        work = problem.n * problem.k * _up(problem.out[0], rows) * problem.out[1]
        found = [Launch(main, _grid(work), ("x", "w", "y"), parameters)]
    else:  # blocks of results begin where the padded image's index is a multiple of the stride
        height, width = (problem.extent[axis] + (problem.pad[axis] % stride if window else 0) for axis in range(2))
        work = problem.n * problem.c * _up(height, rows) * _up(width, stride or 1) if problem.x_size else 0
        found = [Launch(main, _grid(work), ("y", "w", "x"), parameters)]
    return [launch for launch in found if launch.grid]


def _parameters(problem: DepthwiseProblem, count: int, each: int) -> Parameters:
    pair = ctypes.c_int64 * 2
    pairs = (problem.extent, problem.out, problem.window, problem.stride, problem.pad, problem.dilation)
    return Parameters(problem.n, problem.c, problem.multiplier, *(pair(*values) for values in pairs), count, each)


def _grid(work: int) -> int:
    return min(_up(work, THREADS), MOST_BLOCKS)


def _up(a: int, b: int) -> int:
    return -(-a // b)


PLACES = ("x", "w", "y", "workspace")
"""How the core numbers tensors."""


class CConvProblem(Structure):
    """``ConvProblem`` of kernels/include/msctx/interface.h."""

    _fields_ = [
        ("dims", c_int32),
        ("dtype", c_int32),
        *((name, c_int64) for name in ("n", "c", "k", "groups")),
        *((name, c_int64 * 3) for name in ("extent", "out", "window", "stride", "pad", "dilation")),
    ]


class CudaLaunch(Structure):
    """``CudaLaunch`` of kernels/glue/cuda_depthwise.h."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint32),
        ("threads", c_uint32),
        ("count", c_int32),
        ("tensor", c_int32 * 4),
        ("bytes", c_int32),
        ("parameters", c_ubyte * 256),
    ]


class CudaPlan(Structure):
    """``CudaPlan`` of kernels/glue/cuda_depthwise.h."""

    _fields_ = [
        ("workspace", c_int64),
        ("additions", c_int64),
        ("launches", c_int32),
        ("launch", CudaLaunch * 2),
        ("obstacle", c_char * 512),
    ]


_lock = threading.Lock()
_loaded: dict[tuple[int, Module], driver.Kernels] = {}
"""By context, of which there is one for each GPU."""


def plan(requested: int, op: int, channels_last: int, load: int, found: int) -> int:
    """Called by the core in the thread of the convolution, on its device, with the places of a problem and of what to fill in.

    0: there is an ``obstacle``, which stays; -1: there is one this time.
    """
    into = CudaPlan.from_address(found)
    try:
        fill(into, problem_of(CConvProblem.from_address(requested), bool(channels_last)), OPS[op], bool(load))
    except NativeError as error:
        obstacle, code = str(error), 0
    except (OSError, MemoryError) as error:  # no room on the disk, for instance
        obstacle, code = repr(error), -1
    else:
        return 1
    into.obstacle = obstacle.encode(errors="replace")[:511].decode(errors="ignore").encode()
    return code


def problem_of(requested: CConvProblem, channels_last: bool) -> DepthwiseProblem:
    """A depthwise problem of the core's; 1-D is 2-D of height 1."""
    pairs: dict[str, Any] = {
        name: tuple(getattr(requested, name)[1:]) for name in ("extent", "window", "stride", "pad", "dilation")
    }
    return DepthwiseProblem(
        list(DTYPES)[requested.dtype],
        LAYOUTS[channels_last],
        requested.n,
        requested.c,
        requested.k // requested.c,
        **pairs,
    )


def fill(found: CudaPlan, problem: DepthwiseProblem, op: str, load: bool) -> None:
    """Write what runs into *found*; with *load* its kernels are in the context that is current.

    Raises:
        NativeError: they cannot be compiled or loaded.
    """
    found.workspace = workspace(problem, op)
    found.additions = additions(problem, op)
    planned = launches(problem, op)
    found.launches = len(planned)
    if load:
        with driver.relaxed():
            for slot, launch in zip(found.launch, planned, strict=False):
                slot.function = kernels(KERNELS[launch.kernel]).function(launch.kernel)
    for slot, launch in zip(found.launch, planned, strict=False):
        slot.grid, slot.threads, slot.count = launch.grid, THREADS, len(launch.tensors)
        slot.tensor = (c_int32 * 4)(*(PLACES.index(name) for name in launch.tensors))
        slot.bytes = ctypes.sizeof(Parameters)
        ctypes.memmove(slot.parameters, ctypes.byref(launch.parameters), slot.bytes)


def kernels(module: Module) -> driver.Kernels:
    """A module's kernels in the context that is current; compiled, if they are not cached, and loaded the first time.

    Raises:
        NativeError: there is no compiler, or the driver does not take what it made.
    """
    key = (driver.context(), module)
    with _lock:
        if key not in _loaded:
            _loaded[key] = driver.Kernels(compiled_kernels.cubin(module, driver.arch()))
        return _loaded[key]
