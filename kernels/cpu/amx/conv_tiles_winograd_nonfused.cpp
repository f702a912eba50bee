// winograd_nonfused on AMX: the transforms of many tiles, 36 large products, and the transforms back, one after the other,
// by way of the workspace: the windows at a point are read once for all of them. See transformed.h.

#include "transformed_images.h"

namespace msctx::MSCTX_ISA {
namespace winograd_nonfused {
namespace {

constexpr int64_t workspace_bytes = 32 << 20;  // about what the tiles of a batch may take
constexpr int64_t task_tiles = 8, task_columns = 2;

// Batches of tiles are cut by the parts that are tried first.
template <class First>
int64_t batch_of(const Transformed<First>& l) {
  constexpr int64_t rows = Transformed<First>::rows_together;
  const int64_t each = l.source_bytes() + First::row_tiles * l.columns * l.sums_bytes;
  return smaller(larger(1, workspace_bytes / each), divide_up(l.tiles(), rows)) * rows;
}

template <class S>
struct Plan {
  Transformed<S> l;
  int64_t together;  // tiles in a batch
  Plan(const ConvProblem& p, Op op, int64_t together) : l(p, op), together(together) {}

  // Operands, sums [tile / 16][column], scales, what became of the tiles of each task, and a stage for each thread.
  size_t source_size() const { return align64(size_t(divide_up(together, l.rows_together) * l.source_bytes())); }
  size_t sums_size() const { return size_t(divide_up(together, l.rows_together) * S::row_tiles * l.columns * l.sums_bytes); }
  size_t scales_size() const { return align64(sizeof(Scale) * size_t(together)); }
  size_t outcomes_size() const { return align64(sizeof(Outcome) * size_t(divide_up(together, task_tiles))); }
  size_t stage_bytes() const { return align64(sizeof(float) * Sources<S>::stage_size(l)); }
  size_t size(int threads) const { return source_size() + sums_size() + scales_size() + outcomes_size() + size_t(threads) * stage_bytes(); }
};

template <class S, bool any_exponent>
Outcome run_batch(
    const Plan<S>& plan, const ConvTensors& t, const Filters<S>& filters, double most, int64_t group, int64_t begin, char* workspace,
    const Parallel& parallel) {
  const Transformed<S>& l = plan.l;
  const bool forward = l.op == Op::forward;
  const int64_t tiles = smaller(plan.together, l.tiles() - begin), rows = l.rows_together, blocks = l.columns / S::column_tiles;
  char* const operands = workspace;
  char* const sums = operands + plan.source_size();
  auto* const scales = reinterpret_cast<Scale*>(sums + plan.sums_size());
  auto* const outcomes = reinterpret_cast<Outcome*>(reinterpret_cast<char*>(scales) + plan.scales_size());
  char* const stages = reinterpret_cast<char*>(outcomes) + plan.outcomes_size();

  parallel_for(parallel, divide_up(tiles, task_tiles), [&](int64_t task, int slot) {
    const int64_t first = task * task_tiles, last = smaller(first + task_tiles, tiles);
    auto* const stage = reinterpret_cast<float*>(stages + size_t(slot) * plan.stage_bytes());
    const Sources<S> sources(l, filters, static_cast<const float*>(forward ? t.x : t.y), t.channels_last, stage);
    char* const to = operands + first / rows * l.source_bytes() + first % rows * tile_bytes;
    outcomes[task] = sources.template fill<any_exponent>(group, begin + first, begin + last, most, to, scales + first);
  });
  Outcome worst = {State::done, 0.0f};
  for (int64_t i = 0; i < divide_up(tiles, task_tiles); i++) worst.join(outcomes[i]);
  if (worst.state != State::done) return worst;

  constexpr int64_t parts = 2;  // of the results' channels: more tasks for few points
  parallel_for(parallel, points * parts, [&](int64_t task, int) {
    const int64_t point = task / parts, part = task % parts, from = part * blocks / parts, until = (part + 1) * blocks / parts;
    const TileUse use;
    for (int64_t i = 0; i < divide_up(tiles, rows); i++)
      for (int64_t b = from; b < until; b++)
        multiply(
            l, operands + i * l.source_bytes() + point * l.source_apart(), filters.operand(group, b, point),
            sums + (i * S::row_tiles * l.columns + b * S::column_tiles) * l.sums_bytes + point * l.sums_apart, l.columns * l.sums_bytes,
            l.sums_bytes);
  });

  const Results<S> results(l, filters, t);
  const int64_t column_tasks = divide_up(l.columns, task_columns);
  parallel_for(parallel, divide_up(tiles, 16) * column_tasks, [&](int64_t task, int) {
    const int64_t first = task / column_tasks * 16, column = task % column_tasks * task_columns;
    for (int64_t i = first; i < smaller(first + 16, tiles); i++)
      for (int64_t c = column; c < smaller(column + task_columns, l.columns); c++)
        results.put(group, begin + i, c, scales[i], sums + (i / 16 * l.columns + c) * l.sums_bytes + i % 16 * tile_bytes);
  });
  return worst;
}

template <class First>
struct Both {
  const Transformed<First> shapes;
  const Plan<First> first;
  const Plan<Wide<First>> wide;
  Both(const ConvProblem& p, Op op) : shapes(p, op), first(p, op, batch_of(shapes)), wide(p, op, batch_of(shapes)) {}
};

template <class First>
size_t workspace(const ConvProblem& p, Op op, int threads) {
  const Both<First> both(p, op);
  return larger(int64_t(both.first.size(threads)), int64_t(both.wide.size(threads)));
}

template <class First>
bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weights, void* workspace, const Parallel& parallel) {
  const Both<First> both(p, op);
  char* const data = static_cast<char*>(workspace);
  const Filters<First> first(both.first.l, weights(0));
  if (!first.head().is_finite) return false;
  const bool fits = both.first.l.takes() && first.head().crest <= most_spread_at_points<First>;
  const double most = most_spread_at_points<First> / first.head().crest;
  for (int64_t group = 0; group < p.groups; group++)
    for (int64_t begin = 0; begin < both.first.l.tiles(); begin += both.first.together) {
      Outcome outcome = {State::too_wide, 0.0f};
      if (fits) outcome = run_batch<First, false>(both.first, t, first, most, group, begin, data, parallel);
      if (outcome.state == State::too_wide)
        outcome = run_batch<Wide<First>, true>(both.wide, t, Filters<Wide<First>>(both.wide.l, weights(1)), 0.0, group, begin, data, parallel);
      if (outcome.state == State::not_finite) return false;
      t.lost->join(winograd_lost<First>(both.first.l.depth, outcome.largest, first.head().largest));
    }
  return true;
}

template <class First>
constexpr ConvAlgorithm by_parts = winograd_by<First>("tiles_winograd_nonfused", workspace<First>, run<First>);

}  // namespace
}  // namespace winograd_nonfused

extern const ConvAlgorithm conv_tiles_winograd_nonfused = winograd_nonfused::by_parts<Int8x6>, conv_fp16_winograd_nonfused = winograd_nonfused::by_parts<Float16x3>;

}  // namespace msctx::MSCTX_ISA
