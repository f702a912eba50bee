// winograd: each task transforms a block of tiles, multiplies it with the windows and stores its outputs, all of it within the
// cache of a core. The windows are transformed before. See msctx/winograd.h.

#include "msctx/winograd.h"

namespace msctx::MSCTX_ISA {
namespace winograd {
namespace {

// The values of a block of tiles, and one panel of its results, are to stay in the second cache; but the windows are read once for
// each block.
constexpr int64_t block_bytes = 1 << 20, most_tiles = 96, fewest_tiles = 24;
static_assert(fewest_tiles % tile_rows == 0);

struct Plan {
  Mapping m;
  Grid grid;
  int64_t tiles;                        // of a block
  int64_t source_apart, product_apart;  // in a slot: [point] of Sources, [point][tiles][tile_columns]
  int64_t blocks, splits;               // a task does a block of tiles for 1/splits of the panels of results

  Plan(const ConvProblem& p, Op op, const ConvTensors& t, int threads) : m(p, op, t), grid(side + 1 - p.window[1], m.images, m.to) {
    // Rather repeat the transforms of tiles than have less.
    const int64_t enough_blocks = 4, enough_tasks = threads > 1 ? 8 * threads : 1;
    const int64_t each = int64_t(sizeof(float)) * points * (m.depth_blocks() * lanes + tile_columns);
    const int64_t wanted = smaller(smaller(block_bytes / each, grid.count() / enough_blocks), most_tiles);
    tiles = larger(1, wanted / fewest_tiles) * fewest_tiles;
    source_apart = apart(Sources::size(tiles, m.depth_blocks())), product_apart = apart(tiles * tile_columns);
    blocks = divide_up(grid.count(), tiles);
    splits = smaller(m.row_panels(), larger(1, enough_tasks / larger(1, m.groups * blocks)));
  }
  int64_t slot_size() const { return points * (source_apart + product_apart); }
};

// One block of tiles, the panels [panel, last) of the results of one group.
template <int taps>
void run_block(const Plan& plan, int64_t group, int64_t block, int64_t panel, int64_t last, const float* filters, float* slot) {
  const Mapping& m = plan.m;
  float* const source = slot;
  float* const product = slot + points * plan.source_apart;
  const int64_t begin = block * plan.tiles, end = smaller(begin + plan.tiles, plan.grid.count());
  for (int64_t b = 0; b < m.depth_blocks(); b++)
    transform_tiles<InputMatrix>(
        plan.grid, begin, end, m.sources(group, b), m.from, m.pad,
        [&](int64_t tile) { return Sources{source, m.depth_blocks()}.at(tile, b); }, plan.source_apart);
  for (; panel < last; panel++) {
    const float* right = filters + group * points * filters_apart(m) + panel * m.depth * tile_columns;
    for (int64_t point = 0; point < points; point++) {
      const float* const next = point + 1 < points ? right + (point + 1) * filters_apart(m) : right + m.depth * tile_columns;
      multiply(
          end - begin, m.depth, Sources{source + point * plan.source_apart, m.depth_blocks()}, right + point * filters_apart(m), next,
          product + point * plan.product_apart, tile_columns, false);
    }
    for (int64_t first = 0; first < tile_columns && panel * tile_columns + first < m.rows; first += lanes)
      store_tiles<side + 1 - taps>(
          plan.grid, begin, end, product + first, plan.product_apart, tile_columns, m.results(group, panel * tile_columns + first), m.to,
          m.finish(group, panel * tile_columns + first), m.others(group, panel * tile_columns + first));
  }
}

template <int taps>
void run_taps(const Plan& plan, const float* filters, float* slots, const Parallel& parallel) {
  parallel_for(parallel, plan.m.groups * plan.splits * plan.blocks, [&](int64_t task, int slot) {
    const int64_t block = task % plan.blocks, split = task / plan.blocks % plan.splits, panels = plan.m.row_panels();
    const int64_t first = split * panels / plan.splits, last = (split + 1) * panels / plan.splits;
    run_block<taps>(plan, task / plan.blocks / plan.splits, block, first, last, filters, slots + slot * plan.slot_size());
  });
}

void reasons(const ConvProblem& p, Op op, Reasons& reasons) {
  winograd_reasons(p, op, reasons);
  reasons.add_if(op == Op::backward_weight, "it has no weight gradient");
}

size_t workspace(const ConvProblem& p, Op op, int threads) {
  const Plan plan(p, op, {}, threads);
  return sizeof(float) * size_t(threads * plan.slot_size());
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
  const Plan plan(p, op, t, parallel.threads);
  (p.window[1] == 3 ? run_taps<3> : run_taps<5>)(plan, static_cast<const float*>(weight()), static_cast<float*>(workspace), parallel);
  return true;
}

}  // namespace
}  // namespace winograd

extern const ConvAlgorithm conv_winograd = winograd_by("winograd", winograd::reasons, winograd::workspace, winograd::run);

}  // namespace msctx::MSCTX_ISA
