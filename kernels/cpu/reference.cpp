// reference: the sums as one would write them down, in double precision. Slow and readable; the others are checked against it.

#include "msctx/elements.h"

namespace msctx::MSCTX_ISA {
namespace reference {
namespace {

// Where in x the tap t of the window falls for the output position o; padding counts as zeros there.
static inline int64_t position(const ConvProblem& p, int axis, int64_t o, int64_t t) {
  return o * p.stride[axis] - p.pad[axis] + t * p.dilation[axis];
}

template <class T, class Body>
static inline void for_window(const ConvProblem& p, const Body& body) {
  for (int64_t d = 0; d < p.window[0]; d++)
    for (int64_t r = 0; r < p.window[1]; r++)
      for (int64_t s = 0; s < p.window[2]; s++) body(d, r, s, (d * p.window[1] + r) * p.window[2] + s);
}

template <class T>
struct Reference {
  const ConvProblem& p;
  const T *x, *w, *y;
  const int64_t gc = group_c(p), gk = group_k(p), in = volume(p.in), out = volume(p.out), taps = volume(p.window);

  double x_at(int64_t n, int64_t c, int64_t d, int64_t h, int64_t v) const {
    if (d < 0 || h < 0 || v < 0 || d >= p.in[0] || h >= p.in[1] || v >= p.in[2]) return 0.0;
    return to_double(x[(n * p.c + c) * in + (d * p.in[1] + h) * p.in[2] + v]);
  }

  double forward(int64_t n, int64_t k, int64_t d, int64_t h, int64_t v) const {
    double sum = 0.0;
    for (int64_t c = 0; c < gc; c++)
      for_window<T>(p, [&](int64_t i, int64_t r, int64_t s, int64_t tap) {
        const double left = x_at(n, k / gk * gc + c, position(p, 0, d, i), position(p, 1, h, r), position(p, 2, v, s));
        sum += left * to_double(w[(k * gc + c) * taps + tap]);
      });
    return sum;
  }

  // The output position whose window has tap t at position i of x, or -1.
  int64_t source(int axis, int64_t i, int64_t t) const {
    const int64_t at = i + p.pad[axis] - t * p.dilation[axis];
    return at >= 0 && at % p.stride[axis] == 0 && at / p.stride[axis] < p.out[axis] ? at / p.stride[axis] : -1;
  }

  double backward_data(int64_t n, int64_t c, int64_t d, int64_t h, int64_t v) const {
    double sum = 0.0;
    for (int64_t k = c / gc * gk; k < (c / gc + 1) * gk; k++)
      for_window<T>(p, [&](int64_t i, int64_t r, int64_t s, int64_t tap) {
        const int64_t od = source(0, d, i), oh = source(1, h, r), ov = source(2, v, s);
        if (od < 0 || oh < 0 || ov < 0) return;
        const double left = to_double(y[(n * p.k + k) * out + (od * p.out[1] + oh) * p.out[2] + ov]);
        sum += left * to_double(w[(k * gc + c % gc) * taps + tap]);
      });
    return sum;
  }

  double backward_weight(int64_t k, int64_t c, int64_t i, int64_t r, int64_t s) const {
    double sum = 0.0;
    for (int64_t n = 0; n < p.n; n++)
      for (int64_t d = 0; d < p.out[0]; d++)
        for (int64_t h = 0; h < p.out[1]; h++)
          for (int64_t v = 0; v < p.out[2]; v++) {
            const double left = x_at(n, k / gk * gc + c, position(p, 0, d, i), position(p, 1, h, r), position(p, 2, v, s));
            sum += left * to_double(y[(n * p.k + k) * out + (d * p.out[1] + h) * p.out[2] + v]);
          }
    return sum;
  }
};

// One task for each row of each plane; body(plane, d, h, v) gives one element.
template <class T, class Body>
void for_elements(T* result, int64_t planes, const int64_t extent[3], const Parallel& parallel, const Body& body) {
  parallel_for(parallel, planes * extent[0] * extent[1], [&](int64_t task, int) {
    const int64_t h = task % extent[1], d = task / extent[1] % extent[0], plane = task / extent[1] / extent[0];
    for (int64_t v = 0; v < extent[2]; v++) result[task * extent[2] + v] = from_double<T>(body(plane, d, h, v));
  });
}

template <class T>
void run_typed(const ConvProblem& p, Op op, const ConvTensors& t, const Parallel& parallel) {
  const Reference<T> reference{p, static_cast<T*>(t.x), static_cast<T*>(t.w), static_cast<T*>(t.y)};
  switch (op) {
    case Op::forward:
      return for_elements(static_cast<T*>(t.y), p.n * p.k, p.out, parallel, [&](int64_t plane, int64_t d, int64_t h, int64_t v) {
        return reference.forward(plane / p.k, plane % p.k, d, h, v);
      });
    case Op::backward_data:
      return for_elements(static_cast<T*>(t.x), p.n * p.c, p.in, parallel, [&](int64_t plane, int64_t d, int64_t h, int64_t v) {
        return reference.backward_data(plane / p.c, plane % p.c, d, h, v);
      });
    case Op::backward_weight:
      return for_elements(
          static_cast<T*>(t.w), p.k * group_c(p), p.window, parallel, [&](int64_t plane, int64_t d, int64_t h, int64_t v) {
            return reference.backward_weight(plane / group_c(p), plane % group_c(p), d, h, v);
          });
  }
}

void reasons(const ConvProblem&, Op, Reasons&) {}

double error(const ConvProblem& p, Op op) {
  const int64_t terms = op == Op::forward         ? group_c(p) * volume(p.window)
                        : op == Op::backward_data ? group_k(p) * volume(p.window)
                                                  : p.n * volume(p.out);
  return p.dtype == DType::f64 ? 0x1p-53 * double(terms + 1) : 2 * rounding_unit(p.dtype);
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  with_type(p.dtype, [&](auto zero) { run_typed<decltype(zero)>(p, op, t, parallel); });
  return true;
}

}  // namespace
}  // namespace reference

extern const ConvAlgorithm conv_reference = {
    .name = "reference",
    .math = "float64",
    .reasons = reference::reasons,
    .error = reference::error,
    .run = reference::run,
};

}  // namespace msctx::MSCTX_ISA
