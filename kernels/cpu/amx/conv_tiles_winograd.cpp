// winograd on AMX: each task transforms a block of tiles, multiplies it with the windows and stores its results, all of
// it within the cache of a core. See transformed.h.

#include "transformed_images.h"

namespace msctx::MSCTX_ISA {
namespace winograd {
namespace {

constexpr int64_t sources_together = 1 << 20;  // bytes of transformed tiles, beside which sums and windows have room in the second cache
constexpr int64_t columns_at_once = 2;         // of 16 results, between the products and the transforms back

// Blocks of tiles are cut by the parts that are tried first.
struct Cut {
  int64_t together, blocks;  // tiles in a block, blocks
  template <class First>
  Cut(const Transformed<First>& l) {
    constexpr int64_t enough_tasks = 8, rows = Transformed<First>::rows_together;
    const int64_t all = divide_up(l.tiles(), rows), most = sources_together / l.source_bytes();
    together = larger(1, smaller(most, divide_up(all * l.groups, enough_tasks))) * rows;
    blocks = divide_up(l.tiles(), together);
  }
};

template <class S>
struct Plan {
  Transformed<S> l;
  int64_t together, blocks;
  Plan(const ConvProblem& p, Op op, const Cut& cut) : l(p, op), together(cut.together), blocks(cut.blocks) {}
  int64_t tasks() const { return l.groups * blocks; }
  int64_t operands() const { return divide_up(together, l.rows_together); }

  // A slot: operands, sums [tile / 16][column], scales, the stage.
  size_t source_size() const { return align64(size_t(operands() * l.source_bytes())); }
  size_t sums_size() const { return size_t(operands() * S::row_tiles * columns_at_once * l.sums_bytes); }
  size_t scales_size() const { return align64(sizeof(Scale) * size_t(together)); }
  size_t slot_bytes() const { return source_size() + sums_size() + scales_size() + align64(sizeof(float) * Sources<S>::stage_size(l)); }
};

template <class S, bool any_exponent>
Outcome run_block(const Plan<S>& plan, const ConvTensors& t, const Filters<S>& filters, double most, int64_t task, char* slot) {
  const Transformed<S>& l = plan.l;
  const bool forward = l.op == Op::forward;
  char* const sums = slot + plan.source_size();
  auto* const scales = reinterpret_cast<Scale*>(sums + plan.sums_size());
  auto* const stage = reinterpret_cast<float*>(reinterpret_cast<char*>(scales) + plan.scales_size());
  const int64_t group = task / plan.blocks, begin = task % plan.blocks * plan.together;
  const int64_t end = smaller(l.tiles(), begin + plan.together);

  const Sources<S> sources(l, filters, static_cast<const float*>(forward ? t.x : t.y), t.channels_last, stage);
  const Outcome outcome = sources.template fill<any_exponent>(group, begin, end, most, slot, scales);
  if (outcome.state != State::done) return outcome;

  const Results<S> results(l, filters, t);
  const TileUse tiles;
  for (int64_t column = 0; column < l.columns; column += columns_at_once) {
    const int64_t columns = smaller(columns_at_once, l.columns - column);
    for (int64_t point = 0; point < points; point++)
      for (int64_t i = 0; i < divide_up(end - begin, l.rows_together); i++)
        for (int64_t c = 0; c < columns; c += S::column_tiles)
          multiply(
              l, slot + i * l.source_bytes() + point * l.source_apart(), filters.operand(group, (column + c) / S::column_tiles, point),
              sums + (i * S::row_tiles * columns_at_once + c) * l.sums_bytes + point * l.sums_apart, columns_at_once * l.sums_bytes,
              l.sums_bytes);
    for (int64_t i = 0; i < end - begin; i++)
      for (int64_t c = 0; c < columns; c++)
        results.put(group, begin + i, column + c, scales[i], sums + (i / 16 * columns_at_once + c) * l.sums_bytes + i % 16 * tile_bytes);
  }
  return outcome;
}

// The blocks whose state is `wanted`.
template <class S, bool any_exponent>
void run_blocks(
    const Plan<S>& plan, const ConvTensors& t, const void* prepared, double most, State wanted, Outcome* outcomes, char* slots,
    size_t slot_bytes, const Parallel& parallel) {
  const Filters<S> filters(plan.l, prepared);
  parallel_for(parallel, plan.tasks(), [&](int64_t task, int slot) {
    if (outcomes[task].state == wanted) outcomes[task] = run_block<S, any_exponent>(plan, t, filters, most, task, slots + size_t(slot) * slot_bytes);
  });
}

template <class First>
struct Both {
  const Transformed<First> shapes;
  const Cut cut;
  const Plan<First> first;
  const Plan<Wide<First>> wide;
  Both(const ConvProblem& p, Op op) : shapes(p, op), cut(shapes), first(p, op, cut), wide(p, op, cut) {}
  size_t slot_bytes() const { return first.slot_bytes() > wide.slot_bytes() ? first.slot_bytes() : wide.slot_bytes(); }
};

template <class First>
size_t workspace(const ConvProblem& p, Op op, int threads) {
  const Both<First> both(p, op);
  return size_t(threads) * both.slot_bytes() + align64(sizeof(Outcome) * size_t(both.first.tasks()));
}

template <class First>
bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weights, void* workspace, const Parallel& parallel) {
  const Both<First> both(p, op);
  char* const slots = static_cast<char*>(workspace);
  auto* const outcomes = reinterpret_cast<Outcome*>(slots + size_t(parallel.threads) * both.slot_bytes());
  const auto worst = [&] {
    Outcome all = {State::wanted, 0.0f};
    for (int64_t i = 0; i < both.first.tasks(); i++) all.join(outcomes[i]);
    return all;
  };
  const void* const prepared = weights(0);
  const auto& head = Filters(both.first.l, prepared).head();
  if (!head.is_finite) return false;
  const bool fits = both.first.l.takes() && head.crest <= most_spread_at_points<First>;
  for (int64_t i = 0; i < both.first.tasks(); i++) outcomes[i] = {fits ? State::wanted : State::too_wide, 0.0f};
  run_blocks<First, false>(
      both.first, t, prepared, most_spread_at_points<First> / head.crest, State::wanted, outcomes, slots, both.slot_bytes(), parallel);
  *t.lost = winograd_lost<First>(both.first.l.depth, worst().largest, head.largest);
  if (worst().state == State::too_wide)
    run_blocks<Wide<First>, true>(both.wide, t, weights(1), 0.0, State::too_wide, outcomes, slots, both.slot_bytes(), parallel);
  return worst().state != State::not_finite;
}

template <class First>
constexpr ConvAlgorithm by_parts = winograd_by<First>("tiles_winograd", workspace<First>, run<First>);

}  // namespace
}  // namespace winograd

extern const ConvAlgorithm conv_tiles_winograd = winograd::by_parts<Int8x6>, conv_fp16_winograd = winograd::by_parts<Float16x3>;

}  // namespace msctx::MSCTX_ISA
