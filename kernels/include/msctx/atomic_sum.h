// Sums that several threads add to, in whatever order they come: what makes algo_0 and algo_3 of the backward passes what they are.
#pragma once

#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {

static inline void atomic_add(float* sum, float value) {
  auto* bits = reinterpret_cast<uint32_t*>(sum);
  uint32_t before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(
      bits, &before, as_bits(as_float(before) + value), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// The weight gradient as products of pieces of the output positions, each added atomically.
// lowered(g, n, i, first, last, out): the elements under (channel, tap) i of group g of image n for the output positions first to last.
template <class Lowered>
static inline void weight_gradient_by_pieces(const ConvProblem& p, const ConvTensors& t, const Parallel& parallel, const Lowered& lowered) {
  constexpr int64_t piece = 8 * depth_block;
  const auto* y = static_cast<const float*>(t.y);
  auto* w = static_cast<float*>(t.w);
  const int64_t gk = group_k(p), out = volume(p.out), rows = group_c(p) * volume(p.window);
  const int64_t pieces = divide_up(out, piece);
  const auto parts = Parts::stored<float>(rows, gk, p.n * pieces * p.groups, parallel.threads);
  const int64_t each = parts.count();
  std::memset(w, 0, sizeof(float) * w_size(p));
  parallel_for(parallel, p.n * pieces * p.groups * each, [&](int64_t task, int) {
    const int64_t g = task / each % p.groups, first = task / each / p.groups % pieces * piece, n = task / each / p.groups / pieces;
    const float* gradient = y + (n * p.k + g * gk) * out + first;
    parts.at(task % each, [&](int64_t i0, int64_t count, int64_t j0, int64_t channels) {
      product_rows<float>(
          count, channels, smaller(piece, out - first),
          rows_of<float>([&](int64_t i, int64_t k0, int64_t k1, float* to) { lowered(g, n, i0 + i, first + k0, first + k1, to); }),
          Strided<float, float>{gradient + j0 * out, out, 1},
          [&](int64_t i, const float* from, int64_t n_) {
            for (int64_t j = 0; j < n_; j++) atomic_add(w + (g * gk + j0 + j) * rows + i0 + i, from[j]);
          });
    });
  });
}

static inline double weight_gradient_error(const ConvProblem& p) {
  return sum_error(p.dtype, 8 * depth_block) + 0x1p-24 * double(p.n * divide_up(volume(p.out), 8 * depth_block));
}

}  // namespace msctx::MSCTX_ISA
