// The gradient of w from x and that of y, in two passes and without atomics. Positions (blocks of `rows` results below each other, over
// all images) are cut into chunks, as the problem alone determines. The first pass sums each chunk for each channel: a thread every `lanes`-th
// position of it, then the threads in a tree. The second adds up the chunks, some at a time. So the bits are the same in every run.

#include "depthwise.cuh"

namespace msctx {

constexpr int threads = 128;
constexpr int at_once = 8;  // taps in the tree; and those of one block where the window is known only when it runs

// Threads side by side have positions of one channel, or channels of one position where those lie side by side.
template <Layout layout>
constexpr int channels_of_block = layout == nchw ? 1 : 32;

// A position, and the step from one of a thread to the next, without a division.
struct Position {
  int64 n, row, column;
  __device__ __forceinline__ Position(int64 index, int64 rows, int64 columns)
      : n(index / columns / rows), row(index / columns % rows), column(index % columns) {}
  __device__ __forceinline__ void advance(const Position& by, int64 rows, int64 columns) {
    column += by.column;
    const bool next_row = column >= columns;
    if (next_row) column -= columns;
    row += by.row + next_row;
    const bool next_image = row >= rows;
    if (next_image) row -= rows;
    n += by.n + next_image;
  }
};

// Of each channel of the block the sum over its threads, for `taps` taps from `first` on, to partial[channel][tap].
template <class Sum, int channels, int count>
__device__ __forceinline__ void sum_threads(const Sum (&sums)[count], Sum* partial, bool exists, int64 first, int64 taps) {
  __shared__ Sum shared[at_once][threads];
  const int thread = threadIdx.x;
#pragma unroll
  for (int begin = 0; begin < count; begin += at_once) {
    __syncthreads();  // the sums before have been read
#pragma unroll
    for (int j = 0; j < at_once; j++)
      if (begin + j < count) shared[j][thread] = sums[begin + j];
    for (int half = threads / 2; half >= channels; half /= 2) {
      __syncthreads();
      if (thread < half) {
#pragma unroll
        for (int j = 0; j < at_once; j++)
          if (begin + j < count) shared[j][thread] += shared[j][thread + half];
      }
    }
    if (thread < channels && exists) {
#pragma unroll
      for (int j = 0; j < at_once; j++)
        if (begin + j < count && first + begin + j < taps) partial[first + begin + j] = shared[j][thread];
    }
  }
}

template <class T, Layout layout, int window, int stride>
struct Wgrad {
  static constexpr int rows = 4, reach = (rows - 1) * stride + window;
  using Sum = typename T::Sum;

  static __device__ __forceinline__ int64 groups(const DepthwiseProblem&) { return 1; }

  // The sums of one thread over every lanes-th position of a chunk.
  static __device__ __forceinline__ void add(
      const T* x, const T* y, const DepthwiseProblem& p, int64 channel, int64, int64 begin, int64 end, int lanes,
      Sum (&sums)[window * window]) {
    const int64 k = p.c * p.multiplier, blocks = divide_up(p.out[0], rows);
    const Position step(lanes, blocks, p.out[1]);
    Position at(begin, blocks, p.out[1]);
    for (int64 i = begin; i < end; i += lanes, at.advance(step, blocks, p.out[1])) {
      const Plane<layout> from(at.n, channel / p.multiplier, p.c, p.in), with(at.n, channel, k, p.out);
      const int64 first = at.row * rows, top = first * stride - p.pad[0], left = at.column * stride - p.pad[1];
      Sum gradients[rows];
#pragma unroll
      for (int r = 0; r < rows; r++) gradients[r] = or_zero(y, with, first + r, at.column);
#pragma unroll
      for (int h = 0; h < reach; h++) {
        Sum values[window];
#pragma unroll
        for (int b = 0; b < window; b++) values[b] = or_zero(x, from, top + h, left + b);
#pragma unroll
        for (int r = 0; r < rows; r++) {
          const int a = h - r * stride;
          if (a < 0 || a >= window || first + r >= p.out[0]) continue;  // a row that is not there must not meet an Inf of x
#pragma unroll
          for (int b = 0; b < window; b++) sums[a * window + b] = multiply_add(values[b], gradients[r], sums[a * window + b]);
        }
      }
    }
  }
};

// Any window, stride and dilation: a block of threads has `at_once` taps, and a position is a single result.
template <class T, Layout layout>
struct Wgrad<T, layout, 0, 0> {
  using Sum = typename T::Sum;

  static __device__ __forceinline__ int64 groups(const DepthwiseProblem& p) { return divide_up(p.window[0] * p.window[1], at_once); }

  static __device__ __forceinline__ void add(
      const T* x, const T* y, const DepthwiseProblem& p, int64 channel, int64 first, int64 begin, int64 end, int lanes,
      Sum (&sums)[at_once]) {
    const int64 k = p.c * p.multiplier, taps = p.window[0] * p.window[1];
    int64 down[at_once], right[at_once];
#pragma unroll
    for (int j = 0; j < at_once; j++) {
      const int64 tap = smaller(first + j, taps - 1);
      down[j] = tap / p.window[1] * p.dilation[0] - p.pad[0];
      right[j] = tap % p.window[1] * p.dilation[1] - p.pad[1];
    }
    const Position step(lanes, p.out[0], p.out[1]);
    Position at(begin, p.out[0], p.out[1]);
    for (int64 i = begin; i < end; i += lanes, at.advance(step, p.out[0], p.out[1])) {
      const Plane<layout> from(at.n, channel / p.multiplier, p.c, p.in), with(at.n, channel, k, p.out);
      const Sum gradient = y[with.at(at.row, at.column)].get();
      const int64 top = at.row * p.stride[0], left = at.column * p.stride[1];
#pragma unroll
      for (int j = 0; j < at_once; j++) sums[j] = multiply_add(or_zero(x, from, top + down[j], left + right[j]), gradient, sums[j]);
    }
  }
};

// First pass: to partial[chunk][channel][tap].
template <class T, Layout layout, int window, int stride>
__device__ __forceinline__ void sum_chunks(const T* x, const T* y, typename T::Sum* partial, const DepthwiseProblem& p) {
  using Product = Wgrad<T, layout, window, stride>;
  constexpr int rows = window ? 4 : 1, count = window ? window * window : at_once;
  constexpr int channels = channels_of_block<layout>, lanes = threads / channels;
  const int64 k = p.c * p.multiplier, taps = p.window[0] * p.window[1], groups = Product::groups(p), across = divide_up(k, channels);
  const int64 positions = p.n * divide_up(p.out[0], rows) * p.out[1];
  const int lane = threadIdx.x / channels;
  for (int64 i = blockIdx.x; i < p.chunks * across * groups; i += gridDim.x) {
    const int64 group = i % groups, chunk = i / groups / across;
    const int64 channel = i / groups % across * channels + threadIdx.x % channels;
    typename T::Sum sums[count];
#pragma unroll
    for (int j = 0; j < count; j++) sums[j] = 0;
    if (channel < k)
      Product::add(
          x, y, p, channel, group * at_once, chunk * p.chunk + lane, smaller((chunk + 1) * p.chunk, positions), lanes, sums);
    sum_threads<typename T::Sum, channels, count>(
        sums, partial + (chunk * k + channel) * taps, channel < k, group * at_once, taps);
  }
}

// Second pass: a thread for each weight, which adds some chunks, then some of those sums, and then these.
template <class T>
__device__ __forceinline__ void add_chunks(const typename T::Sum* partial, T* w, const DepthwiseProblem& p) {
  const int64 size = p.c * p.multiplier * p.window[0] * p.window[1];
  for (int64 i = int64(blockIdx.x) * threads + threadIdx.x; i < size; i += int64(gridDim.x) * threads) {
    typename T::Sum sum = 0;
    for (int64 first = 0; first < p.chunks; first += most_at_once * most_at_once) {
      typename T::Sum many = 0;
      for (int64 begin = first; begin < smaller(first + most_at_once * most_at_once, p.chunks); begin += most_at_once) {
        typename T::Sum some = 0;
        for (int64 chunk = begin; chunk < smaller(begin + most_at_once, p.chunks); chunk++) some += partial[chunk * size + i];
        many += some;
      }
      sum += many;
    }
    w[i].set(sum);
  }
}

}  // namespace msctx

#define KERNEL(name, layout, window, stride)                                                                                         \
  extern "C" __global__ void __launch_bounds__(msctx::threads)                                                                       \
      name(const msctx::ELEMENT* x, const msctx::ELEMENT* y, msctx::ELEMENT::Sum* partial, const msctx::DepthwiseProblem p) {        \
    msctx::sum_chunks<msctx::ELEMENT, msctx::layout, window, stride>(x, y, partial, p);                                              \
  }
MSCTX_KERNELS(wgrad, KERNEL)

#define MSCTX_FINISH_(element) depthwise_wgrad_finish_##element
#define MSCTX_FINISH(element) MSCTX_FINISH_(element)
extern "C" __global__ void __launch_bounds__(msctx::threads)
    MSCTX_FINISH(ELEMENT)(const msctx::ELEMENT::Sum* partial, msctx::ELEMENT* w, const msctx::DepthwiseProblem p) {
  msctx::add_chunks<msctx::ELEMENT>(partial, w, p);
}
