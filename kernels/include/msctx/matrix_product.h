// Blocked matrix products over operands that are packed piece by piece, so that they need not exist as matrices.
#pragma once

#include <type_traits>

#include "msctx/bounds.h"
#include "msctx/elements.h"
#include "msctx/tile.h"

namespace msctx::MSCTX_ISA {

// The tile of an element type: float's is in registers, double's is left to the compiler.
template <class Sum>
struct Tile;
template <>
struct Tile<float> {
  static constexpr int64_t rows = tile_rows, columns = tile_columns;
  static void product(int64_t depth, const float* a, const float* b, float* c, int64_t pitch) {
    tile_product<true>(depth, a, b, c, pitch);
  }
};
template <>
struct Tile<double> {
  static constexpr int64_t rows = 4, columns = 8;
  static void product(int64_t depth, const double* a, const double* b, double* c, int64_t pitch) {
    double sum[rows][columns] = {};
    for (int64_t k = 0; k < depth; k++, a += rows, b += columns)
      for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) sum[i][j] = fma(a[i], b[j], sum[i][j]);
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < columns; j++) c[i * pitch + j] += sum[i][j];
  }
};

// Eight rows of eight values, as columns.
using Eight = float __attribute__((vector_size(32), aligned(4)));
static inline void transpose(Eight r[8]) {
  using Index = int32_t __attribute__((vector_size(32)));
  constexpr Index low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};  // pairs, within halves
  constexpr Index first = {0, 1, 8, 9, 4, 5, 12, 13}, second = {2, 3, 10, 11, 6, 7, 14, 15};
  constexpr Index lower = {0, 1, 2, 3, 8, 9, 10, 11}, upper = {4, 5, 6, 7, 12, 13, 14, 15};
  Eight t[8];
  for (int i = 0; i < 8; i += 2) t[i] = __builtin_shuffle(r[i], r[i + 1], low), t[i + 1] = __builtin_shuffle(r[i], r[i + 1], high);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = __builtin_shuffle(t[i + j], t[i + j + 2], first);
      r[i + 2 * j + 1] = __builtin_shuffle(t[i + j], t[i + j + 2], second);
    }
  for (int i = 0; i < 4; i++) t[i] = __builtin_shuffle(r[i], r[i + 4], lower), t[i + 4] = __builtin_shuffle(r[i], r[i + 4], upper);
  for (int i = 0; i < 8; i++) r[i] = t[i];
}

// out[k * pitch + i] = from[i * step + k]: `rows` rows (zeros after them, up to `pitch`) of `deep` values.
template <int64_t pitch, class T, class Sum>
static inline void pack_rows(const T* from, int64_t step, int64_t rows, int64_t deep, Sum* out) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Sum, float>) {
    constexpr int64_t last = pitch % 8;
    for (int64_t i = 0; i < pitch; i += 8) {
      const int64_t there = smaller(8, rows - i), lanes = smaller(8, pitch - i);
      int64_t k = 0;
      for (; k + 8 <= deep; k += 8) {
        Eight block[8] = {};
        for (int64_t r = 0; r < there; r++) {
          const float* const at = from + (i + r) * step + k;
          if (k % 16 == 0) __builtin_prefetch(at + depth_block);  // the next block: rows are too many for the processor to foresee
          block[r] = *reinterpret_cast<const Eight*>(at);
        }
        transpose(block);
        if (lanes == 8)
          for (int64_t c = 0; c < 8; c++) *reinterpret_cast<Eight*>(out + (k + c) * pitch + i) = block[c];
        else
          for (int64_t c = 0; c < 8; c++) std::memcpy(out + (k + c) * pitch + i, &block[c], sizeof(float) * (last ? last : 8));
      }
      for (; k < deep; k++)
        for (int64_t r = i; r < i + lanes; r++) out[k * pitch + r] = r < rows ? from[r * step + k] : 0.0f;
    }
  } else {
    for (int64_t k = 0; k < deep; k++)
      for (int64_t i = 0; i < pitch; i++) out[k * pitch + i] = i < rows ? Sum(widen(from[i * step + k])) : Sum(0);
  }
}

// An operand as a matrix, the left one or the right one transposed: element (i, k) at data[i * row_step + k * depth_step].
template <class Sum, class T>
struct Strided {
  const T* data;
  int64_t row_step, depth_step;
  template <int64_t pitch>
  void pack(int64_t i, int64_t rows, int64_t k0, int64_t k1, Sum* out) const {
    const T* from = data + i * row_step + k0 * depth_step;
    if (depth_step == 1) return pack_rows<pitch>(from, row_step, rows, k1 - k0, out);
    for (int64_t k = 0; k < k1 - k0; k++, out += pitch) {
      for (int64_t r = 0; r < rows; r++) out[r] = Sum(widen(from[r * row_step + k * depth_step]));
      for (int64_t r = rows; r < pitch; r++) out[r] = Sum(0);
    }
  }
};
template <class T>
constexpr bool is_matrix = false;
template <class Sum, class T>
inline constexpr bool is_matrix<Strided<Sum, T>> = true;

// The part of the result that one task computes; its operands' packed blocks and itself fit the second-level cache (and a stack).
template <class Sum>
constexpr int64_t block_rows = 96 * 4 / sizeof(Sum);
template <class Sum>
constexpr int64_t block_columns = 128 * 4 / sizeof(Sum);

// Computes `rows` x `columns` elements (at most one block) of a product and hands each row to store(i, values, columns).
// left(i, k0, k1, out, step): out[(k - k0) * step] = element (row i, k) of the left operand.
// right(k, j0, j1, out): the elements (k, columns j0 to j1) of the right operand, as neighbours.
// Either may be a Strided.
template <class Sum, class Left, class Right, class Store>
static inline void block_product(int64_t rows, int64_t columns, int64_t depth, const Left& left, const Right& right, const Store& store) {
  using T = Tile<Sum>;
  alignas(64) Sum a[block_rows<Sum> * depth_block];
  alignas(64) Sum b[block_columns<Sum> * depth_block];
  alignas(64) Sum c[block_rows<Sum> * block_columns<Sum>];
  const int64_t row_tiles = divide_up(rows, T::rows), column_tiles = divide_up(columns, T::columns);
  const int64_t pitch = column_tiles * T::columns;
  std::memset(c, 0, sizeof(Sum) * row_tiles * T::rows * pitch);

  for (int64_t k0 = 0; k0 < depth; k0 += depth_block) {
    const int64_t k1 = smaller(depth, k0 + depth_block), deep = k1 - k0;
    for (int64_t s = 0; s < row_tiles; s++) {
      const int64_t i0 = s * T::rows, count = smaller(T::rows, rows - i0);
      Sum* const out = a + i0 * deep;
      if constexpr (is_matrix<Left>)
        left.template pack<T::rows>(i0, count, k0, k1, out);
      else
        for (int64_t i = 0; i < T::rows; i++)
          if (i < count)
            left(i0 + i, k0, k1, out + i, T::rows);
          else
            for (int64_t k = 0; k < deep; k++) out[k * T::rows + i] = Sum(0);
    }
    for (int64_t t = 0; t < column_tiles; t++) {
      const int64_t j0 = t * T::columns, count = smaller(T::columns, columns - j0);
      Sum* out = b + j0 * deep;
      if constexpr (is_matrix<Right>)
        right.template pack<T::columns>(j0, count, k0, k1, out);
      else
        for (int64_t k = k0; k < k1; k++, out += T::columns) {
          right(k, j0, j0 + count, out);
          for (int64_t j = count; j < T::columns; j++) out[j] = Sum(0);
        }
    }
    for (int64_t t = 0; t < column_tiles; t++)
      for (int64_t s = 0; s < row_tiles; s++)
        T::product(deep, a + s * T::rows * deep, b + t * T::columns * deep, c + s * T::rows * pitch + t * T::columns, pitch);
  }
  for (int64_t i = 0; i < rows; i++) store(i, c + i * pitch, columns);
}

// A task for each block of a result of rows x columns: body(first row, rows, first column, columns).
template <class Sum, class Body>
static inline void for_block(int64_t index, int64_t rows, int64_t columns, const Body& body) {
  const int64_t across = divide_up(columns, block_columns<Sum>);
  const int64_t i = index / across * block_rows<Sum>, j = index % across * block_columns<Sum>;
  body(i, smaller(block_rows<Sum>, rows - i), j, smaller(block_columns<Sum>, columns - j));
}
template <class Sum>
static inline int64_t blocks(int64_t rows, int64_t columns) {
  return divide_up(rows, block_rows<Sum>) * divide_up(columns, block_columns<Sum>);
}

}  // namespace msctx::MSCTX_ISA
