// Products by a right operand whose panels are kept: nothing but the left one is packed. The sums are those of matrix_product.h, in its order.
#pragma once

#include <array>
#include <utility>

#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {

// What is read of the left operand for some rows of a result, and stays in the second cache.
constexpr int64_t packed_rows = 96, packed_depth = 4 * depth_block;

// The panels of a right operand: [strip of tile_columns][term][column], with zeros after the last column.
static inline int64_t panels_columns(int64_t columns) { return divide_up(columns, tile_columns) * tile_columns; }
static inline void make_panels(const Strided<float, float>& right, int64_t columns, int64_t depth, float* panels, const Parallel& parallel) {
  parallel_for(parallel, divide_up(columns, tile_columns), [&](int64_t strip, int) {
    const int64_t j = strip * tile_columns;
    right.template pack<tile_columns>(j, smaller(tile_columns, columns - j), 0, depth, panels + j * depth, 0);
  });
}

// c[i][j] += the sum over k of a[i * step + k] * b[k][j], from zero and in order, for `rows` rows of tile_columns columns. `is_first`: there is
// nothing to add to but 0, which -0 becomes. The next panel follows b: each tile of
// `turns`, whose turn is `turn`, fetches its share of the lines.
template <bool is_first, int rows>
static inline void rows_by_panel(int64_t depth, const float* a, int64_t step, const float* b, float* c, int64_t turn, int64_t turns) {
  constexpr int together = 3;  // rows whose addresses are a register and multiples of the step
  Vec sum[rows][tile_vectors];
  const float* at[(rows + together - 1) / together];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) sum[i][j] = Vec::zero();
#pragma GCC unroll 16
  for (int i = 0; i < rows; i += together) at[i / together] = a + i * step;
  for (int64_t k = 0; k < depth; k++, b += tile_columns) {
    if (--turn < 0) {
      turn = turns - 1;
      for (int j = 0; j < tile_columns; j += 16) __builtin_prefetch(b + depth * tile_columns + j, 0, 2);
    }
    Vec right[tile_vectors];
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) right[j] = Vec::load(b + j * Vec::width);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      const Vec value = Vec::all(at[i / together][i % together * step]);
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; j++) sum[i][j] = fma(value, right[j], sum[i][j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += together) at[i / together]++;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) {
      float* const to = c + i * tile_columns + j * Vec::width;
      ((is_first ? Vec::zero() : Vec::load(to)) + sum[i][j]).store(to);
    }
}
template <bool is_first, int... less>
constexpr std::array<decltype(&rows_by_panel<is_first, 1>), tile_rows> each_of(std::integer_sequence<int, less...>) {
  return {rows_by_panel<is_first, less + 1>...};
}
template <bool is_first>
constexpr auto rows_by_panel_of = each_of<is_first>(std::make_integer_sequence<int, tile_rows>());

// At most packed_rows rows of a result, its columns from a strip's first on. load(j, across, sums) gives what of the sums is there, before all
// but the first part of the depth; store(j, across, sums, is_last) takes them, row by row of tile_columns.
template <class Load, class Store>
static inline void packed_product(
    int64_t rows, int64_t first, int64_t last, int64_t depth, const float* left, const float* panels, const Load& load, const Store& store) {
  constexpr int64_t page = 1024, apart = packed_depth + 16;  // rows whole pages apart compete for a few ways of the first cache: they are copied
  alignas(64) float c[packed_rows * tile_columns], copies[packed_rows * apart];
  const int64_t tiles = divide_up(rows, tile_rows);
  for (int64_t from = 0; from < depth; from += packed_depth) {
    const int64_t to = smaller(depth, from + packed_depth);
    for (int64_t i = 0; depth % page == 0 && i < rows; i++)
      std::memcpy(copies + i * apart, left + i * depth + from, sizeof(float) * size_t(to - from));
    const float* const part = depth % page == 0 ? copies : left + from;
    const int64_t step = depth % page == 0 ? apart : depth;
    for (int64_t j = first; j < last; j += tile_columns) {
      const int64_t across = smaller(tile_columns, last - j);
      if (from) load(j, across, c);
      const float* of_right = panels + j * depth + from * tile_columns;
      for (int64_t k = from; k < to; k += depth_block) {
        const int64_t deep = smaller(to, k + depth_block) - k, size = deep * tile_columns;
        const auto& tile = k ? rows_by_panel_of<false> : rows_by_panel_of<true>;
        for (int64_t i = 0, row = 0; i < tiles; i++) {
          const int64_t end = (i + 1) * rows / tiles;  // as equal as they can be
          tile[size_t(end - row - 1)](deep, part + row * step + k - from, step, of_right, c + row * tile_columns, i, tiles);
          row = end;
        }
        of_right += size;
      }
      store(j, across, c, to == depth);
    }
  }
}

}  // namespace msctx::MSCTX_ISA
