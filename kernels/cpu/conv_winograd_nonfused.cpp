// winograd_nonfused: the transforms of all tiles, 36 large matmuls, and the inverse transforms, one after the other, by
// way of the workspace. Its size bounds how many tiles (and groups) are done at a time. See msctx/winograd.h.

#include "msctx/winograd.h"

namespace msctx::MSCTX_ISA {
namespace winograd_nonfused {
namespace {

constexpr int64_t workspace_floats = 16 << 20;  // about what the transforms may take: 64 MB
constexpr int64_t task_vectors = 4;             // of channels, and
constexpr int64_t task_tiles = 48;              // of tiles: what a task transforms
constexpr int64_t block_tiles = 96;             // what a task multiplies: with many channels, what the second cache holds
static_assert(block_tiles % tile_rows == 0 && block_tiles % task_tiles == 0);

// [0, count) in pieces of `size`, as many as there is room for; the last may be smaller.
struct Pieces {
  int64_t count, size;
  Pieces(int64_t count, int64_t room) : count(count), size(larger(1, smaller(room, count))) {}
  int64_t at(int64_t first) const { return smaller(size, count - first); }
};

struct MapPlan {
  Mapping m;
  Grid grid;
  Pieces groups, blocks;  // of tiles
  int64_t tiles;          // at a time
  // From point to point of [group][point] of Sources and [group][point][tiles][padded_rows].
  int64_t source_apart, product_apart;

  MapPlan(const ConvProblem& p, Op op, const ConvTensors& t)
      : m(p, op, t), grid(side + 1 - p.window[1], m.images, m.to), groups(m.groups, workspace_floats / block_floats()),
        blocks(divide_up(grid.count(), block_tiles), workspace_floats / (groups.size * block_floats())),
        tiles(smaller(blocks.size * block_tiles, round_up(grid.count(), tile_rows))),
        source_apart(apart(Sources::size(tiles, m.depth_blocks()))), product_apart(apart(tiles * m.padded_rows())) {}
  int64_t block_floats() const { return points * block_tiles * (m.depth_blocks() * lanes + m.padded_rows()); }
  int64_t source_size() const { return groups.size * points * source_apart; }
  int64_t size() const { return source_size() + groups.size * points * product_apart; }
};

// The tiles [tile, tile + tiles) of the groups [group, group + groups).
template <int taps>
void run_map_piece(
    const MapPlan& plan, int64_t group, int64_t groups, int64_t tile, int64_t tiles, const float* filters, float* workspace,
    const Parallel& parallel) {
  const Mapping& m = plan.m;
  float* const sources = workspace;
  float* const products = sources + plan.source_size();
  const int64_t tile_parts = divide_up(tiles, task_tiles);

  const int64_t depth_parts = divide_up(m.depth_blocks(), task_vectors);
  parallel_for(parallel, groups * tile_parts * depth_parts, [&](int64_t task, int) {
    const int64_t block = task % depth_parts * task_vectors, first = task / depth_parts % tile_parts * task_tiles;
    const int64_t g = task / depth_parts / tile_parts, last = smaller(first + task_tiles, tiles);
    const Sources to{sources + g * points * plan.source_apart, m.depth_blocks()};
    for (int64_t b = block; b < smaller(block + task_vectors, m.depth_blocks()); b++)
      transform_tiles<InputMatrix>(
          plan.grid, tile + first, tile + last, m.sources(group + g, b), m.from, m.pad,
          [&](int64_t i) { return to.at(first + i, b); }, plan.source_apart);
  });

  const int64_t blocks = divide_up(tiles, block_tiles);
  parallel_for(parallel, groups * points * blocks, [&](int64_t task, int) {
    const int64_t first = task % blocks * block_tiles, point = task / blocks;  // of all groups
    const float* right = filters + (group * points + point) * filters_apart(m);
    const Sources all{sources + point * plan.source_apart, m.depth_blocks()}, left{all.at(first, 0), m.depth_blocks()};
    float* to = products + point * plan.product_apart + first * m.padded_rows();
    for (int64_t panel = 0; panel < m.row_panels(); panel++)
      multiply(
          smaller(block_tiles, tiles - first), m.depth, left, right + panel * m.depth * tile_columns,
          right + (panel + 1) * m.depth * tile_columns, to + panel * tile_columns,
          m.padded_rows(), false);
  });

  const int64_t row_parts = divide_up(m.rows, task_vectors * lanes);
  parallel_for(parallel, groups * tile_parts * row_parts, [&](int64_t task, int) {
    const int64_t row = task % row_parts * task_vectors * lanes, first = task / row_parts % tile_parts * task_tiles;
    const int64_t g = task / row_parts / tile_parts, last = smaller(first + task_tiles, tiles);
    const float* from = products + g * points * plan.product_apart + first * m.padded_rows();
    for (int64_t r = row; r < smaller(row + task_vectors * lanes, m.rows); r += lanes)
      store_tiles<side + 1 - taps>(
          plan.grid, tile + first, tile + last, from + r, plan.product_apart, m.padded_rows(), m.results(group + g, r), m.to,
          m.finish(group + g, r), m.others(group + g, r));
  });
}

template <int taps>
void run_map(const ConvProblem& p, Op op, const ConvTensors& t, const float* filters, float* workspace, const Parallel& parallel) {
  const MapPlan plan(p, op, t);
  const int64_t all = plan.grid.count();
  for (int64_t group = 0; group < plan.groups.count; group += plan.groups.size)
    for (int64_t tile = 0; tile < all; tile += plan.tiles)
      run_map_piece<taps>(plan, group, plan.groups.at(group), tile, smaller(plan.tiles, all - tile), filters, workspace, parallel);
}

// Each tile of the gradient of y is a window for the inputs of that tile, and gives taps x taps outputs: their sum over all
// tiles is the gradient of w. So here the products sum over the tiles.

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

// Adds the tiles [first, first + tiles) of the groups [group, group + groups) to the products.
template <int taps>
void add_tiles(
    const WeightPlan& plan, const ConvProblem& p, const ConvTensors& t, int64_t group, int64_t groups, int64_t first, int64_t tiles,
    float* workspace, const Parallel& parallel) {
  float* const x = workspace;
  float* const y = x + plan.x_size();
  float* const w = y + plan.y_size();
  const Extent in = {p.in[1], p.in[2]}, out = {p.out[1], p.out[2]};
  const int64_t tile_parts = divide_up(tiles, task_tiles);
  const auto images = [&](void* data, Extent extent, int64_t channels, int64_t channel, int64_t count) {
    return [=, last = t.channels_last](int64_t image) {
      return planes_of(static_cast<float*>(data) + image * channels * extent.size(), extent.size(), channels, last, channel, int(count));
    };
  };

  const int64_t vectors = divide_up(plan.gc, lanes);
  parallel_for(parallel, groups * vectors * tile_parts, [&](int64_t task, int) {
    const int64_t tile = task % tile_parts * task_tiles, c = task / tile_parts % vectors * lanes, g = task / tile_parts / vectors;
    const auto planes = images(t.x, in, p.c, (group + g) * plan.gc + c, smaller(lanes, plan.gc - c));
    float* to = x + g * points * plan.x_apart + (c / tile_columns * plan.tiles + tile) * tile_columns + c % tile_columns;
    transform_tiles<InputMatrix>(
        plan.grid, first + tile, first + smaller(tile + task_tiles, tiles), planes, in, p.pad + 1,
        [&](int64_t i) { return to + i * tile_columns; }, plan.x_apart);
  });

  const int64_t row_panels = plan.padded_gk / tile_rows;
  parallel_for(parallel, groups * row_panels * tile_parts, [&](int64_t task, int) {
    const int64_t tile = task % tile_parts * task_tiles, k = task / tile_parts % row_panels * tile_rows;
    const int64_t g = task / tile_parts / row_panels, none[2] = {0, 0};
    const auto planes = images(t.y, out, p.k, (group + g) * plan.gk + k, smaller(tile_rows, plan.gk - k));
    float* to = y + g * points * plan.y_apart + k * plan.tiles + tile * tile_rows;
    transform_tiles<FilterMatrix<side + 1 - taps>, tile_rows>(
        plan.grid, first + tile, first + smaller(tile + task_tiles, tiles), planes, out, none,
        [&](int64_t i) { return to + i * tile_rows; }, plan.y_apart);
  });

  const int64_t panels = plan.padded_gc / tile_columns;
  parallel_for(parallel, groups * points * panels, [&](int64_t task, int) {
    const int64_t panel = task % panels, point = task / panels;  // of all groups
    const float* right = x + point * plan.x_apart + panel * plan.tiles * tile_columns;
    float* to = w + point * plan.w_apart + panel * tile_columns;
    const auto left = [&](int64_t k, int64_t term) {
      return Left<1>{y + point * plan.y_apart + k * plan.tiles + term * tile_rows, tile_rows, sum_block, 0};
    };
    multiply(plan.gk, tiles, left, right, right + plan.tiles * tile_columns, to, plan.padded_gc, first > 0);
  });
}

// The inverse transforms of the groups [group, group + groups).
template <int taps>
void store_weights(
    const WeightPlan& plan, float* result, int64_t group, int64_t groups, const float* workspace, const Parallel& parallel) {
  const float* const products = workspace + plan.x_size() + plan.y_size();
  parallel_for(parallel, groups * plan.gk, [&](int64_t task, int) {
    const int64_t k = task % plan.gk, g = task / plan.gk;
    float* const to = result + (group * plan.gk + task) * plan.gc * taps * taps;
    alignas(64) float window[taps * taps * lanes];
    for (int64_t c = 0; c < plan.gc; c += lanes) {
      from_points<taps>(products + g * points * plan.w_apart + k * plan.padded_gc + c, plan.w_apart, window, taps * lanes);
      write_lanes(planes_of(to, taps * taps, plan.gc, false, c, int(smaller(lanes, plan.gc - c))), 0, taps * taps, window);
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

size_t workspace(const ConvProblem& p, Op op, int) {
  return sizeof(float) * size_t(op == Op::backward_weight ? WeightPlan(p).size() : MapPlan(p, op, {}).size());
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
  float* const floats = static_cast<float*>(workspace);
  if (op == Op::backward_weight)
    (p.window[1] == 3 ? run_weight<3> : run_weight<5>)(p, t, floats, parallel);
  else
    (p.window[1] == 3 ? run_map<3> : run_map<5>)(p, op, t, static_cast<const float*>(weight()), floats, parallel);
  return true;
}

}  // namespace
}  // namespace winograd_nonfused

extern const ConvAlgorithm conv_winograd_nonfused =
    winograd_by("winograd_nonfused", winograd_reasons, winograd_nonfused::workspace, winograd_nonfused::run);

}  // namespace msctx::MSCTX_ISA
