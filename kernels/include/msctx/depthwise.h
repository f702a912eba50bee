// The sums of a depthwise convolution, with channels as lanes: result(i, j) = sum over (u, v) of kernel(u, v) * source(i, j, u, v).
// Forward the kernel is w and the source x; for the gradient of x it is w and y; for that of w it is y and x.
#pragma once

#include "msctx/lanes.h"
#include "msctx/epilogue.h"

namespace msctx::MSCTX_ISA {

constexpr int64_t sum_length = 128;  // products summed from zero before they join the total, as in matmuls: for the error

// One axis. Result i is at result + i * result_step; term u of its sum is the product of the kernel at kernel + u * kernel_step and
// the source at source + i * source_step + u * term_step.
struct SumAxis {
  int64_t results, result, result_step;
  int64_t terms, kernel, kernel_step;
  int64_t source, source_step, term_step;
};

// What lies along an axis of the source: zeros, but for begin to end.
struct SumRange {
  int64_t begin, end;
};

// `pitch` floats from one row to the next, and `step` from a column to the next. What is `bare` has no zeros around: nothing is read there.
struct Source {
  const float* data;
  SumRange rows, columns;
  int64_t pitch, step;
  bool bare;
};

// Of one block of channels, or of `blocks` whole ones side by side in a bare source and in the result: then lines of the cache are read once.
struct Sums {
  SumAxis rows, columns;
  const float* kernel;
  int64_t kernel_pitch;  // floats from one row to the next; from a column to the next it is `lanes`
  Source source;
  float* result;
  int64_t result_pitch, result_column;
  int count;  // of the lanes are stored
  bool add;   // to what is there
  const Finish* finish;  // of each block
  const float* other = nullptr;  // for it: laid out as the result
  int64_t blocks = 1, kernel_apart = 0;
};

// What becomes of products with the zeros around the source.
enum class Zeros {
  skipped,     // as far as no others are lost: where the kernel is finite they add nothing
  multiplied,  // Inf or NaN times zero counts
  excluded,    // they do not exist
};

// Products are summed row by row of the kernel, these many rows from zero.
static inline int64_t rows_at_once(int64_t columns) { return larger(1, sum_length / larger(1, columns)); }

// What `terms` rows of `columns` products may be off, in units of rounding.
static inline int64_t sum_chain(int64_t terms, int64_t columns) {
  const int64_t once = rows_at_once(columns);
  return smaller(terms, once) * columns + divide_up(terms, once);
}

// --- a block of results in registers ----------------------------------------------------------------------------------

constexpr int64_t most_rows = 4, most_columns = 7, most_results = registers - 2;

// `extent` in blocks of one length, at most `most`.
static inline int64_t block_of(int64_t extent, int64_t most) { return extent < 1 ? 1 : divide_up(extent, divide_up(extent, most)); }

struct Span {
  int64_t begin, end;
};
// The terms that meet anything but zeros for one of `count` results from i on; exactly those, where count is 1.
static inline Span terms_of(const SumAxis& axis, const SumRange& range, int64_t i, int64_t count) {
  const int64_t first = axis.source + i * axis.source_step, last = first + (count - 1) * axis.source_step, step = axis.term_step;
  if (range.begin >= range.end) return {0, 0};
  const int64_t begin = range.begin > last ? divide_up(range.begin - last, step) : 0;
  const int64_t end = range.end > first ? smaller(axis.terms, divide_up(range.end - first, step)) : 0;
  return {begin, larger(begin, end)};
}

// A block of results, the first of them and the terms of all; where it goes. By reference: a copy on the stack waits for stores.
struct Block {
  int64_t block, i, j;
  Span rows, columns;
  float* to;
  int64_t pitch, column;
  const Ending* ending = nullptr;  // if they are finished as they are stored
  const float* other = nullptr;      // what that adds, at the first result
};

// The totals of height x width results, each a vector; `step`: columns.source_step, where it is a constant, or 0.
// The order of the additions is that of the kernel, whatever the block. The last one, to a total that begins with +0, makes +0 of -0,
// so that zeros may be skipped or not.
template <int height, int width, int step>
static void sum_block(const Sums& s, const Block& b) {
  const int64_t apart = s.source.step;
  const int64_t right = (step ? step : s.columns.source_step) * apart, down = s.rows.source_step * s.source.pitch;
  const int64_t source_step = s.columns.term_step * apart, kernel_step = s.columns.kernel_step * lanes;
  const int64_t once = rows_at_once(s.columns.terms);
  const float* source = s.source.data + b.block * lanes + (s.rows.source + b.i * s.rows.source_step) * s.source.pitch +
                        (s.columns.source + b.j * s.columns.source_step + b.columns.begin * s.columns.term_step) * apart;
  const float* kernel = s.kernel + b.block * s.kernel_apart + s.rows.kernel * s.kernel_pitch +
                        (s.columns.kernel + b.columns.begin * s.columns.kernel_step) * lanes;
  bool more = false;
  int64_t u = b.rows.begin;
  do {
    Vec sum[height][width];
#pragma GCC unroll 8
    for (int r = 0; r < height; r++)
#pragma GCC unroll 8
      for (int c = 0; c < width; c++) sum[r][c] = Vec::zero();
    for (const int64_t end = smaller(b.rows.end, (u / once + 1) * once); u < end; u++) {
      const float* factor = kernel + u * s.rows.kernel_step * s.kernel_pitch;
      const float* from[height];
      for (int r = 0; r < height; r++) from[r] = source + u * s.rows.term_step * s.source.pitch + r * down;
      for (int64_t v = b.columns.begin; v < b.columns.end; v++) {
        const Vec left = Vec::load(factor);
#pragma GCC unroll 8
        for (int r = 0; r < height; r++) {
#pragma GCC unroll 8
          for (int c = 0; c < width; c++) sum[r][c] = fma(left, Vec::load(from[r] + c * right), sum[r][c]);
          from[r] += source_step;
        }
        factor += kernel_step;
      }
    }
    const bool is_last = u >= b.rows.end;
    const auto store = [&](const auto& finished) {
#pragma GCC unroll 8
      for (int r = 0; r < height; r++)
#pragma GCC unroll 8
        for (int c = 0; c < width; c++) {
          const int64_t at = r * b.pitch + c * b.column;
          finished((more ? Vec::load(b.to + at) : Vec::zero()) + sum[r][c], at).store(b.to + at);
        }
    };
    if (!b.ending || !is_last)
      store([](Vec total, int64_t) { return total; });
    else if (b.other)
      store([how = *b.ending, from = b.other](Vec total, int64_t at) { return how.by<true>(total, Vec::load(from + at)); });
    else
      store([how = *b.ending](Vec total, int64_t) { return how.by<false>(total, Vec::zero()); });
    more = true;
  } while (u < b.rows.end);
}

using SumBlock = void (*)(const Sums&, const Block&);

template <int height, int width, int step>
constexpr SumBlock block_sum() {
  if constexpr (height * width <= most_results && (step || height == 1))
    return sum_block<height, width, step>;
  else
    return nullptr;
}
template <int height, int step>
constexpr SumBlock block_sums[most_columns] = {block_sum<height, 1, step>(), block_sum<height, 2, step>(), block_sum<height, 3, step>(),
                                               block_sum<height, 4, step>(), block_sum<height, 5, step>(), block_sum<height, 6, step>(),
                                               block_sum<height, 7, step>()};
constexpr const SumBlock* sums_of_step[3][most_rows] = {
    {block_sums<1, 0>},
    {block_sums<1, 1>, block_sums<2, 1>, block_sums<3, 1>, block_sums<4, 1>},
    {block_sums<1, 2>, block_sums<2, 2>, block_sums<3, 2>, block_sums<4, 2>}};

// The results whose terms are all there.
static inline SumRange inner_of(const SumAxis& axis, const SumRange& range) {
  const int64_t last = axis.source + (axis.terms - 1) * axis.term_step;
  return {divide_up(range.begin - axis.source, axis.source_step), smaller(axis.results, divide_up(range.end - last, axis.source_step))};
}

// A block of totals, finished, to where they go: all of their lanes (`whole`) or those that count. Its loop reads copies:
// as far as the compiler knows, a store might change everything else.
template <Activation activation, bool whole>
static void store_block(const Sums& s, const float* totals, int64_t rows, int64_t columns, const Block& b) {
  const Finish finish = s.finish[b.block];
  const int64_t pitch = b.pitch, column = b.column;
  const int count = s.count;
  const bool add = s.add, others = s.other;
  const auto read = [count](const float* from) { return whole ? Vec::load(from) : Vec::load(from, count); };
  float* to = b.to;
  const float* other = others ? s.other + (b.to - s.result) : b.to;
  for (int64_t r = 0; r < rows; r++, to += pitch, other += pitch)
    for (int64_t c = 0; c < columns; c++, totals += lanes) {
      float* const at = to + c * column;
      Vec total = Vec::load(totals);
      if (add) total = read(at) + total;
      total = finish.by(total, others ? read(other + c * column) : Vec::zero(), activation);
      whole ? total.store(at) : total.store(at, count);
    }
}

static inline void run_sums(const Sums& s, Zeros zeros) {
  const bool single = zeros == Zeros::excluded, all = zeros == Zeros::multiplied;
  const int64_t step = s.columns.source_step;
  const int64_t width = single ? 1 : block_of(s.columns.results, most_columns);
  const int64_t height = single || step > 2 ? 1 : block_of(s.rows.results, smaller(most_rows, most_results / width));
  const SumRange inner_rows = inner_of(s.rows, s.source.rows), inner_columns = inner_of(s.columns, s.source.columns);
  // Results that miss some of their terms are computed one by one, where these are not zeros.
  const auto count_at = [&s](const SumAxis& axis, const SumRange& inner, int64_t i, int64_t most) {
    if (!s.source.bare) return smaller(most, axis.results - i);
    return i < inner.begin || i >= inner.end ? 1 : smaller(most, inner.end - i);
  };
  alignas(64) float part[most_results * lanes];
  for (int64_t i = 0, down; i < s.rows.results; i += down) {
    down = count_at(s.rows, inner_rows, i, height);
    const Span rows = all ? Span{0, s.rows.terms} : terms_of(s.rows, s.source.rows, i, down);
    for (int64_t j = 0, across; j < s.columns.results; j += across) {
      across = count_at(s.columns, inner_columns, j, width);
      const Span columns = all ? Span{0, s.columns.terms} : terms_of(s.columns, s.source.columns, j, across);
      const SumBlock block = sums_of_step[step > 2 ? 0 : step][down - 1][across - 1];
      const int64_t pitch = s.rows.result_step * s.result_pitch, column = s.columns.result_step * s.result_column;
      float* const first = s.result + (s.rows.result + i * s.rows.result_step) * s.result_pitch +
                           (s.columns.result + j * s.columns.result_step) * s.result_column;
      if (s.count == lanes && !s.add && s.finish->only_clamps()) {
        for (int64_t b = 0; b < s.blocks; b++) {
          const Ending* const ending = s.finish[b].is_needed() ? &s.finish[b].ending() : nullptr;
          const float* const other = s.other ? s.other + (first + b * lanes - s.result) : nullptr;
          block(s, {b, i, j, rows, columns, first + b * lanes, pitch, column, ending, other});
        }
        continue;
      }
      s.finish->with_activation([&]<Activation activation>() {
        const auto store = s.count == lanes ? store_block<activation, true> : store_block<activation, false>;
        for (int64_t b = 0; b < s.blocks; b++) {
          block(s, {b, i, j, rows, columns, part, across * lanes, lanes});
          store(s, part, down, across, {b, i, j, rows, columns, first + b * lanes, pitch, column});
        }
      });
    }
  }
}

}  // namespace msctx::MSCTX_ISA
