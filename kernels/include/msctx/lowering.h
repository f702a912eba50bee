// The lowered matrix of a convolution, row by row: row (channel, tap), a column for each output position.
#pragma once

#include "msctx/elements.h"

namespace msctx::MSCTX_ISA {

struct Tap {
  int64_t d, r, s;
};
static inline Tap tap_of(const ConvProblem& p, int64_t index) {
  return {index / (p.window[1] * p.window[2]), index / p.window[2] % p.window[1], index % p.window[2]};
}

// The part [begin, end) of `count` output positions along one axis whose tap falls inside an input of `extent`; the first one
// falls on `start`, and each next one `step` further.
static inline void inside(int64_t start, int64_t step, int64_t extent, int64_t count, int64_t& begin, int64_t& end) {
  begin = start >= 0 ? 0 : smaller(count, divide_up(-start, step));
  end = start >= extent ? begin : larger(begin, smaller(count, (extent - 1 - start) / step + 1));
}

// Calls body(position, count, source) for runs of output positions `first` to `last` (flat, of one image) that lie in one output row:
// `source` is the flat index in the plane of the element under the tap for the first of them; zeros(position, count) for the padding.
template <class Body, class Zeros>
static inline void for_runs(const ConvProblem& p, Tap tap, int64_t first, int64_t last, const Body& body, const Zeros& zeros) {
  for (int64_t at = first; at < last;) {
    const int64_t v = at % p.out[2], row = at / p.out[2], count = smaller(p.out[2] - v, last - at);
    const int64_t h = row % p.out[1] * p.stride[1] - p.pad[1] + tap.r * p.dilation[1];
    const int64_t d = row / p.out[1] * p.stride[0] - p.pad[0] + tap.d * p.dilation[0];
    int64_t begin = 0, end = 0;
    const int64_t start = v * p.stride[2] - p.pad[2] + tap.s * p.dilation[2];
    if (h >= 0 && h < p.in[1] && d >= 0 && d < p.in[0]) inside(start, p.stride[2], p.in[2], count, begin, end);
    if (begin > 0) zeros(at, begin);
    if (end > begin) body(at + begin, end - begin, (d * p.in[1] + h) * p.in[2] + start + begin * p.stride[2]);
    if (end < count) zeros(at + end, count - end);
    at += count;
  }
}

// One row of the lowered matrix, columns `first` to `last`; zeros where the tap falls into the padding.
template <class T, class Sum>
static inline void lower(const ConvProblem& p, const T* plane, Tap tap, int64_t first, int64_t last, Sum* out) {
  const int64_t step = p.stride[2];
  for_runs(
      p, tap, first, last,
      [&](int64_t at, int64_t count, int64_t source) {
        Sum* to = out + at - first;
        if (step == 1)
          for (int64_t j = 0; j < count; j++) to[j] = widen(plane[source + j]);
        else
          for (int64_t j = 0; j < count; j++) to[j] = widen(plane[source + j * step]);
      },
      [&](int64_t at, int64_t count) {
        for (int64_t j = 0; j < count; j++) out[at - first + j] = Sum(0);
      });
}

}  // namespace msctx::MSCTX_ISA
