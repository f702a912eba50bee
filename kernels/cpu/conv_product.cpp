// strict: matmuls in FMAs of the values themselves (see Direction::matmul in table.h), and the convolutions that are such products:
// windows of 1x1. The bits of a row depend neither on the other rows nor on the number of threads.

#include <utility>

#include "vec.h"

#include "msctx/epilogue.h"
#include "msctx/few_rows.h"
#include "msctx/packed_product.h"

namespace msctx::MSCTX_ISA {

void finish(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);

namespace {

// Multiplications for which packing is not worth it: the same sums in the same order.
constexpr int64_t tiny = 512;
// Those of a few rows for which waking a thread is not.
constexpr int64_t few = 1 << 18;

// Of a result in float32 whose rows are neighbours.
template <int rows>
void run_few(
    const FewRows& l, bool forward, const float* right, int64_t columns, const ConvTensors& t, float* result, const Parallel& parallel) {
  // Threads take equal numbers of equal tasks.
  const int64_t share = divide_up(columns, parallel.threads), most = forward ? few_rows_columns / 4 : few_rows_columns;
  const int64_t each = divide_up(divide_up(share, divide_up(share, most)), Vec::width) * Vec::width, tasks = divide_up(columns, each);
  const auto compute = [&](int64_t task, int) {
    const int64_t j0 = task * each, across = smaller(each, columns - j0);
    alignas(64) float totals[rows * few_rows_columns];
    if (forward)
      few_rows_of_lines<rows>(l, right + j0 * l.depth, l.depth, across, totals);
    else
      few_rows_of_neighbours<rows>(l, right + j0, columns, across, totals);
    store_rows(t, rows, across, totals, few_rows_columns, result, j0, columns, j0);
  };
  if (rows * columns * l.depth > few) return parallel_for(parallel, tasks, compute);
  for (int64_t task = 0; task < tasks; task++) compute(task, 0);
}

// Of a result in float32, by the panels of the right operand.
void run_packed(
    const float* left, int64_t rows, int64_t columns, int64_t depth, const float* panels, const ConvTensors& t, float* result,
    const Parallel& parallel) {
  const int64_t down = divide_up(rows, packed_rows), across = down % parallel.threads == 0 || down >= 4 * parallel.threads ? 1 : parallel.threads;
  const int64_t high = divide_up(rows, down), strips = strips_of(columns), wide = divide_up(strips, across);
  const auto compute = [&](int64_t task, int) {
    const int64_t i0 = task / across * high, first = task % across * wide, count = smaller(high, rows - i0);
    if (count <= 0 || first >= strips) return;
    MatrixRows of_left(left + i0 * depth, count, depth);
    const StoredRows to{t, count, result, i0, 0, columns};
    packed_product(first, smaller(strips, first + wide), columns, depth, of_left, KeptPanels{panels, depth}, to);
  };
  if (rows * columns * depth > few) return parallel_for(parallel, down * across, compute);
  for (int64_t task = 0; task < down * across; task++) compute(task, 0);
}

// Whether all results were finished as they were stored.
template <class T>
bool run_typed(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, const Parallel& parallel) {
  using Sum = typename SumOf<T>::type;
  const bool forward = op == Op::forward, by_position = t.channels_last;
  auto* const result = static_cast<T*>(forward ? t.y : t.x);
  const int64_t depth = forward ? p.c : p.k, channels = forward ? p.k : p.c;
  // Results are positions x channels in channels_last, otherwise channels x positions, image by image.
  const int64_t images = by_position ? 1 : p.n, positions = volume(p.in) * (by_position ? p.n : 1);
  const int64_t rows = by_position ? positions : channels, columns = by_position ? channels : positions;
  if constexpr (std::is_same_v<T, float>)
    if (const void* const panels = by_position && rows * columns * depth > tiny ? weight() : nullptr) {
      const auto* const left = static_cast<const T*>(forward ? t.x : t.y);
      run_packed(left, rows, columns, depth, static_cast<const float*>(panels), t, result, parallel);
      return true;
    }
  const auto* const weights = static_cast<const T*>(t.w ? t.w : weight(plain_weight));
  const auto left_and_right = [&](int64_t image) {
    using Operand = Strided<Sum, T>;
    const T* const values = static_cast<const T*>(forward ? t.x : t.y) + image * positions * depth;
    const Operand of_values{values, by_position ? depth : 1, by_position ? 1 : positions};
    const Operand of_weights{weights, forward ? depth : 1, forward ? 1 : channels};
    return by_position ? std::pair(of_values, of_weights) : std::pair(of_weights, of_values);
  };
  if (rows * columns * depth <= tiny) {
    for (int64_t image = 0; image < images; image++) {
      const auto [left, right] = left_and_right(image);
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
          Sum total = 0, sum = 0;
          for (int64_t k = 0; k < depth; k++) {
            sum = fma(left(i, k), right(j, k), sum);
            if ((k + 1) % depth_block == 0) total += sum, sum = 0;
          }
          if (depth % depth_block) total += sum;
          result[(image * rows + i) * columns + j] = from_double<T>(total);
        }
    }
    return false;
  }
  if constexpr (std::is_same_v<T, float>)
    if (by_position && rows <= most_few_rows) {
      constexpr decltype(&run_few<1>) of_rows[most_few_rows] = {
          run_few<1>, run_few<2>, run_few<3>, run_few<4>, run_few<5>, run_few<6>, run_few<7>, run_few<8>};
      of_rows[rows - 1]({static_cast<const T*>(forward ? t.x : t.y), depth}, forward, weights, columns, t, result, parallel);
      return true;
    }
  const auto parts = Parts::of<T>(rows, columns, images, parallel.threads);
  parallel_for(parallel, images * parts.count(), [&](int64_t task, int) {
    const int64_t image = task / parts.count();
    const auto [left, right] = left_and_right(image);
    parts.at(task % parts.count(), [&](int64_t i0, int64_t count, int64_t j0, int64_t across) {
      T* const to = result + (image * rows + i0) * columns + j0;
      product_into(count, across, depth, left.from(i0), right.from(j0), to, columns);
      if constexpr (std::is_same_v<T, float>)
        if (t.epilogue && by_position) store_rows(t, count, across, to, columns, result, i0 * columns + j0, columns, j0);
    });
  });
  return by_position;
}

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  bool is_product = has_unit(p.window) && has_unit(p.stride) && p.groups == 1;
  for (int i = 0; i < 3; i++) is_product &= p.in[i] == p.out[i] && p.pad[i] == 0;
  why.add_if(!is_product || op == Op::backward_weight, "it computes matmuls only");
}

double error(const ConvProblem& p, Op op) { return sum_error(p.dtype, op == Op::forward ? p.c : p.k); }

size_t prepared_size(const ConvProblem& p, Op op, int) {
  const bool forward = op == Op::forward;
  return p.dtype == DType::f32 ? sizeof(float) * size_t(panels_columns(forward ? p.k : p.c) * (forward ? p.c : p.k)) : 0;
}
void prepare(const ConvProblem& p, Op op, int, const void* w, void* prepared, const Parallel& parallel) {
  const bool forward = op == Op::forward;
  const int64_t columns = forward ? p.k : p.c, depth = forward ? p.c : p.k;
  const Strided<float, float> right{static_cast<const float*>(w), forward ? depth : 1, forward ? 1 : columns};
  make_panels(right, columns, depth, static_cast<float*>(prepared), parallel);
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void*, const Parallel& parallel) {
  bool is_finished = false;
  with_type(p.dtype, [&](auto zero) { is_finished = run_typed<decltype(zero)>(p, op, t, weight, parallel); });
  const bool forward = op == Op::forward;
  if (t.epilogue && !is_finished)
    finish(
        *t.epilogue, static_cast<float*>(forward ? t.y : t.x), p.n, forward ? p.k : p.c, volume(p.in), t.channels_last, parallel);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_product = {
    .name = "product",
    .reasons = reasons,
    .error = error,
    .run = run,
    .reads_channels_last = true,
    .finishes = true,
    .prepared_size = prepared_size,
    .prepare = prepare,
    .prepared_for_all_sizes = true,
    .prepared_if_kept = true,
};

}  // namespace msctx::MSCTX_ISA
