// The inner product of all matmuls: one block of the result in registers, FMAs in the order of the sum.
#pragma once

#include "msctx/conv.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

constexpr int tile_columns = tile_vectors * Vec::width;

// Where the left factor of a product lies: row i of term k at at[i * row_step + k / chunk * chunk_step + k % chunk * term_step].
template <int64_t row_step>
struct Left {
  static constexpr int64_t step = row_step;
  const float* at;
  int64_t term_step, chunk, chunk_step;
};

// c[i][j] = or += the sum over k of left(i, k) * b[k][j], for rows x tile_columns elements; c has `pitch` floats a row.
// b is packed: its tile_columns values of one k are neighbours. The sum runs over k in order, from zero, and is added to c once: the
// bits do not depend on the size of the tile.
template <bool accumulate, int rows, int64_t row_step>
static inline void tile_of_rows(int64_t depth, const Left<row_step>& left, const float* b, float* c, int64_t pitch) {
  Vec sum[rows][tile_vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) sum[i][j] = Vec::zero();
  const float* chunk = left.at;
  for (int64_t first = 0; first < depth; first += left.chunk, chunk += left.chunk_step) {
    const float* a = chunk;
    for (int64_t k = smaller(left.chunk, depth - first); k > 0; k--, a += left.term_step, b += tile_columns) {
      Vec right[tile_vectors];
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; j++) right[j] = Vec::load(b + j * Vec::width);
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++) {
        const Vec value = Vec::all(a[i * row_step]);
#pragma GCC unroll 4
        for (int j = 0; j < tile_vectors; j++) sum[i][j] = fma(value, right[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; j++) {
      float* at = c + i * pitch + j * Vec::width;
      (accumulate ? Vec::load(at) + sum[i][j] : sum[i][j]).store(at);
    }
}

// The same of a packed left factor, whole: its tile_rows values of one k are neighbours.
template <bool accumulate>
static inline void tile_product(int64_t depth, const float* a, const float* b, float* c, int64_t pitch) {
  tile_of_rows<accumulate, tile_rows>(depth, Left<1>{a, tile_rows, depth, 0}, b, c, pitch);
}

}  // namespace msctx::MSCTX_ISA
