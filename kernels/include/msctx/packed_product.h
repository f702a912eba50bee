// Products by a right operand whose panels are kept: nothing but the left one is packed. The sums are those of matrix_product.h, in its order.
#pragma once

#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {

// What is packed of the left operand at once, and stays in the second cache.
constexpr int64_t packed_rows = 192, packed_depth = 4 * depth_block;

// The panels of a right operand, in the order in which they are read: [part of packed_depth terms][strip of tile_columns][term][column], with
// zeros after the last column.
static inline int64_t panels_columns(int64_t columns) { return divide_up(columns, tile_columns) * tile_columns; }
static inline void make_panels(const Strided<float, float>& right, int64_t columns, int64_t depth, float* panels, const Parallel& parallel) {
  parallel_for(parallel, divide_up(columns, tile_columns), [&](int64_t strip, int) {
    const int64_t j = strip * tile_columns, all = panels_columns(columns);
    for (int64_t from = 0; from < depth; from += packed_depth) {
      const int64_t to = smaller(depth, from + packed_depth);
      right.template pack<tile_columns>(j, smaller(tile_columns, columns - j), from, to, panels + from * all + j * (to - from), 0);
    }
  });
}

// Of up to tile_rows rows: of one of them, a third, two thirds, or all.
static inline void tile_of(int64_t rows, int64_t depth, const float* a, const float* b, float* c) {
  constexpr int third = tile_rows / 3, most = 2 * tile_rows / 3;
  const Left<1> left{a, tile_rows, depth, 0};
  if (rows > most) return tile_of_rows<true, tile_rows>(depth, left, b, c, tile_columns);
  if (rows > third) return tile_of_rows<true, most>(depth, left, b, c, tile_columns);
  if (rows > 1) return tile_of_rows<true, third>(depth, left, b, c, tile_columns);
  tile_of_rows<true, 1>(depth, left, b, c, tile_columns);
}

// At most packed_rows rows of a result, its columns from a strip's first on. load(j, across, sums) gives what of the sums is there, before all
// but the first part of the depth; store(j, across, sums, is_last) takes them, row by row of tile_columns.
template <class Load, class Store>
static inline void packed_product(
    int64_t rows, int64_t first, int64_t last, int64_t columns, int64_t depth, const Strided<float, float>& left, const float* panels,
    const Load& load, const Store& store) {
  constexpr int64_t strip = tile_rows * depth_block + 16;  // strips do not share sets of a cache
  alignas(64) float a[packed_depth / depth_block * (packed_rows / tile_rows) * strip];
  alignas(64) float c[packed_rows * tile_columns];
  const int64_t tiles = divide_up(rows, tile_rows);
  for (int64_t from = 0; from < depth; from += packed_depth) {
    const int64_t to = smaller(depth, from + packed_depth);
    for (int64_t k = from; k < to; k += depth_block)
      left.template pack<tile_rows>(0, rows, k, smaller(to, k + depth_block), a + (k - from) / depth_block * tiles * strip, strip);
    const float* of_right = panels + from * panels_columns(columns) + first * (to - from);
    for (int64_t j = first; j < last; j += tile_columns) {
      const int64_t across = smaller(tile_columns, last - j);
      if (from)
        load(j, across, c);
      else
        std::memset(c, 0, sizeof(float) * size_t(tiles * tile_rows * tile_columns));  // to which the first sums are added: -0 becomes 0
      for (int64_t k = from; k < to; k += depth_block) {
        const int64_t deep = smaller(to, k + depth_block) - k, size = deep * tile_columns;
        const float* const of_left = a + (k - from) / depth_block * tiles * strip;
        const float* ahead = of_right + size;  // what comes next, while this is multiplied
        for (int64_t i = 0; i < tiles; i++) {
          for (; tiles > 1 && ahead < of_right + size + (i + 1) * size / tiles; ahead += 16) __builtin_prefetch(ahead);
          tile_of(rows - i * tile_rows, deep, of_left + i * strip, of_right, c + i * tile_rows * tile_columns);
        }
        of_right += size;
      }
      store(j, across, c, to == depth);
    }
  }
}

}  // namespace msctx::MSCTX_ISA
