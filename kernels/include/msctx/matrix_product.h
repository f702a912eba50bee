// Blocked matmuls over operands that are packed piece by piece, so that they need not exist as matrices.
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

// The elements of one term, neighbours, into strips of `width` that begin `apart` after each other; zeros after the last.
template <int64_t width, class T, class Sum>
static inline void scatter(const T* line, int64_t count, Sum* out, int64_t apart) {
  for (; count > 0; line += width, count -= width, out += apart)
    if (std::is_same_v<T, Sum> && count >= width)
      std::memcpy(out, line, sizeof(Sum) * width);
    else
      for (int64_t i = 0; i < width; i++) out[i] = i < count ? Sum(widen(line[i])) : Sum(0);
}

// A strip of `rows` rows whose terms are neighbours: out[k * width + i] = from[i * step + k]. The vectors of its last rows come first:
// their lanes beyond the strip, at most a vector's, are the next term's first.
template <int64_t width>
static inline void pack_strip(const float* from, int64_t step, int64_t rows, int64_t deep, float* out) {
  constexpr int64_t last = (width - 1) / Vec::width * Vec::width;
  for (int64_t i = last; i >= 0; i -= Vec::width) {
    int64_t k = 0;
    const auto pack = [&](auto there) {
      for (; k + Vec::width <= deep; k += Vec::width) {
        Vec block[Vec::width];
#pragma GCC unroll 16
        for (int r = 0; r < Vec::width; r++) {
          const float* const at = from + (i + r) * step + k;
          if (r < there() && k % 16 == 0) __builtin_prefetch(at + depth_block);  // rows are too many for the processor to foresee
          block[r] = r < there() ? Vec::load(at) : Vec::zero();
        }
        transpose(block);
#pragma GCC unroll 16
        for (int c = 0; c < Vec::width; c++) block[c].store(out + (k + c) * width + i);
      }
    };
    if (rows - i >= Vec::width)
      pack(std::integral_constant<int, Vec::width>{});
    else if (rows == width)
      pack(std::integral_constant<int, width - last>{});
    for (; k < deep; k++)
      for (int64_t r = i; r < smaller(width, i + Vec::width); r++) out[k * width + r] = r < rows ? from[r * step + k] : 0.0f;
  }
}

// An operand of a product: pack<width>() lays terms k0 to k1 of `rows` rows (of the right operand: columns) from i0 on in strips.
// This one is a matrix: element (i, k) at data[i * row_step + k * term_step].
template <class Sum, class T>
struct Strided {
  const T* data;
  int64_t row_step, term_step;
  Strided from(int64_t row) const { return {data + row * row_step, row_step, term_step}; }
  Sum operator()(int64_t i, int64_t k) const { return Sum(widen(data[i * row_step + k * term_step])); }
  template <int64_t width>
  void pack(int64_t i0, int64_t rows, int64_t k0, int64_t k1, Sum* out, int64_t apart) const {
    const T* const at = data + i0 * row_step + k0 * term_step;
    const int64_t deep = k1 - k0;
    if constexpr (std::is_same_v<T, float>)
      if (term_step == 1) {
        for (int64_t i = 0; i < rows; i += width, out += apart)
          pack_strip<width>(at + i * row_step, row_step, smaller(width, rows - i), deep, out);
        return;
      }
    if (row_step == 1) {
      constexpr int64_t together = 4 * width, ahead = 8;
      for (int64_t i = 0; i < rows; i += together)
        for (int64_t k = 0; k < deep; k++) {
          const T* const line = at + k * term_step + i;
          const int64_t count = smaller(together, rows - i);
          for (int64_t j = 0; j < count; j += 64 / sizeof(T)) __builtin_prefetch(line + ahead * term_step + j);  // too short to be foreseen
          scatter<width>(line, count, out + i / width * apart + k * width, apart);
        }
      return;
    }
    for (int64_t i = 0; i < rows; i += width, out += apart)
      for (int64_t k = 0; k < deep; k++)
        for (int64_t r = 0; r < width; r++) out[k * width + r] = i + r < rows ? (*this)(i0 + i + r, k0 + k) : Sum(0);
  }
};

// What is packed at once: rows of the left operand, whose strips fit the second cache with a strip of the right one; columns of that.
template <class Sum>
constexpr int64_t most_rows = 96 * 4 / sizeof(Sum);
template <class Sum>
constexpr int64_t most_columns = 512 * 4 / sizeof(Sum);

// An operand whose terms are written one by one: terms(k, first, last, out) writes rows `first` to `last`, as neighbours.
template <class Sum, class Write>
struct Terms {
  Write write;
  template <int64_t width>
  void pack(int64_t i0, int64_t rows, int64_t k0, int64_t k1, Sum* out, int64_t apart) const {
    Sum line[most_columns<Sum>];
    for (int64_t k = k0; k < k1; k++, out += width) {
      write(k, i0, i0 + rows, line);
      scatter<width>(line, rows, out, apart);
    }
  }
};
template <class Sum, class Write>
static inline Terms<Sum, Write> terms(const Write& write) {
  return {write};
}

// An operand whose rows are written one by one: write(i, k0, k1, out).
template <class Sum, class Write>
struct Rows {
  Write write;
  template <int64_t width>
  void pack(int64_t i0, int64_t rows, int64_t k0, int64_t k1, Sum* out, int64_t apart) const {
    Sum line[depth_block];
    for (int64_t i = 0; i < divide_up(rows, width) * width; i++) {
      if (i < rows)
        write(i0 + i, k0, k1, line);
      else
        std::memset(line, 0, sizeof line);
      Sum* const to = out + i / width * apart + i % width;
      for (int64_t k = 0; k < k1 - k0; k++) to[k * width] = line[k];
    }
  }
};
template <class Sum, class Write>
static inline Rows<Sum, Write> rows_of(const Write& write) {
  return {write};
}

// c = left * right, for any number of rows and most_columns columns at most; a row of c begins `pitch` after the last. Each element is
// summed in blocks of the depth, in order: its bits depend on no size but the depth.
template <class Sum, class Left, class Right>
static inline void product_sums(
    int64_t rows, int64_t columns, int64_t depth, const Left& left, const Right& right, Sum* c, int64_t pitch) {
  using T = Tile<Sum>;
  constexpr int64_t beyond = 64 / sizeof(Sum);  // for what is stored beyond a strip; and so that strips do not share sets of a cache
  constexpr int64_t left_strip = T::rows * depth_block + beyond, right_strip = T::columns * depth_block + beyond;
  alignas(64) Sum a[most_rows<Sum> / T::rows * left_strip];
  alignas(64) Sum b[most_columns<Sum> / T::columns * right_strip];
  alignas(64) Sum edge[T::rows * T::columns];
  for (int64_t i = 0; i < rows; i++) std::memset(c + i * pitch, 0, sizeof(Sum) * columns);
  for (int64_t k0 = 0; k0 < depth; k0 += depth_block) {
    const int64_t k1 = smaller(depth, k0 + depth_block);
    right.template pack<T::columns>(0, columns, k0, k1, b, right_strip);
    for (int64_t i0 = 0; i0 < rows; i0 += most_rows<Sum>) {
      const int64_t count = smaller(most_rows<Sum>, rows - i0);
      left.template pack<T::rows>(i0, count, k0, k1, a, left_strip);
      for (int64_t j = 0; j < columns; j += T::columns)
        for (int64_t i = 0; i < count; i += T::rows) {
          Sum* const to = c + (i0 + i) * pitch + j;
          const Sum *const of_left = a + i / T::rows * left_strip, *const of_right = b + j / T::columns * right_strip;
          const int64_t down = smaller(T::rows, count - i), across = smaller(T::columns, columns - j);
          if (down == T::rows && across == T::columns) {
            for (int64_t r = 0; r < T::rows; r++) __builtin_prefetch(to + r * pitch, 1);
            T::product(k1 - k0, of_left, of_right, to, pitch);
            continue;
          }
          std::memset(edge, 0, sizeof edge);
          T::product(k1 - k0, of_left, of_right, edge, T::columns);
          for (int64_t r = 0; r < down; r++)
            for (int64_t s = 0; s < across; s++) to[r * pitch + s] += edge[r * T::columns + s];
        }
    }
  }
}

// The same, where results do not lie as sums do: store(i, values, columns) takes each row. At most stored_rows x stored_columns elements.
template <class Sum>
constexpr int64_t stored_rows = most_rows<Sum>;
template <class Sum>
constexpr int64_t stored_columns = most_columns<Sum> / 2;
template <class Sum, class Left, class Right, class Store>
static inline void product_rows(int64_t rows, int64_t columns, int64_t depth, const Left& left, const Right& right, const Store& store) {
  alignas(64) Sum c[stored_rows<Sum> * stored_columns<Sum>];
  product_sums<Sum>(rows, columns, depth, left, right, c, columns);
  for (int64_t i = 0; i < rows; i++) store(i, c + i * columns, columns);
}

// The same of results of type T, which are rounded if that is not the type of sums: then at most stored_rows x stored_columns elements.
template <class T, class Left, class Right>
static inline void product_into(
    int64_t rows, int64_t columns, int64_t depth, const Left& left, const Right& right, T* c, int64_t pitch) {
  using Sum = typename SumOf<T>::type;
  if constexpr (std::is_same_v<T, Sum>)
    product_sums<Sum>(rows, columns, depth, left, right, c, pitch);
  else
    product_rows<Sum>(rows, columns, depth, left, right, [&](int64_t i, const Sum* sums, int64_t count) {
      for (int64_t j = 0; j < count; j++) c[i * pitch + j] = from_double<T>(sums[j]);
    });
}

// How results of rows x columns are cut for threads, each of which packs both operands for its part: as few parts as keep all of them busy.
// There are `others` such results. The bits do not depend on it.
class Parts {
 public:
  // For product_rows.
  template <class Sum>
  static Parts stored(int64_t rows, int64_t columns, int64_t others, int threads) {
    return {rows, columns, stored_rows<Sum>, stored_columns<Sum>, others, threads};
  }
  // For product_into.
  template <class T>
  static Parts of(int64_t rows, int64_t columns, int64_t others, int threads) {
    using Sum = typename SumOf<T>::type;
    if (!std::is_same_v<T, Sum>) return stored<Sum>(rows, columns, others, threads);
    return {rows, columns, 8 * most_rows<Sum>, most_columns<Sum>, others, threads};
  }
  int64_t count() const { return divide_up(rows_, down_) * divide_up(columns_, across_); }
  // body(first row, rows, first column, columns) of a part.
  template <class Body>
  void at(int64_t index, const Body& body) const {
    const int64_t along = divide_up(columns_, across_), i = index / along * down_, j = index % along * across_;
    body(i, smaller(down_, rows_ - i), j, smaller(across_, columns_ - j));
  }

 private:
  Parts(int64_t rows, int64_t columns, int64_t down, int64_t across, int64_t others, int threads) : rows_(rows), columns_(columns) {
    constexpr int64_t least_rows = 48, least_columns = 64;
    int64_t row_parts = divide_up(rows, down), column_parts = divide_up(columns, across);
    while (true) {
      const int64_t all = row_parts * column_parts * others;
      const bool can_rows = rows >= (row_parts + 1) * least_rows, can_columns = columns >= (column_parts + 1) * least_columns;
      if (all % threads == 0 || all >= 4 * threads || !(can_rows || can_columns)) break;
      if (can_rows && (!can_columns || rows * column_parts >= columns * row_parts))
        row_parts++;
      else
        column_parts++;
    }
    const auto each = [](int64_t size, int64_t parts, int64_t unit) { return divide_up(divide_up(size, parts), unit) * unit; };
    down_ = each(rows, row_parts, tile_rows);
    across_ = each(columns, column_parts, tile_columns);
  }
  int64_t rows_, columns_, down_, across_;
};

}  // namespace msctx::MSCTX_ISA
