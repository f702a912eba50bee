// y from x and w. Each thread computes `rows` results below each other, for which it reads each value of x once: rows of x come in
// order and are added to all results that they reach. So every result is summed tap by tap, in the order in which w lies in memory,
// by every instantiation: their bits are the same.

#include "depthwise.cuh"

namespace msctx {

constexpr int threads = 128;

template <class T, Layout layout, int window, int stride>
struct Fprop {
  static constexpr int rows = 4, reach = (rows - 1) * stride + window;
  using Sum = typename T::Sum;

  static __device__ __forceinline__ void run(const T* x, const T* w, T* y, const DepthwiseProblem& p) {
    const int64 k = p.c * p.multiplier, blocks = divide_up(p.out[0], rows);
    const int64 all = p.n * k * blocks * p.out[1];
    for (int64 i = int64(blockIdx.x) * threads + threadIdx.x; i < all; i += int64(gridDim.x) * threads) {
      const Place place = Place::of<layout>(i, k, blocks, p.out[1]);
      const Plane<layout> from(place.n, place.channel / p.multiplier, p.c, p.in), to(place.n, place.channel, k, p.out);
      const int64 first = place.row * rows, top = first * stride - p.pad[0], left = place.column * stride - p.pad[1];
      Sum weights[window][window], sums[rows];
#pragma unroll
      for (int a = 0; a < window; a++)
#pragma unroll
        for (int b = 0; b < window; b++) weights[a][b] = w[(place.channel * window + a) * window + b].get();
#pragma unroll
      for (int r = 0; r < rows; r++) sums[r] = 0;
#pragma unroll
      for (int h = 0; h < reach; h++) {
        Sum values[window];
#pragma unroll
        for (int b = 0; b < window; b++) values[b] = or_zero(x, from, top + h, left + b);
#pragma unroll
        for (int r = 0; r < rows; r++) {
          const int a = h - r * stride;
          if (a < 0 || a >= window) continue;
#pragma unroll
          for (int b = 0; b < window; b++) sums[r] = multiply_add(values[b], weights[a][b], sums[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < rows; r++)
        if (first + r < p.out[0]) y[to.at(first + r, place.column)].set(sums[r]);
    }
  }
};

// Any window, stride and dilation: a result for each thread.
template <class T, Layout layout>
struct Fprop<T, layout, 0, 0> {
  static __device__ __forceinline__ void run(const T* x, const T* w, T* y, const DepthwiseProblem& p) {
    const int64 k = p.c * p.multiplier, all = p.n * k * p.out[0] * p.out[1];
    for (int64 i = int64(blockIdx.x) * threads + threadIdx.x; i < all; i += int64(gridDim.x) * threads) {
      const Place place = Place::of<layout>(i, k, p.out[0], p.out[1]);
      const Plane<layout> from(place.n, place.channel / p.multiplier, p.c, p.in), to(place.n, place.channel, k, p.out);
      const int64 top = place.row * p.stride[0] - p.pad[0], left = place.column * p.stride[1] - p.pad[1];
      const T* weights = w + place.channel * p.window[0] * p.window[1];
      typename T::Sum sum = 0;
      const RowOfWindow<typename T::Sum> summed(p);
      for (int64 a = 0; a < p.window[0]; a++) {
        typename T::Sum row = summed.begin(sum);
        for (int64 b = 0; b < p.window[1]; b++)
          row = multiply_add(
              or_zero(x, from, top + a * p.dilation[0], left + b * p.dilation[1]), weights[a * p.window[1] + b].get(), row);
        sum = summed.end(sum, row);
      }
      y[to.at(place.row, place.column)].set(sum);
    }
  }
};

}  // namespace msctx

#define KERNEL(name, layout, window, stride)                                                                                         \
  extern "C" __global__ void __launch_bounds__(msctx::threads)                                                                       \
      name(const msctx::ELEMENT* x, const msctx::ELEMENT* w, msctx::ELEMENT* y, const msctx::DepthwiseProblem p) {                   \
    msctx::Fprop<msctx::ELEMENT, msctx::layout, window, stride>::run(x, w, y, p);                                                    \
  }
MSCTX_KERNELS(fprop, KERNEL)
