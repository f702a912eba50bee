// gemm: the input is unfolded into a matrix (im2col), image by image, then multiplied. Its gradients are algo_1 of the backward
// passes: a matmul and the folding back (col2im), and a matmul with the unfolded input.

#include "msctx/lowering.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
namespace {

template <class T>
struct Gemm {
  using Sum = typename SumOf<T>::type;
  const ConvProblem& p;
  const Parallel& parallel;
  T *x, *w, *y;
  Sum* columns;  // [group_c * taps][out]: one group of one image, unfolded
  Sum* rest;     // backward_data: a plane of x for each slot; backward_weight: the sums of w
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  const int64_t depth = gc * taps;

  void unfold(const T* image) const {
    parallel_for(parallel, depth, [&](int64_t row, int) {
      lower(p, image + row / taps * in, tap_of(p, row % taps), 0, out, columns + row * out);
    });
  }

  void forward(int64_t n, int64_t g) const {
    unfold(x + (n * p.c + g * gc) * in);
    const T* weights = w + g * gk * depth;
    T* result = y + (n * p.k + g * gk) * out;
    const auto parts = Parts::of<T>(gk, out, 1, parallel.threads);
    parallel_for(parallel, parts.count(), [&](int64_t task, int) {
      parts.at(task, [&](int64_t i0, int64_t rows, int64_t j0, int64_t count) {
        product_into(
            rows, count, depth, Strided<Sum, T>{weights + i0 * depth, depth, 1}, Strided<Sum, Sum>{columns + j0, 1, out},
            result + i0 * out + j0, out);
      });
    });
  }

  void backward_data(int64_t n, int64_t g) const {
    const T* weights = w + g * gk * depth;
    const T* gradient = y + (n * p.k + g * gk) * out;
    const auto parts = Parts::of<Sum>(depth, out, 1, parallel.threads);
    parallel_for(parallel, parts.count(), [&](int64_t task, int) {
      parts.at(task, [&](int64_t i0, int64_t rows, int64_t j0, int64_t count) {
        product_into(
            rows, count, gk, Strided<Sum, T>{weights + i0, 1, depth}, Strided<Sum, T>{gradient + j0, 1, out},
            columns + i0 * out + j0, out);
      });
    });
    parallel_for(parallel, gc, [&](int64_t c, int slot) { fold(c, x + (n * p.c + g * gc + c) * in, rest + slot * in); });
  }

  // Adds the rows of one channel into a plane of x, tap after tap.
  void fold(int64_t c, T* plane, Sum* sums) const {
    std::memset(sums, 0, sizeof(Sum) * in);
    for (int64_t tap = 0; tap < taps; tap++) {
      const Sum* row = columns + (c * taps + tap) * out;
      for_runs(
          p, tap_of(p, tap), 0, out,
          [&](int64_t at, int64_t count, int64_t target) {
            for (int64_t j = 0; j < count; j++) sums[target + j * p.stride[2]] += row[at + j];
          },
          [](int64_t, int64_t) {});
    }
    round_row(sums, plane, in);
  }

  // Adds one image's share to the sums of w: images are added in their order.
  void backward_weight(int64_t n, int64_t g) const {
    unfold(x + (n * p.c + g * gc) * in);
    const T* gradient = y + (n * p.k + g * gk) * out;
    Sum* sums = rest + g * gk * depth;
    const auto parts = Parts::stored<Sum>(gk, depth, 1, parallel.threads);
    parallel_for(parallel, parts.count(), [&](int64_t task, int) {
      parts.at(task, [&](int64_t i0, int64_t rows, int64_t j0, int64_t count) {
        for (int64_t first = 0; first < out; first += positions_together)
          product_rows<Sum>(
              rows, count, smaller(positions_together, out - first), Strided<Sum, T>{gradient + i0 * out + first, out, 1},
              Strided<Sum, Sum>{columns + j0 * out + first, out, 1}, [&](int64_t i, const Sum* from, int64_t n_) {
                for (int64_t j = 0; j < n_; j++) sums[(i0 + i) * depth + j0 + j] += from[j];
              });
      });
    });
  }

  static void round_row(const Sum* from, T* to, int64_t count) {
    for (int64_t j = 0; j < count; j++) to[j] = from_double<T>(from[j]);
  }
};

template <class T>
size_t columns_size(const ConvProblem& p) {
  return align64(sizeof(typename SumOf<T>::type) * group_c(p) * volume(p.window) * volume(p.out));
}

template <class T>
void run_typed(const ConvProblem& p, Op op, const ConvTensors& t, void* workspace, const Parallel& parallel) {
  using Sum = typename SumOf<T>::type;
  Sum* columns = static_cast<Sum*>(workspace);
  Sum* rest = reinterpret_cast<Sum*>(static_cast<char*>(workspace) + columns_size<T>(p));
  const Gemm<T> gemm{p, parallel, static_cast<T*>(t.x), static_cast<T*>(t.w), static_cast<T*>(t.y), columns, rest};
  if (op == Op::backward_weight && w_size(p) > 0) std::memset(rest, 0, sizeof(Sum) * w_size(p));
  for (int64_t n = 0; n < p.n; n++)
    for (int64_t g = 0; g < p.groups; g++) switch (op) {
        case Op::forward: gemm.forward(n, g); break;
        case Op::backward_data: gemm.backward_data(n, g); break;
        case Op::backward_weight: gemm.backward_weight(n, g); break;
      }
  if (op == Op::backward_weight) Gemm<T>::round_row(rest, static_cast<T*>(t.w), w_size(p));
}

void reasons(const ConvProblem&, Op, Reasons&) {}

size_t workspace(const ConvProblem& p, Op op, int threads) {
  size_t bytes = 0;
  with_type(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Sum = typename SumOf<T>::type;
    bytes = columns_size<T>(p);
    if (op == Op::backward_data) bytes += sizeof(Sum) * volume(p.in) * threads;
    if (op == Op::backward_weight) bytes += sizeof(Sum) * w_size(p);
  });
  return bytes;
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  with_type(p.dtype, [&](auto zero) { run_typed<decltype(zero)>(p, op, t, workspace, parallel); });
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_gemm = {
    .name = "gemm",
    .reasons = reasons,
    .workspace = workspace,
    .error = gemm_error,
    .run = run,
};

}  // namespace msctx::MSCTX_ISA
