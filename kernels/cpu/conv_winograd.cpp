// winograd: each task transforms a block of tiles, multiplies it with the windows and stores its outputs, all of it within the
// cache of a core. The windows are transformed before. See msctx/winograd.h.

#include "msctx/winograd.h"

namespace msctx::MSCTX_ISA {
namespace {

// What a slot holds: the values of one block of tiles for some channels of the source, and for a part of those of the result.
// 72 rows are whole panels on every ISA. Where all channels of the source fit, they are transformed once for all parts.
constexpr int64_t most_rows = 72, most_depth = 4 * sum_block;
static_assert(most_rows % tile_rows == 0);

struct Plan {
  Mapping m;
  Grid grid;
  int64_t held_depth, held_rows;
  int64_t source_apart, product_apart;  // in a slot: [point][held_depth * block_tiles], [point][held_rows][block_tiles]
  int64_t blocks, parts, splits;        // a task does a block of tiles for 1/splits of the parts of the result's channels

  Plan(const ConvProblem& p, Op op, const ConvTensors& t)
      : m(p, op, t), grid(side + 1 - p.window[1], m.images, m.to), held_depth(smaller(m.depth, most_depth)),
        held_rows(smaller(round_up(m.rows, tile_rows), most_rows)), source_apart(apart(held_depth * block_tiles)),
        product_apart(apart(held_rows * block_tiles)),
        blocks(divide_up(grid.count(), block_tiles)), parts(divide_up(m.rows, most_rows)) {
    constexpr int64_t enough_tasks = 16;  // rather repeat the transforms of tiles than have less
    splits = smaller(parts, larger(1, enough_tasks / larger(1, m.groups * blocks)));
  }
  int64_t slot_size() const { return points * (source_apart + product_apart); }
};

// One block of tiles, the parts [part, last) of the result's channels of one group.
template <int taps>
void run_block(const Plan& plan, int64_t group, int64_t block, int64_t part, int64_t last, const float* filters, float* slot) {
  const Mapping& m = plan.m;
  float* const source = slot;
  float* const product = slot + points * plan.source_apart;
  const int64_t tiles = smaller(block_tiles, plan.grid.count() - block * block_tiles);
  for (bool is_held = false; part < last; part++) {
    const int64_t row = part * most_rows, rows = smaller(most_rows, m.rows - row);
    for (int64_t channel = 0; channel < m.depth; channel += most_depth) {
      const int64_t depth = smaller(most_depth, m.depth - channel);
      if (!is_held)
        transform_tiles(m, plan.grid, block, group, channel, depth, plan.held_depth, source, plan.source_apart);
      is_held = m.depth <= most_depth;
      for (int point = 0; point < points; point++)
        multiply(rows, divide_up(tiles, tile_columns), depth,
                 {filters + (group * points + point) * filters_apart(m) + row * m.depth + channel * tile_rows, m.depth},
                 {source + point * plan.source_apart, plan.held_depth}, product + point * plan.product_apart, block_tiles,
                 channel > 0);
    }
    store_tiles<side + 1 - taps>(m, plan.grid, block, group, row, rows, product, plan.product_apart);
  }
}

template <int taps>
void run_taps(const Plan& plan, const float* filters, float* slots, const Parallel& parallel) {
  parallel_for(parallel, plan.m.groups * plan.splits * plan.blocks, [&](int64_t task, int slot) {
    const int64_t block = task % plan.blocks, split = task / plan.blocks % plan.splits;
    const int64_t first = split * plan.parts / plan.splits, last = (split + 1) * plan.parts / plan.splits;
    run_block<taps>(plan, task / plan.blocks / plan.splits, block, first, last, filters, slots + slot * plan.slot_size());
  });
}

void reasons(const ConvProblem& p, Op op, Reasons& reasons) {
  winograd_reasons(p, reasons);
  reasons.add_if(op == Op::backward_weight, "it has no weight gradient");
}

size_t workspace(const ConvProblem& p, Op op, int threads) {
  const Plan plan(p, op, {});
  return sizeof(float) * size_t(threads * plan.slot_size());
}

double error(const ConvProblem& p, Op op) { return winograd_error(p, op); }

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
  const Plan plan(p, op, t);
  (p.window[1] == 3 ? run_taps<3> : run_taps<5>)(plan, static_cast<const float*>(weight()), static_cast<float*>(workspace), parallel);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_winograd;
const ConvAlgorithm conv_winograd = {
    .name = "winograd",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
    .spreads_nonfinite = true,
    .prepared_size = winograd_prepared_size,
    .prepare = winograd_prepare,
    .prepared_for_all_sizes = true,
};

}  // namespace msctx::MSCTX_ISA
