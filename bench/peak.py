"""The processor's rate of multiply-adds at the moment of a contest: a loop of independent chains in registers, on one thread."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from typing import Any

from msctx.native.build import find_compiler

CHAINS = 12
"""More than an FMA's cycles times those begun in a cycle; with both factors they fit into 16 registers."""
TURNS = 1 << 18
"""Some 0.5 ms. All sums are whole numbers that float32 has."""
SOURCE = """
typedef float Vector __attribute__((vector_size(__BIGGEST_ALIGNMENT__)));
extern "C" double loop(long turns, float factor, float addend) {
    Vector sums[CHAINS], total = {};
    for (int i = 0; i < CHAINS; ++i) sums[i] = Vector{} + float(i);  // equal chains would be merged
    for (long turn = 0; turn < turns; ++turn)
        for (Vector& sum : sums) sum = sum * factor + addend;
    for (Vector sum : sums) total += sum;
    double found = 0;
    for (unsigned i = 0; i < sizeof(Vector) / sizeof(float); ++i) found += total[i];
    return found;
}
"""


@cache
def loop() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        how = ("-x", "c++", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", f"-DCHAINS={CHAINS}")
        command = [*find_compiler().command, *how, "-o", f"{folder}/peak.so", "-"]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        found = ctypes.CDLL(f"{folder}/peak.so").loop
    found.restype, found.argtypes = ctypes.c_double, [ctypes.c_long, ctypes.c_float, ctypes.c_float]
    return found


def multiply_adds(turns: int = TURNS) -> int:
    """Compute so many. If the compiler had left out or merged any, the lanes of a vector would not add up."""
    lanes = loop()(turns, 1.0, 1.0) / (CHAINS * turns + sum(range(CHAINS)))
    assert lanes in (4, 8, 16), lanes
    return int(lanes) * CHAINS * turns
