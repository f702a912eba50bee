// The gradient of x from that of y, and w. A result is the sum over the channels of y that x's has, and of those over the rows and
// columns of y that it reached, in the order of memory; nothing lies around y, so what is not there is left out (and no zero is
// multiplied by an Inf). Every instantiation adds in this order: their bits are the same.

#include "depthwise.cuh"

namespace msctx {

constexpr int threads = 128;
// Blocks that a processor is to have room for, which sets how many registers there are. Left alone, ptxas spills some bytes of one kernel
// or another to make room for one more.
template <int window>
constexpr int least_blocks = window < 5 ? 6 : 4;

// Each thread computes `rows` × `stride` results. Blocks begin where the padded image's index is a multiple of the stride: so it is
// known when this is compiled which taps lead from which element of y to which result.
template <class T, Layout layout, int window, int stride>
struct Dgrad {
  static constexpr int rows = window < 7 ? 4 : 2;
  static constexpr int before = (window - 1) / stride;  // how many rows of y before the block's own reach it
  static_assert(rows % stride == 0, "the next block begins at the same phase");
  using Sum = typename T::Sum;

  static __device__ __forceinline__ void run(const T* y, const T* w, T* x, const DepthwiseProblem& p) {
    const int64 k = p.c * p.multiplier;
    const int64 blocks = divide_up(p.in[0] + p.pad[0] % stride, rows), across = divide_up(p.in[1] + p.pad[1] % stride, stride);
    const int64 all = p.n * p.c * blocks * across;
    for (int64 i = int64(blockIdx.x) * threads + threadIdx.x; i < all; i += int64(gridDim.x) * threads) {
      const Place place = Place::of<layout>(i, p.c, blocks, across);
      const Plane<layout> to(place.n, place.channel, p.c, p.in);
      const int64 row = p.pad[0] / stride + place.row * (rows / stride), column = p.pad[1] / stride + place.column;  // of y
      Sum sums[rows][stride];
#pragma unroll
      for (int r = 0; r < rows; r++)
#pragma unroll
        for (int s = 0; s < stride; s++) sums[r][s] = 0;
      for (int64 m = 0; m < p.multiplier; m++) {
        const int64 channel = place.channel * p.multiplier + m;
        const Plane<layout> from(place.n, channel, k, p.out);
        Sum weights[window][window];
#pragma unroll
        for (int a = 0; a < window; a++)
#pragma unroll
          for (int b = 0; b < window; b++) weights[a][b] = w[(channel * window + a) * window + b].get();
#pragma unroll
        for (int h = -before; h <= (rows - 1) / stride; h++) {
          Sum values[before + 1];
          bool there[before + 1];
#pragma unroll
          for (int v = 0; v <= before; v++) {
            there[v] = from.has(row + h, column + v - before);
            values[v] = there[v] ? y[from.at(row + h, column + v - before)].get() : Sum(0);
          }
#pragma unroll
          for (int r = 0; r < rows; r++) {
            const int a = r - h * stride;
            if (a < 0 || a >= window) continue;
#pragma unroll
            for (int v = 0; v <= before; v++)
#pragma unroll
              for (int s = 0; s < stride; s++) {
                const int b = s + (before - v) * stride;
                if (b < window && there[v]) sums[r][s] = multiply_add(values[v], weights[a][b], sums[r][s]);
              }
          }
        }
      }
      const int64 top = row * stride - p.pad[0], left = column * stride - p.pad[1];
#pragma unroll
      for (int r = 0; r < rows; r++)
#pragma unroll
        for (int s = 0; s < stride; s++)
          if (to.has(top + r, left + s)) x[to.at(top + r, left + s)].set(sums[r][s]);
    }
  }
};

// Along one axis the taps through which y reaches element `at`: `first`, `first - step` … to 0, and the elements of y at their other
// end: `row`, `row + advance` …
struct Taps {
  int64 first, step, row, advance;
  __device__ __forceinline__ Taps(int64 at, int64 window, int64 stride, int64 pad, int64 dilation) : first(-1), step(1), row(0), advance(0) {
    while (step < window && step * dilation % stride != 0) step++;  // with no other tap of its phase: any step past the window
    advance = step * dilation / stride;
    for (int64 tap = window - 1; tap >= 0 && tap >= window - step; tap--) {
      const int64 distance = at + pad - tap * dilation;
      if (distance % stride != 0) continue;
      first = tap;
      row = distance / stride;
      return;
    }
  }
};

// Any window, stride and dilation: a result for each thread.
template <class T, Layout layout>
struct Dgrad<T, layout, 0, 0> {
  static __device__ __forceinline__ void run(const T* y, const T* w, T* x, const DepthwiseProblem& p) {
    const int64 k = p.c * p.multiplier, all = p.n * p.c * p.in[0] * p.in[1];
    for (int64 i = int64(blockIdx.x) * threads + threadIdx.x; i < all; i += int64(gridDim.x) * threads) {
      const Place place = Place::of<layout>(i, p.c, p.in[0], p.in[1]);
      const Plane<layout> to(place.n, place.channel, p.c, p.in);
      const Taps down(place.row, p.window[0], p.stride[0], p.pad[0], p.dilation[0]);
      const Taps right(place.column, p.window[1], p.stride[1], p.pad[1], p.dilation[1]);
      typename T::Sum sum = 0;
      const RowOfWindow<typename T::Sum> summed(p);
      for (int64 m = 0; m < p.multiplier; m++) {
        const int64 channel = place.channel * p.multiplier + m;
        const Plane<layout> from(place.n, channel, k, p.out);
        const T* weights = w + channel * p.window[0] * p.window[1];
        for (int64 a = down.first, h = down.row; a >= 0; a -= down.step, h += down.advance) {
          typename T::Sum row = summed.begin(sum);
          for (int64 b = right.first, v = right.row; b >= 0; b -= right.step, v += right.advance)
            if (from.has(h, v)) row = multiply_add(y[from.at(h, v)].get(), weights[a * p.window[1] + b].get(), row);
          sum = summed.end(sum, row);
        }
      }
      x[to.at(place.row, place.column)].set(sum);
    }
  }
};

}  // namespace msctx

#define KERNEL(name, layout, window, stride)                                                                                         \
  extern "C" __global__ void __launch_bounds__(msctx::threads, msctx::least_blocks<window>)                                                                       \
      name(const msctx::ELEMENT* y, const msctx::ELEMENT* w, msctx::ELEMENT* x, const msctx::DepthwiseProblem p) {                   \
    msctx::Dgrad<msctx::ELEMENT, msctx::layout, window, stride>::run(y, w, x, p);                                                    \
  }
MSCTX_KERNELS(dgrad, KERNEL)
