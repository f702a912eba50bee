// Depthwise convolutions on a GPU: what a problem is, and where its elements lie. One input channel for each group; y has
// `multiplier` channels for each of x. 1-D is 2-D of height 1. Device code only: no torch, no header of the host, no STL.
#pragma once

#include "elements.cuh"

namespace msctx {

using int64 = long long;

// Plain data, made by the host (msctx/native/cuda/depthwise_launches.py has the same fields in the same order) and passed by value.
// Any extent may be 0. Elements: x [n][c][in], w [c * multiplier][window], y [n][c * multiplier][out]; or x and y with channels last.
struct DepthwiseProblem {
  int64 n, c, multiplier;
  int64 in[2], out[2], window[2], stride[2], pad[2], dilation[2];
  // wgrad: its sums are cut into `chunks` of `chunk` positions each (see depthwise_wgrad.cu); the problem alone decides how.
  int64 chunks, chunk;
};

// Which elements lie side by side, and so belong to neighbouring threads.
enum Layout { nchw, channels_last };

__device__ __forceinline__ int64 divide_up(int64 a, int64 b) { return (a + b - 1) / b; }
__device__ __forceinline__ int64 smaller(int64 a, int64 b) { return a < b ? a : b; }

// A channel of an image: element (h, w) is data[(h * width + w) * step].
template <Layout layout>
struct Plane {
  int64 height, width, start, step;
  __device__ __forceinline__ Plane(int64 n, int64 channel, int64 channels, const int64 size[2])
      : height(size[0]),
        width(size[1]),
        start(n * channels * size[0] * size[1] + (layout == nchw ? channel * size[0] * size[1] : channel)),
        step(layout == nchw ? 1 : channels) {}
  __device__ __forceinline__ bool has(int64 h, int64 w) const { return h >= 0 && h < height && w >= 0 && w < width; }
  __device__ __forceinline__ int64 at(int64 h, int64 w) const { return start + (h * width + w) * step; }
};

// Windows of more taps are summed row by row, so that what rounding loses does not grow with all of them. Those that have kernels of
// their own are smaller.
constexpr int64 most_at_once = 64;
template <class Sum>
struct RowOfWindow {
  const bool alone;
  __device__ __forceinline__ explicit RowOfWindow(const DepthwiseProblem& p) : alone(p.window[0] * p.window[1] > most_at_once) {}
  __device__ __forceinline__ Sum begin(Sum sum) const { return alone ? Sum(0) : sum; }
  __device__ __forceinline__ Sum end(Sum sum, Sum row) const { return alone ? sum + row : row; }
};

// Padding is zeros, which are multiplied as any value is: zero times Inf is NaN.
template <Layout layout, class T>
__device__ __forceinline__ typename T::Sum or_zero(const T* data, const Plane<layout>& plane, int64 h, int64 w) {
  return plane.has(h, w) ? data[plane.at(h, w)].get() : typename T::Sum(0);
}

// The `index`-th block of results: threads side by side have columns side by side, or channels where those lie so.
struct Place {
  int64 n, channel, row, column;  // row and column count blocks
  template <Layout layout>
  static __device__ __forceinline__ Place of(int64 index, int64 channels, int64 rows, int64 columns) {
    Place found;
    if (layout == channels_last) {
      found.channel = index % channels;
      index /= channels;
    }
    found.column = index % columns;
    index /= columns;
    found.row = index % rows;
    index /= rows;
    if (layout == nchw) {
      found.channel = index % channels;
      index /= channels;
    }
    found.n = index;
    return found;
  }
};

}  // namespace msctx

#define MSCTX_JOIN_(op, element, layout, window, stride) depthwise_##op##_##element##_##layout##_##window##x##window##_s##stride
#define MSCTX_JOIN(op, element, layout, window, stride) MSCTX_JOIN_(op, element, layout, window, stride)
#define MSCTX_ANY_(op, element, layout) depthwise_##op##_##element##_##layout##_any
#define MSCTX_ANY(op, element, layout) MSCTX_ANY_(op, element, layout)

// All instantiations of one product for ELEMENT: each(name, layout, window, stride), window 0 for any window, stride and dilation.
// The others want a square window and dilation 1. float64 has the general one alone. The manifest lists the same names.
#define MSCTX_WINDOWS_(op, layout, each)                                     \
  each(MSCTX_JOIN(op, ELEMENT, layout, 3, 1), layout, 3, 1)                  \
  each(MSCTX_JOIN(op, ELEMENT, layout, 3, 2), layout, 3, 2)                  \
  each(MSCTX_JOIN(op, ELEMENT, layout, 5, 1), layout, 5, 1)                  \
  each(MSCTX_JOIN(op, ELEMENT, layout, 5, 2), layout, 5, 2)                  \
  each(MSCTX_JOIN(op, ELEMENT, layout, 7, 1), layout, 7, 1)
#define MSCTX_GENERAL_(op, each)                                  \
  each(MSCTX_ANY(op, ELEMENT, nchw), nchw, 0, 0)                  \
  each(MSCTX_ANY(op, ELEMENT, channels_last), channels_last, 0, 0)
#if defined(GENERAL_ONLY)
#define MSCTX_KERNELS(op, each) MSCTX_GENERAL_(op, each)
#else
#define MSCTX_KERNELS(op, each) \
  MSCTX_GENERAL_(op, each) MSCTX_WINDOWS_(op, nchw, each) MSCTX_WINDOWS_(op, channels_last, each)
#endif
