// winograd_nonfused: the transforms of all tiles, 36 large matrix products, and the inverse transforms, one after the other, by
// way of the workspace. Its size bounds how many tiles (and groups) are done at a time. See msctx/winograd.h.

#include "msctx/winograd.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int64_t workspace_floats = 16 << 20;  // about what the transforms may take: 64 MB

// [0, count) in pieces of `size`, as many as there is room for; the last may be smaller.
struct Pieces {
  int64_t count, size;
  Pieces(int64_t count, int64_t room) : count(count), size(larger(1, smaller(room, count))) {}
  int64_t at(int64_t first) const { return smaller(size, count - first); }
};

// --- forward and backward_data -------------------------------------------------------------------------------------------

struct MapPlan {
  Mapping m;
  Grid grid;
  int64_t padded_rows;
  Pieces groups, blocks;  // of tiles
  // From point to point of [group][point][block][depth * block_tiles] and [group][point][block][padded_rows][block_tiles].
  int64_t source_apart, product_apart;

  MapPlan(const ConvProblem& p, Op op, const ConvTensors& t)
      : m(p, op, t), grid(side + 1 - p.window[1], m.images, m.to), padded_rows(round_up(m.rows, tile_rows)),
        groups(m.groups, workspace_floats / (points * block_tiles * (m.depth + padded_rows))),
        blocks(divide_up(grid.count(), block_tiles),
               workspace_floats / (groups.size * points * block_tiles * (m.depth + padded_rows))),
        source_apart(apart(blocks.size * m.depth * block_tiles)),
        product_apart(apart(blocks.size * padded_rows * block_tiles)) {}
  int64_t source_size() const { return groups.size * points * source_apart; }
  int64_t size() const { return source_size() + groups.size * points * product_apart; }
};

// The blocks of tiles [block, block + blocks) of the groups [group, group + groups).
template <int taps>
void run_map_piece(const MapPlan& plan, int64_t group, int64_t groups, int64_t block, int64_t blocks, const float* filters,
                   float* workspace, const Parallel& parallel) {
  const Mapping& m = plan.m;
  const Grid& grid = plan.grid;
  float* const source = workspace;
  float* const product = source + plan.source_size();
  constexpr int64_t task_channels = 32, task_blocks = 8;

  const int64_t depth_parts = divide_up(m.depth, task_channels);
  parallel_for(parallel, groups * blocks * depth_parts, [&](int64_t task, int) {
    const int64_t channel = task % depth_parts * task_channels;
    const int64_t b = task / depth_parts % blocks, g = task / depth_parts / blocks;
    float* to = source + g * points * plan.source_apart + b * m.depth * block_tiles + channel * tile_columns;
    transform_tiles(m, grid, block + b, group + g, channel, smaller(task_channels, m.depth - channel), m.depth, to,
                    plan.source_apart);
  });

  const int64_t block_parts = divide_up(blocks, task_blocks);
  parallel_for(parallel, groups * points * block_parts, [&](int64_t task, int) {
    const int64_t first = task % block_parts * task_blocks, point = task / block_parts;  // of all groups
    const float* a = filters + (group * points + point) * filters_apart(m);
    for (int64_t b = first; b < smaller(first + task_blocks, blocks); b++) {
      const int64_t tiles = smaller(block_tiles, grid.count() - (block + b) * block_tiles);
      multiply(m.rows, divide_up(tiles, tile_columns), m.depth, {a, m.depth},
               {source + point * plan.source_apart + b * m.depth * block_tiles, m.depth},
               product + point * plan.product_apart + b * plan.padded_rows * block_tiles, block_tiles, false);
    }
  });

  const int64_t row_parts = divide_up(m.rows, task_channels);
  parallel_for(parallel, groups * blocks * row_parts, [&](int64_t task, int) {
    const int64_t row = task % row_parts * task_channels, b = task / row_parts % blocks, g = task / row_parts / blocks;
    const float* from = product + g * points * plan.product_apart + (b * plan.padded_rows + row) * block_tiles;
    store_tiles<side + 1 - taps>(m, grid, block + b, group + g, row, smaller(task_channels, m.rows - row), from,
                                 plan.product_apart);
  });
}

template <int taps>
void run_map(const ConvProblem& p, Op op, const ConvTensors& t, const float* filters, float* workspace,
             const Parallel& parallel) {
  const MapPlan plan(p, op, t);
  for (int64_t group = 0; group < plan.groups.count; group += plan.groups.size)
    for (int64_t block = 0; block < plan.blocks.count; block += plan.blocks.size)
      run_map_piece<taps>(plan, group, plan.groups.at(group), block, plan.blocks.at(block), filters, workspace, parallel);
}

// --- backward_weight -----------------------------------------------------------------------------------------------------
// Each tile of the gradient of y is a window for the inputs of that tile, and gives taps x taps outputs: their sum over all
// tiles is the gradient of w. So here the lanes are channels, and the products sum over the tiles.

struct WeightPlan {
  int64_t gc, gk, padded_gc, padded_gk;
  Grid grid;
  Pieces groups, blocks;  // of sum_block tiles, so that the pieces do not change the order of the sums
  int64_t tiles;          // at a time
  // From point to point of [group][point] and [panel of c][tiles][tile_columns], [panel of k][tiles][tile_rows], [gk][gc].
  int64_t x_apart, y_apart, w_apart;

  explicit WeightPlan(const ConvProblem& p)
      : gc(group_c(p)), gk(group_k(p)), padded_gc(round_up(gc, tile_columns)), padded_gk(round_up(gk, tile_rows)),
        grid(side + 1 - p.window[1], p.n, {p.out[1], p.out[2]}),
        groups(p.groups, workspace_floats / (points * sum_block * (padded_gc + padded_gk))),
        blocks(divide_up(grid.count(), sum_block),
               workspace_floats / (groups.size * points * sum_block * (padded_gc + padded_gk))),
        tiles(smaller(grid.count(), blocks.size * sum_block)), x_apart(apart(tiles * padded_gc)),
        y_apart(apart(tiles * padded_gk)), w_apart(apart(padded_gk * padded_gc)) {}
  int64_t x_size() const { return groups.size * points * x_apart; }
  int64_t y_size() const { return groups.size * points * y_apart; }
  int64_t size() const { return x_size() + y_size() + groups.size * points * w_apart; }
};

// The planes of `lanes` channels of all images, as many as `used` of them; the rest counts as zeros.
struct Channels {
  const float* first;
  int64_t used, all;  // an image has `all` planes
  Extent extent;
  int64_t pad[2];
};

// The values of `lanes` channels for the tiles [first, first + tiles): to[point * stride + tile * panel].
template <class M, int lanes>
void transform_channels(const Grid& grid, int64_t first, int64_t tiles, const Channels& from, float* to, int64_t stride,
                        int64_t panel) {
  const int64_t plane = from.extent.height * from.extent.width;
  Staged staged = {};
  for (int64_t i = first; i < first + tiles; i++, to += panel) {
    const Tile tile = grid.tile(i);
    for (int64_t lane = 0; lane < smaller(from.used, lanes); lane++)
      stage_patch<M::matrix.columns>(from.first + (tile.image * from.all + lane) * plane, from.extent, tile.row - from.pad[0],
                                     tile.column - from.pad[1], staged.at + lane);
    to_points<M, lanes>(staged, to, stride);
  }
}

// Adds the tiles [first, first + tiles) of the groups [group, group + groups) to the products.
template <int taps>
void add_tiles(const WeightPlan& plan, const ConvProblem& p, const ConvTensors& t, int64_t group, int64_t groups, int64_t first,
               int64_t tiles, float* workspace, const Parallel& parallel) {
  float* const x = workspace;
  float* const y = x + plan.x_size();
  float* const w = y + plan.y_size();
  constexpr int64_t task_tiles = 32;
  const Extent in = {p.in[1], p.in[2]}, out = {p.out[1], p.out[2]};
  const int64_t tile_parts = divide_up(tiles, task_tiles);

  const int64_t vectors = plan.padded_gc / Vec::width;
  parallel_for(parallel, groups * vectors * tile_parts, [&](int64_t task, int) {
    const int64_t tile = task % tile_parts * task_tiles, c = task / tile_parts % vectors * Vec::width;
    const int64_t g = task / tile_parts / vectors, channel = (group + g) * plan.gc + c;
    const Channels from = {static_cast<const float*>(t.x) + channel * in.height * in.width, larger(0, plan.gc - c), p.c, in,
                           {p.pad[1], p.pad[2]}};
    float* to = x + g * points * plan.x_apart + (c / tile_columns * plan.tiles + tile) * tile_columns + c % tile_columns;
    transform_channels<InputMatrix, Vec::width>(plan.grid, first + tile, smaller(task_tiles, tiles - tile), from, to,
                                                plan.x_apart, tile_columns);
  });

  const int64_t row_panels = plan.padded_gk / tile_rows;
  parallel_for(parallel, groups * row_panels * tile_parts, [&](int64_t task, int) {
    const int64_t tile = task % tile_parts * task_tiles, k = task / tile_parts % row_panels * tile_rows;
    const int64_t g = task / tile_parts / row_panels, channel = (group + g) * plan.gk + k;
    const Channels from = {static_cast<const float*>(t.y) + channel * out.height * out.width, plan.gk - k, p.k, out, {0, 0}};
    float* to = y + g * points * plan.y_apart + k * plan.tiles + tile * tile_rows;
    using GradientMatrix = FilterMatrix<side + 1 - taps>;
    transform_channels<GradientMatrix, tile_rows>(plan.grid, first + tile, smaller(task_tiles, tiles - tile), from, to,
                                                  plan.y_apart, tile_rows);
  });

  const int64_t panels = plan.padded_gc / tile_columns;
  parallel_for(parallel, groups * points * panels, [&](int64_t task, int) {
    const int64_t panel = task % panels, point = task / panels;  // of all groups
    multiply(plan.gk, 1, tiles, {y + point * plan.y_apart, plan.tiles},
             {x + point * plan.x_apart + panel * plan.tiles * tile_columns, plan.tiles},
             w + point * plan.w_apart + panel * tile_columns, plan.padded_gc, first > 0);
  });
}

// The inverse transforms of the groups [group, group + groups).
template <int taps>
void store_weights(const WeightPlan& plan, float* result, int64_t group, int64_t groups, const float* workspace,
                   const Parallel& parallel) {
  const float* const products = workspace + plan.x_size() + plan.y_size();
  parallel_for(parallel, groups * plan.gk, [&](int64_t task, int) {
    const int64_t k = task % plan.gk, g = task / plan.gk;
    float* const to = result + (group * plan.gk + task) * plan.gc * taps * taps;
    Staged staged;
    for (int64_t c = 0; c < plan.gc; c += Vec::width) {
      from_points<taps>(products + g * points * plan.w_apart + k * plan.padded_gc + c, plan.w_apart, staged);
      for (int64_t lane = 0; lane < smaller(Vec::width, plan.gc - c); lane++)
        store_patch<taps>(staged.at + lane, to + (c + lane) * taps * taps, {taps, taps}, 0, 0);
    }
  });
}

template <int taps>
void run_weight(const ConvProblem& p, const ConvTensors& t, float* workspace, const Parallel& parallel) {
  const WeightPlan plan(p);
  for (int64_t group = 0; group < plan.groups.count; group += plan.groups.size) {
    const int64_t groups = plan.groups.at(group), tiles = plan.grid.count();
    for (int64_t first = 0; first < tiles; first += plan.tiles)
      add_tiles<taps>(plan, p, t, group, groups, first, smaller(plan.tiles, tiles - first), workspace, parallel);
    store_weights<taps>(plan, static_cast<float*>(t.w), group, groups, workspace, parallel);
  }
}

// --- what it says of itself ----------------------------------------------------------------------------------------------

void reasons(const ConvProblem& p, Op, Reasons& reasons) { winograd_reasons(p, reasons); }

size_t workspace(const ConvProblem& p, Op op, int) {
  return sizeof(float) * size_t(op == Op::backward_weight ? WeightPlan(p).size() : MapPlan(p, op, {}).size());
}

double error(const ConvProblem& p, Op op) { return winograd_error(p, op); }

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
  float* const floats = static_cast<float*>(workspace);
  if (op == Op::backward_weight)
    (p.window[1] == 3 ? run_weight<3> : run_weight<5>)(p, t, floats, parallel);
  else
    (p.window[1] == 3 ? run_map<3> : run_map<5>)(p, op, t, static_cast<const float*>(weight()), floats, parallel);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_winograd_nonfused;
const ConvAlgorithm conv_winograd_nonfused = {
    .name = "winograd_nonfused",
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
