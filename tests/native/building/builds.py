"""What the tests of the build share: small kernels that are built without torch, and a look at what is left."""

import ctypes

from msctx.native import build as native

ISAS = len(native.VECTORS)
"""The instruction sets that the small kernels are compiled for: they have none for a matrix unit."""


def made():
    """What is built in most tests: the library of the kernels, which needs no torch."""
    return native.library(native.kernels_spec())


def call(path, name="msctx_one"):
    return ctypes.CDLL(str(path))[name]()


def edit(sources, name, old, new):
    file = sources / name
    file.write_text(file.read_text().replace(old, new))


def leftovers(cache):
    """What no build leaves: parts of files."""
    return [*cache.rglob("*.part")]


GLUE = """
#include <ATen/Parallel.h>
#include <atomic>
#include "glue/parts.h"
extern "C" __attribute__((visibility("default"))) int threads_used() {
  std::atomic<int> parts{0};
  at::parallel_for(0, 1000, 1, [&](int64_t, int64_t) { parts++; });
  return parts;
}
"""
