"""Runs every row of the library that is named on the command line on small problems: for test_sanitized.py, under sanitizers."""

import sys

import numpy as np
from cases import CASES, OTHER_CASES, case
from checks import distance, largest, stored, takes, truth

from kernels import OPS, PRODUCT, TARGETS, Kernels

SMALL = (
    *(CASES[i] for i in (3, 4, 5, 6, 7, 11, 12, 13, 15)),
    *OTHER_CASES[9:15],
    *(case(1, 30, 13, (1, 19), 1, dtype=dtype) for dtype in ("float32", "float64", "bfloat16")),
    *(case(1, 30, 13, (1, rows), 1) for rows in (1, 3, 8)),
    case(1, 3, 9, (7, 6), 3, padding=1),
    case(2, 5, 3, (6, 9), 5, padding=(1, 2)),
    case(1, 2, 3, (1, 4), 3, padding=1),
    case(1, 20, 18, (6, 5), 3, padding=1),
    case(1, 3, 2, (9, 17), (4, 3), (3, 2), (2, 0), (1, 3)),
    case(1, 3, 4, 5, 3, 2, 1, dtype="float16"),
    case(2, 17, 17, (7, 6), 3, padding=1, groups=17),
    case(1, 3, 6, (5, 9), (4, 3), (2, 3), (3, 1), (1, 2), groups=3),
    case(2, 0, 4, 6, 3, padding=1),
    case(2, 4, 0, 6, 3, padding=1),
    case(2, 3, 4, (2, 5), 3),
)


def main(path: str) -> None:
    kernels = Kernels(path)
    count = 0
    for each in SMALL:
        for row in kernels.rows:
            if row.direction == PRODUCT and row.algorithm.startswith("tiles") and not each.is_product:
                continue  # convolutions have the same code
            for op in {row.op} | (set() if row.op == 2 else {1 - row.op}):
                if kernels.reasons(row, each, op):
                    assert not (takes(row, each) and op == row.op), (row, each)
                    continue
                right = truth(kernels, op, each)
                # a matrix unit in software: what the real one reads, no sanitizer sees
                on_tiles = row.algorithm.startswith("tiles")
                for isa in kernels.emulated if on_tiles else row.isas:
                    for threads in (3,) if on_tiles else (1, 3):
                        result = kernels.run(row, each, stored(each), isa, threads, op)
                        assert distance(result, right) <= kernels.error(row, each, op) * largest(right), (row, each, isa)
                        count += 1
                        if row.reads_channels_last:
                            for keeps in (False, True):
                                again = kernels.run(row, each, stored(each), isa, threads, op, channels_last=True, keeps=keeps)
                                assert again.tobytes() == result.tobytes(), (row, each, isa)
    for op in OPS:  # what is not finite, and is computed again
        x, w, y = (t.copy() for t in stored(SMALL[0]))
        for tensor in (x, w, y):
            tensor.flat[0] = np.inf
        for row in kernels.rows:
            if row.op == op and takes(row, SMALL[0]):
                result = kernels.run(row, SMALL[0], (x, w, y), threads=3)
                assert not np.isfinite(result).all(), row
                assert result.shape == SMALL[0].shapes[TARGETS[op]]
                count += 1
    for size in (0, 1, 7, 63, 64, 65, 1000, (512 << 10) + 13):
        for isa in kernels.isas:
            kernels.fingerprint(np.ones(size, np.uint8), isa, threads=3)
            for dtype, kind in enumerate((np.float32, np.float64, np.float16, np.uint16)):
                kernels.statistics(np.ones(size, kind), dtype, isa, threads=3)
    print(f"{count} convolutions")


if __name__ == "__main__":
    main(sys.argv[1])
