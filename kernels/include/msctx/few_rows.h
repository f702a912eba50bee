// Products of a few rows: the sums of block_product in its order, but of a right operand that is read as it lies: to pack it would take
// longer than to multiply by it.
#pragma once

#include <cstring>
#include <type_traits>

#include "msctx/bounds.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

constexpr int64_t most_few_rows = 8;
// Columns that are computed at once, at most: their sums stay in the second cache, and pieces of rows are long enough to be foreseen.
constexpr int64_t few_rows_columns = 1024;

// The left operand, row by row.
struct FewRows {
  const float* at;
  int64_t depth;
  // Terms k0 to k1 of all rows, term by term: rows may share a set of the cache.
  template <int rows>
  void pack(int64_t k0, int64_t k1, float* out) const {
    for (int i = 0; i < rows; i++)
      for (int64_t k = k0; k < k1; k++) out[(k - k0) * rows + i] = at[i * depth + k];
  }
};

// totals[i * few_rows_columns + j]: of the columns whose element k is at right[k * step + j].
template <int rows>
static inline void few_rows_of_neighbours(const FewRows& l, const float* right, int64_t step, int64_t columns, float* totals) {
  alignas(64) float left[rows * depth_block], sums[rows * few_rows_columns];  // of a vector's columns row by row
  constexpr int64_t together = 8;
  std::memset(totals, 0, sizeof sums);
  for (int64_t k0 = 0; k0 < l.depth; k0 += depth_block) {
    const int64_t k1 = smaller(l.depth, k0 + depth_block);
    l.template pack<rows>(k0, k1, left);
    std::memset(sums, 0, sizeof sums);
    const auto add = [&](int64_t k, auto count) {
      float* to = sums;
      for (int64_t j = 0; j < columns; j += Vec::width) {
        const int lanes = int(smaller(Vec::width, columns - j));
        Vec b[count()];
        for (int c = 0; c < count(); c++) {
          __builtin_prefetch(right + (k + c + together) * step + j);
          b[c] = Vec::load(right + (k + c) * step + j, lanes);
        }
        for (int i = 0; i < rows; i++, to += Vec::width) {
          Vec sum = Vec::load(to);
          for (int c = 0; c < count(); c++) sum = fma(Vec::all(left[(k - k0 + c) * rows + i]), b[c], sum);
          sum.store(to);
        }
      }
    };
    int64_t k = k0;
    for (; k + together <= k1; k += together) add(k, std::integral_constant<int, together>{});
    for (; k < k1; k++) add(k, std::integral_constant<int, 1>{});
    const float* from = sums;
    for (int64_t j = 0; j < columns; j += Vec::width)
      for (int i = 0; i < rows; i++, from += Vec::width) {
        float* const to = totals + i * few_rows_columns + j;
        (Vec::load(to) + Vec::load(from)).store(to);
      }
  }
}

// Adds the products of `deep` terms of the `there` columns at `from`; of Vec::width each, if they are `whole`.
template <int rows, bool whole>
static inline void few_rows_of_square(
    const float* left, int64_t deep, const float* from, int64_t step, int64_t there, Vec sum[rows]) {
  constexpr int width = Vec::width, ahead = 64;  // four cache lines: there are more columns than processors foresee
  Vec b[width];
#pragma GCC unroll 16
  for (int c = 0; c < width; c++) {
    if (whole) __builtin_prefetch(from + c * step + ahead);
    b[c] = whole ? Vec::load(from + c * step) : c < there ? Vec::load(from + c * step, int(deep)) : Vec::zero();
  }
  transpose(b);
#pragma GCC unroll 16
  for (int c = 0; c < width; c++)
    if (whole || c < deep)
#pragma GCC unroll 8
      for (int i = 0; i < rows; i++) sum[i] = fma(Vec::all(left[c * rows + i]), b[c], sum[i]);
}

// The same of columns whose element k is at right[j * step + k].
template <int rows>
static inline void few_rows_of_lines(const FewRows& l, const float* right, int64_t step, int64_t columns, float* totals) {
  constexpr int64_t width = Vec::width;
  constexpr int64_t line = larger(width, 16);         // all of a cache line at once: more columns may share a set of the cache
  constexpr int64_t piece = 64 / rows * depth_block;  // long ones, so that processors foresee what comes
  alignas(64) float left[rows * piece];
  for (int64_t first = 0; first < l.depth; first += piece) {
    const int64_t deep = smaller(piece, l.depth - first);
    l.template pack<rows>(first, first + deep, left);
    for (int64_t j = 0; j < columns; j += width) {
      const bool has_all = columns - j >= width;
      const float* const from = right + j * step + first;
      Vec total[rows], sum[rows];
      for (int i = 0; i < rows; i++) total[i] = first > 0 ? Vec::load(totals + i * few_rows_columns + j) : Vec::zero();
      for (int64_t k0 = 0; k0 < deep; k0 += depth_block) {
        const int64_t k1 = smaller(deep, k0 + depth_block);
        for (Vec& one : sum) one = Vec::zero();
        int64_t k = k0;
        for (; has_all && k + line <= k1; k += line)
          for (int64_t at = k; at < k + line; at += width)
            few_rows_of_square<rows, true>(left + at * rows, width, from + at, step, width, sum);
        for (; k < k1; k += width)
          few_rows_of_square<rows, false>(left + k * rows, smaller(width, k1 - k), from + k, step, columns - j, sum);
        for (int i = 0; i < rows; i++) total[i] = total[i] + sum[i];
      }
      for (int i = 0; i < rows; i++) total[i].store(totals + i * few_rows_columns + j);
    }
  }
}

}  // namespace msctx::MSCTX_ISA
