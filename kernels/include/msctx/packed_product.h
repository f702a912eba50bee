// Products by panels of the right operand, whose left one is read where it lies. The sums are those of matrix_product.h, in its order.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "msctx/epilogue.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {

// What is read of the left operand for some rows of a result, and stays in the second cache: processors with vectors of 16 lanes have one of
// 1 MB or more. Rows that are copied are copied to the stack.
constexpr int64_t packed_rows = Vec::width == 16 ? 128 : 96, copied_depth = 4 * depth_block;
constexpr int64_t packed_depth = Vec::width == 16 ? 8 * depth_block : copied_depth;

// The panels of a right operand: [strip of columns][term][column], with zeros after the last column. A strip has tile_columns; where one vector
// at most would remain for a last strip, the strip before it takes it. Where all columns fit one vector, the only strip is that vector.
constexpr int wide_vectors = tile_vectors + 1, wide_columns = wide_vectors * Vec::width, wide_rows = tile_rows * tile_vectors / wide_vectors;
static inline int64_t strips_of(int64_t columns) { return larger(1, (columns + tile_columns - Vec::width - 1) / tile_columns); }
static inline int64_t width_of(int64_t strip, int64_t columns) {
  const int64_t left = columns - strip * tile_columns;
  return left <= Vec::width ? Vec::width : strip + 1 == strips_of(columns) && left > tile_columns ? wide_columns : tile_columns;
}
static inline int64_t panels_columns(int64_t columns) {
  const int64_t last = strips_of(columns) - 1;
  return last * tile_columns + width_of(last, columns);
}
template <class Body>
static inline void with_vectors(int64_t width, const Body& body) {
  if (width == tile_columns) return body(std::integral_constant<int, tile_vectors>());
  if (width == wide_columns) return body(std::integral_constant<int, wide_vectors>());
  body(std::integral_constant<int, 1>());
}
static inline void make_panels(const Strided<float, float>& right, int64_t columns, int64_t depth, float* panels, const Parallel& parallel) {
  parallel_for(parallel, strips_of(columns), [&](int64_t strip, int) {
    const int64_t j = strip * tile_columns, width = width_of(strip, columns), count = smaller(width, columns - j);
    with_vectors(width, [&]<int vectors>(std::integral_constant<int, vectors>) {
      right.template pack<vectors * Vec::width>(j, count, 0, depth, panels + j * depth, 0);
    });
  });
}

// Rows of a matrix, whose terms are neighbours.
class MatrixRows {
 public:
  static constexpr int64_t most_rows = packed_rows;
  MatrixRows(const float* data, int64_t rows, int64_t depth) : data_(data), rows_(rows), depth_(depth), step_(depth % page ? depth : apart) {}
  int64_t terms_of_part() const { return step_ == depth_ ? packed_depth : copied_depth; }
  // Before terms `from` to `to` are read.
  void begin(int64_t from, int64_t to) {
    at_ = data_ + from;
    if (step_ == depth_) return;
    for (int64_t i = 0; i < rows_; i++) std::memcpy(copies_ + i * apart, data_ + i * depth_ + from, sizeof(float) * size_t(to - from));
    at_ = copies_;
  }
  // `rows` rows from `row` on, at term `term` of the part: (i) is the value of row i, next() goes to the next term.
  template <int rows>
  auto rows_from(int64_t row, int64_t term) const {
    constexpr int together = 3;  // rows whose addresses are a register and multiples of the step
    struct {
      const float* at[(rows + together - 1) / together];
      int64_t step;
      float operator()(int i) const { return at[i / together][i % together * step]; }
      void next() {
#pragma GCC unroll 16
        for (auto& one : at) one++;
      }
    } found;
    found.step = step_;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i += together) found.at[i / together] = at_ + (row + i) * step_ + term;
    return found;
  }

 private:
  static constexpr int64_t page = 1024, apart = copied_depth + 16;  // rows whole pages apart compete for a few ways of the first cache: they are copied
  const float *data_, *at_ = nullptr;
  int64_t rows_, depth_, step_;
  alignas(64) float copies_[packed_rows * apart];
};

// How the last sums of a strip become results. `across` of its columns are stored, of the last vector `last` lanes; results, and what is added
// to them, begin at `place`.
struct Endings {
  Ending vectors[wide_vectors];
  const float* other;
  float* result;
  int64_t columns;
  int last;
  Endings(const Epilogue* e, int64_t channel, int64_t across, float* to, int64_t place, int64_t pitch)
      : other(e && e->other ? e->other + place : nullptr), result(to + place), columns(pitch), last(int((across - 1) % Vec::width) + 1) {
    const ConvTensors finished{.epilogue = e};  // without peaks: those are for results that are checked
    for (int64_t j = 0; e && j < across; j += Vec::width)
      vectors[j / Vec::width] = Finish(finished, channel + j, int(smaller(Vec::width, across - j))).ending();
  }
};

// c[i][j] += the sum over k of left(i, k) * b[k][j], from zero and in order, for `rows` rows of `vectors` vectors. `is_first`: there is
// nothing to add to but 0, which -0 becomes. With `endings` the sums are finished and stored as results, not in c. The next panel follows b:
// each tile of `turns`, whose turn is `turn`, fetches its share of the lines; one that is alone fetches what it reads 48 terms later.
template <class Left, bool is_first, int vectors, int rows>
static inline void rows_by_panel(
    int64_t depth, const Left& left, int64_t row, int64_t term, const float* b, float* c, const Endings* endings, int64_t turn, int64_t turns) {
  constexpr int columns = vectors * Vec::width;
  auto at = left.template rows_from<rows>(row, term);
  Vec sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) sum[i][j] = Vec::zero();
  const int64_t share = divide_up(depth * columns, turns), each = divide_up(columns, turns);
  const float* ahead = b + (turns == 1 ? 48 * columns : depth * columns + turn * share);
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; k++, b += columns, ahead += each) {
    __builtin_prefetch(ahead, 0, 3);
    for (int64_t j = 16; j < each; j += 16) __builtin_prefetch(ahead + j, 0, 3);  // of a single tile
    Vec right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) right[j] = Vec::load(b + j * Vec::width);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      const Vec value = Vec::all(at(i));
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) sum[i][j] = fma(value, right[j], sum[i][j]);
    }
    at.next();
  }
  const auto total = [&](int i, int j) { return (is_first ? Vec::zero() : Vec::load(c + i * columns + j * Vec::width)) + sum[i][j]; };
  if (!endings) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) total(i, j).store(c + i * columns + j * Vec::width);
    return;
  }
  const auto finish = [&]<bool adds>(std::bool_constant<adds>) {
    const int64_t pitch = endings->columns;
    const int last = endings->last;
    float* to = endings->result + row * pitch;
    const float* other = adds ? endings->other + row * pitch : to;
    Ending ends[vectors];  // copies: as far as the compiler knows, a store might change others
    for (int j = 0; j < vectors; j++) ends[j] = endings->vectors[j];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, to += pitch, other += pitch)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) {
        const int at = j * Vec::width;
        if (j + 1 < vectors || last == Vec::width)
          ends[j].template by<adds>(total(i, j), adds ? Vec::load(other + at) : Vec::zero()).store(to + at);
        else
          ends[j].template by<adds>(total(i, j), adds ? Vec::load(other + at, last) : Vec::zero()).store(to + at, last);
      }
  };
  endings->other ? finish(std::true_type()) : finish(std::false_type());
}
template <class Left, bool is_first, int vectors, int... less>
constexpr auto each_of(std::integer_sequence<int, less...>) {
  return std::array{rows_by_panel<Left, is_first, vectors, less + 1>...};
}
template <class Left, bool is_first, int vectors>
constexpr auto rows_by_panel_of = each_of<Left, is_first, vectors>(std::make_integer_sequence<int, vectors == wide_vectors ? wide_rows : tile_rows>());

// Columns j to j + width of a right operand, terms k on, in a panel that make_panels() has made; or in one that is made now.
struct KeptPanels {
  const float* panels;
  int64_t depth;
  template <int64_t width>
  const float* operator()(int64_t j, int64_t, int64_t k, int64_t) { return panels + j * depth + k * width; }
};
class FreshPanels {
 public:
  explicit FreshPanels(Strided<float, float> right) : right_(right) {}
  template <int64_t width>
  const float* operator()(int64_t j, int64_t count, int64_t k, int64_t deep) {
    right_.template pack<width>(j, count, k, k + deep, panel_, 0);
    return panel_;
  }

 private:
  Strided<float, float> right_;
  alignas(64) float panel_[depth_block * wide_columns];
};

// Some rows of a float32 result with `channels` neighbours for each position, from position `at` and channel `first` on.
struct StoredRows {
  const ConvTensors& t;
  int64_t rows;
  float* result;
  int64_t at, first, channels;
  // What of the sums from column j on has been stored, into rows of `width`.
  void load(int64_t j, int64_t count, float* sums, int64_t width) const {
    for (int64_t i = 0; i < rows; i++)
      std::memcpy(sums + i * width, result + (at + i) * channels + first + j, sizeof(float) * size_t(count));
  }
  // Prefetches the cache lines of rows `from` to `to`: the epilogue would wait for them.
  void fetch(int64_t j, int64_t from, int64_t to) const {
    for (int64_t i = from; i < to; i++) __builtin_prefetch(result + (at + i) * channels + first + j, 1, 3);
  }
  Endings endings(int64_t j, int64_t count) const { return {t.epilogue, first + j, count, result, at * channels + first + j, channels}; }
  // `are_all`: no terms are missing, so they are finished, too.
  void store(int64_t j, int64_t count, const float* sums, int64_t width, bool are_all) const {
    ConvTensors part = t;
    if (!are_all) part.epilogue = nullptr;
    store_rows(part, rows, count, sums, width, result, at * channels + first + j, channels, first + j);
  }
};

// Rows of a result of `columns`, at most Left::most_rows, in strips first to last.
template <class Left, class Right>
static inline void packed_product(
    int64_t first, int64_t last, int64_t columns, int64_t depth, Left& left, Right&& right, const StoredRows& result) {
  const int64_t rows = result.rows;
  alignas(64) float c[Left::most_rows * wide_columns];
  const bool only_clamps = Finish(ConvTensors{.epilogue = result.t.epilogue}, 0, 0).only_clamps();
  for (int64_t from = 0, to; from < depth; from = to) {
    to = smaller(depth, from + left.terms_of_part());
    left.begin(from, to);
    const bool finishes = only_clamps && to == depth;
    for (int64_t strip = first; strip < last; strip++) {
      const int64_t j = strip * tile_columns, width = width_of(strip, columns), across = smaller(width, columns - j);
      if (from) result.load(j, across, c, width);
      const std::optional<Endings> endings = finishes ? std::optional(result.endings(j, across)) : std::nullopt;
      with_vectors(width, [&]<int vectors>(std::integral_constant<int, vectors>) {
        const int64_t tiles = divide_up(rows, int64_t(rows_by_panel_of<Left, true, vectors>.size()));
        for (int64_t k = from, deep; k < to; k += deep) {
          deep = smaller(to, k + depth_block) - k;
          const float* const of_right = right.template operator()<vectors * Vec::width>(j, across, k, deep);
          const auto& tile = k ? rows_by_panel_of<Left, false, vectors> : rows_by_panel_of<Left, true, vectors>;
          for (int64_t i = 0, row = 0; i < tiles; i++) {
            const int64_t end = (i + 1) * rows / tiles;  // as equal as they can be
            if (k == from) result.fetch(j, row, end);
            const Endings* const last = finishes && k + deep == depth ? &*endings : nullptr;
            tile[size_t(end - row - 1)](deep, left, row, k - from, of_right, c + row * width, last, i, tiles);
            row = end;
          }
        }
      });
      if (!finishes) result.store(j, across, c, width, to == depth);
    }
  }
}

}  // namespace msctx::MSCTX_ISA
