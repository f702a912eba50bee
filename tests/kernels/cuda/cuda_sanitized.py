"""Runs the emulated kernels of a library on small problems: for test_emulated_depthwise.py, under sanitizers."""

import itertools
import sys
from pathlib import Path

import numpy as np
from emulated import Emulation

from msctx.native.cuda.compiled_kernels import OPS
from msctx.native.cuda.depthwise_launches import DepthwiseProblem

SHAPES = (
    (2, 3, 2, (7, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 2, 1, (9, 5), (3, 3), (2, 2), (2, 1), (1, 1)),
    (1, 2, 1, (6, 7), (5, 5), (1, 1), (2, 3), (1, 1)),
    (2, 33, 1, (8, 9), (5, 5), (2, 2), (3, 0), (1, 1)),
    (1, 2, 2, (7, 8), (7, 7), (1, 1), (0, 3), (1, 1)),
    (1, 3, 1, (9, 10), (2, 3), (3, 2), (5, 1), (2, 3)),
    (2, 1, 1, (1, 600), (1, 9), (1, 1), (0, 4), (1, 1)),
    (3, 2, 2, (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    (0, 2, 1, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 0, 1, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 2, 1, (0, 4), (3, 3), (1, 1), (2, 2), (1, 1)),
)


def main(path: str) -> None:
    library, rng, count = Emulation(Path(path)), np.random.default_rng(0), 0
    for kind in (np.float32, np.float16):
        for shape, layout, op, general in itertools.product(SHAPES, ("nchw", "channels_last"), OPS, (False, True)):
            p = DepthwiseProblem(np.dtype(kind).name, layout, *shape)
            sizes = {"x": p.x_size, "w": p.w_size, "y": p.n * p.k * p.out[0] * p.out[1]}
            library.run(
                p, op, {name: rng.standard_normal(size, np.float32).astype(kind) for name, size in sizes.items()}, general
            )
            count += 1
    print(f"{count} convolutions")


if __name__ == "__main__":
    main(sys.argv[1])
