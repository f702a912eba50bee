// The inner product of all matrix products: one block of the result in registers, FMAs in the order of the sum.
#pragma once

#include "msctx/conv.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

constexpr int tile_columns = tile_vectors * Vec::width;

// c[i][j] = or += the sum over k of a[k][i] * b[k][j], for tile_rows x tile_columns elements; c has `pitch` floats a row.
// a and b are packed: their tile_rows (tile_columns) values of one k are neighbours. The sum runs over k in order, from zero, and is
// added to c once: the bits do not depend on the size of the tile.
template <bool accumulate>
static inline void tile_product(int64_t depth, const float* a, const float* b, float* c, int64_t pitch) {
  Vec sum[tile_rows][tile_vectors];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) sum[i][j] = Vec::zero();
  for (int64_t k = 0; k < depth; k++, a += tile_rows, b += tile_columns) {
    Vec right[tile_vectors];
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) right[j] = Vec::load(b + j * Vec::width);
#pragma GCC unroll 16
    for (int i = 0; i < tile_rows; i++) {
      const Vec left = Vec::all(a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; j++) sum[i][j] = fma(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) {
      float* at = c + i * pitch + j * Vec::width;
      (accumulate ? Vec::load(at) + sum[i][j] : sum[i][j]).store(at);
    }
}

}  // namespace msctx::MSCTX_ISA
