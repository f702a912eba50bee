"""Every kernel of kernels/cuda as data, and which of them run for a depthwise convolution: the problem alone decides."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

ARCHS = ("sm_80", "sm_90a")
"""What kernels are compiled for: A100, and H100 and H200."""
DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
"""torch's names of the dtypes, and those in the sources."""
LAYOUTS = ("nchw", "channels_last")
WINDOWS = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
"""Square windows and strides with kernels of their own; all else, and all of float64, is computed by the general one."""
OPS = ("fprop", "dgrad", "wgrad")
THREADS = 128
"""Of a block of any kernel."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source compiled in one way, to one cubin for each arch."""

    source: str
    macros: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.source, *(f"-D{macro}" for macro in self.macros)])


def name(op: str, dtype: str, layout: str, window: int = 0, stride: int = 0) -> str:
    """The symbol of an instantiation; *dtype* as torch names it, *window* 0 for the general one."""
    end = f"{window}x{window}_s{stride}" if window else "any"
    return f"depthwise_{op}_{DTYPES[dtype]}_{layout}_{end}"


def finish(dtype: str) -> str:
    """The symbol of wgrad's second pass."""
    return f"depthwise_wgrad_finish_{DTYPES[dtype]}"


def sum_size(dtype: str) -> int:
    """Bytes of a sum: float64 is summed in float64, all else in float32."""
    return 8 if dtype == "float64" else 4


def _kernels() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for op, (dtype, element) in product(OPS, DTYPES.items()):
        general = ("GENERAL_ONLY",) if dtype == "float64" else ()
        module = Module(f"depthwise_{op}.cu", (f"ELEMENT={element}", *general))
        windows = [(0, 0), *(() if general else WINDOWS)]
        found |= {name(op, dtype, layout, *window): module for layout in LAYOUTS for window in windows}
        if op == "wgrad":
            found[finish(dtype)] = module
    return found


KERNELS = _kernels()
"""The symbol of each ``extern "C"`` kernel → its module."""
MODULES = tuple(dict.fromkeys(KERNELS.values()))


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
