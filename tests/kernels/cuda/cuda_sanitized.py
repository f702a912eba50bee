"""Holds emulated kernels of one library against those of another, on small problems: for test_emulated_depthwise.py."""

import sys
from pathlib import Path

import numpy as np
from emulated import GARBAGE, Emulation

from msctx.native.cuda.depthwise import OPS, DepthwiseProblem

TARGET = {"fprop": "y", "dgrad": "x", "wgrad": "w"}
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


def main(watched: str, plain: str) -> None:
    libraries = [Emulation(Path(path)) for path in (watched, plain)]
    rng, count = np.random.default_rng(0), 0
    for dtype, kind in {"float32": np.float32, "float16": np.float16}.items():
        for shape in SHAPES:
            for layout in ("nchw", "channels_last"):
                p = DepthwiseProblem(dtype, layout, *shape)
                sizes = {"x": p.x_size, "w": p.w_size, "y": p.n * p.k * p.out[0] * p.out[1]}
                values = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
                given = {name: value.astype(kind) for name, value in values.items()}
                for op in OPS:
                    for general in (False, True):
                        found = []
                        for library in libraries:
                            tensors = {name: value.copy() for name, value in given.items()}
                            tensors[TARGET[op]].view(np.uint8)[...] = GARBAGE
                            library.run(p, op, tensors, general)
                            found.append(tensors[TARGET[op]].tobytes())
                        assert found[0] == found[1], (p, op, general)
                        count += 1
    print(f"{count} convolutions")


if __name__ == "__main__":
    main(*sys.argv[1:])
