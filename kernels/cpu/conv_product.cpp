// strict: matrix products in FMAs of the values themselves (see Direction::matmul in table.h). The bits of a row depend neither on the
// other rows nor on the number of threads.

#include "vec.h"

#include "msctx/epilogue.h"
#include "msctx/few_rows.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {

void finish(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);

namespace {

// Multiplications for which packing is not worth it: the same sums in the same order.
constexpr int64_t tiny = 512;

// The epilogue on a piece of a row of float32 results: its place in the result, and the column of that.
void store_finished(const ConvTensors& t, const float* sums, int64_t n, float* result, int64_t place, int64_t column) {
  for (int64_t j = 0; j < n; j += Vec::width) {
    const int count = int(smaller(Vec::width, n - j));
    const Finish finish(t, column + j, count);
    const Vec other = finish.other() ? Vec::load(finish.other() + place + j, count) : Vec::zero();
    finish(Vec::load(sums + j, count), other).store(result + place + j, count);
  }
}

// Of a result in float32 whose rows are neighbours.
template <int rows>
void run_few(const FewRows& l, bool forward, const float* right, int64_t columns, const ConvTensors& t, float* result, const Parallel& parallel) {
  const int64_t each = forward ? few_rows_columns / 4 : few_rows_columns;
  parallel_for(parallel, divide_up(columns, each), [&](int64_t task, int) {
    const int64_t j0 = task * each, across = smaller(each, columns - j0);
    alignas(64) float totals[rows * few_rows_columns];
    if (forward)
      few_rows_of_lines<rows>(l, right + j0 * l.depth, l.depth, across, totals);
    else
      few_rows_of_neighbours<rows>(l, right + j0, columns, across, totals);
    for (int i = 0; i < rows; i++) {
      const float* const sums = totals + i * few_rows_columns;
      if (t.epilogue)
        store_finished(t, sums, across, result, i * columns + j0, j0);
      else
        std::memcpy(result + i * columns + j0, sums, sizeof(float) * across);
    }
  });
}

// Whether all results were finished as they were stored.
template <class T>
bool run_typed(const ConvProblem& p, Op op, const ConvTensors& t, const Parallel& parallel) {
  using Sum = typename SumOf<T>::type;
  const bool forward = op == Op::forward;
  const auto* const left = static_cast<const T*>(forward ? t.x : t.y);
  const auto* const right = static_cast<const T*>(t.w);
  auto* const result = static_cast<T*>(forward ? t.y : t.x);
  const int64_t depth = forward ? p.c : p.k, columns = forward ? p.k : p.c, positions = volume(p.in);
  const int64_t images = t.channels_last ? 1 : p.n, rows = t.channels_last ? p.n * positions : positions;
  const int64_t row_step = t.channels_last ? depth : 1, depth_step = t.channels_last ? 1 : positions;
  const int64_t result_row = t.channels_last ? columns : 1, result_column = t.channels_last ? 1 : positions;
  if (rows * columns * depth <= tiny) {
    for (int64_t image = 0; image < images; image++) {
      const T* const from = left + image * rows * depth;
      T* const to = result + image * rows * columns;
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
          const T* const w = forward ? right + j * depth : right + j;
          Sum total = 0, sum = 0;
          for (int64_t k = 0; k < depth; k++) {
            sum = fma(Sum(widen(from[i * row_step + k * depth_step])), Sum(widen(w[k * (forward ? 1 : columns)])), sum);
            if ((k + 1) % depth_block == 0) total += sum, sum = 0;
          }
          if (depth % depth_block) total += sum;
          to[i * result_row + j * result_column] = from_double<T>(total);
        }
    }
    return false;
  }
  if constexpr (std::is_same_v<T, float>)
    if (t.channels_last && rows <= most_few_rows) {
      constexpr decltype(&run_few<1>) of_rows[most_few_rows] = {
          run_few<1>, run_few<2>, run_few<3>, run_few<4>, run_few<5>, run_few<6>, run_few<7>, run_few<8>};
      of_rows[rows - 1]({left, depth}, forward, right, columns, t, result, parallel);
      return true;
    }
  const int64_t tasks = blocks<Sum>(rows, columns);
  parallel_for(parallel, images * tasks, [&](int64_t task, int) {
    const T* const from = left + task / tasks * rows * depth;
    T* const to = result + task / tasks * rows * columns;
    for_block<Sum>(task % tasks, rows, columns, [&](int64_t i0, int64_t count, int64_t j0, int64_t across) {
      const Strided<Sum, T> weights = forward ? Strided<Sum, T>{right + j0 * depth, depth, 1} : Strided<Sum, T>{right + j0, 1, columns};
      block_product<Sum>(
          count, across, depth, Strided<Sum, T>{from + i0 * row_step, row_step, depth_step}, weights,
          [&](int64_t i, const Sum* sums, int64_t n) {
            if constexpr (std::is_same_v<T, float>)
              if (t.epilogue && t.channels_last) return store_finished(t, sums, n, result, (i0 + i) * columns + j0, j0);
            T* const row = to + (i0 + i) * result_row + j0 * result_column;
            for (int64_t j = 0; j < n; j++) row[j * result_column] = from_double<T>(sums[j]);
          });
    });
  });
  return t.channels_last;
}

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  const bool is_product = has_unit(p.window) && has_unit(p.stride) && p.groups == 1 && volume(p.in) == volume(p.out);
  why.add_if(!is_product || op == Op::backward_weight, "it computes matrix products only");
}

size_t workspace(const ConvProblem&, Op, int) { return 0; }

double error(const ConvProblem& p, Op op) { return sum_error(p.dtype, op == Op::forward ? p.c : p.k); }

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  bool is_finished = false;
  with_type(p.dtype, [&](auto zero) { is_finished = run_typed<decltype(zero)>(p, op, t, parallel); });
  const bool forward = op == Op::forward;
  if (t.epilogue && !is_finished)
    finish(
        *t.epilogue, static_cast<float*>(forward ? t.y : t.x), p.n, forward ? p.k : p.c, volume(p.in), t.channels_last, parallel);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_product;
const ConvAlgorithm conv_product = {
    .name = "product",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
    .reads_channels_last = true,
    .finishes = true,
};

}  // namespace msctx::MSCTX_ISA
