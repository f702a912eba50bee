// Blocked matrix products over operands that are packed piece by piece, so that they need not exist as matrices.
#pragma once

#include "msctx/elements.h"
#include "msctx/tile.h"

namespace msctx::MSCTX_ISA {

// The sum over the depth is made in blocks of this many products, each summed from zero: errors grow with the block and the number of
// blocks, not with their product. One number for all instruction sets, since it decides the bits.
constexpr int64_t depth_block = 128;

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

// The part of the result that one task computes; its operands' packed blocks and itself fit the second-level cache (and a stack).
template <class Sum>
constexpr int64_t block_rows = 96 * 4 / sizeof(Sum);
template <class Sum>
constexpr int64_t block_columns = 128 * 4 / sizeof(Sum);

// Computes `rows` x `columns` elements (at most one block) of a product and hands each row to store(i, values, columns).
// left(i, k0, k1, out, step): out[(k - k0) * step] = element (row i, k) of the left operand.
// right(k, j0, j1, out): the elements (k, columns j0 to j1) of the right operand, as neighbours.
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
    for (int64_t i = 0; i < row_tiles * T::rows; i++) {
      Sum* out = a + i / T::rows * T::rows * deep + i % T::rows;
      if (i < rows)
        left(i, k0, k1, out, T::rows);
      else
        for (int64_t k = 0; k < deep; k++) out[k * T::rows] = Sum(0);
    }
    for (int64_t t = 0; t < column_tiles; t++) {
      const int64_t j0 = t * T::columns, j1 = smaller(columns, j0 + T::columns);
      for (int64_t k = k0; k < k1; k++) {
        Sum* out = b + t * T::columns * deep + (k - k0) * T::columns;
        right(k, j0, j1, out);
        for (int64_t j = j1 - j0; j < T::columns; j++) out[j] = Sum(0);
      }
    }
    for (int64_t t = 0; t < column_tiles; t++)
      for (int64_t s = 0; s < row_tiles; s++)
        T::product(deep, a + s * T::rows * deep, b + t * T::columns * deep, c + s * T::rows * pitch + t * T::columns, pitch);
  }
  for (int64_t i = 0; i < rows; i++) store(i, c + i * pitch, columns);
}

// The left operand as a matrix: element (i, k) at data[i * row_step + k * depth_step].
template <class Sum, class T>
struct Strided {
  const T* data;
  int64_t row_step, depth_step;
  void operator()(int64_t i, int64_t k0, int64_t k1, Sum* out, int64_t step) const {
    const T* from = data + i * row_step + k0 * depth_step;
    for (int64_t k = 0; k < k1 - k0; k++) out[k * step] = Sum(widen(from[k * depth_step]));
  }
};

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

// The bound that block_product's sums keep: see Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2 (blocked sums).
// It applies to the sum of |products|; over data without massive cancellation that is within a small factor of max|result|.
// `more`: additions that follow.
static inline double sum_error(DType dtype, int64_t depth, int64_t more = 0) {
  const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double chain = double(smaller(depth, depth_block)) + double(divide_up(depth, depth_block)) + double(more);
  return unit * chain + (dtype == DType::f32 || dtype == DType::f64 ? 0.0 : rounding_unit(dtype));
}

}  // namespace msctx::MSCTX_ISA
