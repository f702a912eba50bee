// What CUDA's language has beside C++, so that g++ compiles a kernel as it stands. The threads of a block take turns: each runs to the
// next barrier, or to its end, before another does. emulation.cpp runs them.
#pragma once

#include <cmath>
#include <cstring>

struct Triple {
  unsigned x = 0, y = 0, z = 0;
};
extern Triple threadIdx, blockIdx, blockDim, gridDim;

extern "C" void emulated_barrier();

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time
#define __syncthreads() emulated_barrier()

using std::fma;
using std::fmaf;
using std::memcpy;
