// What both Winograd algorithms share (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks",
// arXiv 1509.09308). The inputs of a tile of outputs, 6 x 6 of them, and the taps of the window become values at 6 x 6 points;
// there the convolution is a product. 36 matrix products sum it over the channels; then the values become outputs.
//
// All transforms run on vectors whose lanes are independent results (tiles or channels): no sum depends on Vec::width.
#pragma once

#include "msctx/tile.h"
#include "msctx/toom_cook.h"

namespace msctx::MSCTX_ISA {
namespace {

// --- two-dimensional transforms of one Vec of lanes ---------------------------------------------------------------------

// Values that wait for a transform or for being stored: [row][column][lane], one Vec of lanes.
struct alignas(64) Staged {
  float at[points * Vec::width];
};

// staged [columns][columns] (columns of M) becomes values at the points: to[point * stride], `lanes` of them.
template <class M, int lanes = Vec::width>
static inline void to_points(const Staged& staged, float* to, int64_t stride) {
  constexpr int size = M::matrix.columns;
  Vec half[side][size];
  for (int j = 0; j < size; j++) {
    Vec column[size], out[side];
#pragma GCC unroll 6
    for (int i = 0; i < size; i++) column[i] = Vec::load(staged.at + (i * size + j) * Vec::width);
    apply_rows<M>(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < side; i++) half[i][j] = out[i];
  }
  for (int i = 0; i < side; i++, to += side * stride) {
    Vec out[side];
    apply_rows<M>(half[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < side; j++)
      if constexpr (lanes == Vec::width)
        out[j].store(to + j * stride);
      else
        out[j].store(to + j * stride, lanes);
  }
}

// Values at the points, from[point * stride], become staged [outputs][outputs].
template <int outputs>
static inline void from_points(const float* from, int64_t stride, Staged& staged) {
  Vec half[outputs][side];
  for (int j = 0; j < side; j++) {
    Vec column[side], out[outputs];
#pragma GCC unroll 6
    for (int i = 0; i < side; i++) column[i] = Vec::load(from + (i * side + j) * stride);
    apply_columns<OutputMatrix<outputs>>(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < outputs; i++) half[i][j] = out[i];
  }
  for (int i = 0; i < outputs; i++) {
    Vec out[outputs];
    apply_columns<OutputMatrix<outputs>>(half[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < outputs; j++) out[j].store(staged.at + (i * outputs + j) * Vec::width);
  }
}

// --- patches of planes: one lane of a Staged -----------------------------------------------------------------------------

// A plane of an image, row after row.
struct Extent {
  int64_t height, width;
};

// The size x size elements of the plane from (row, column) on, zeros outside of it.
template <int size>
static inline void stage_patch(const float* plane, Extent extent, int64_t row, int64_t column, float* lane) {
  if (row >= 0 && column >= 0 && row + size <= extent.height && column + size <= extent.width) {
    const float* at = plane + row * extent.width + column;
    for (int i = 0; i < size; i++, at += extent.width)
#pragma GCC unroll 6
      for (int j = 0; j < size; j++) lane[(i * size + j) * Vec::width] = at[j];
    return;
  }
  for (int i = 0; i < size; i++)
    for (int j = 0; j < size; j++) {
      const int64_t h = row + i, v = column + j;
      const bool inside = h >= 0 && v >= 0 && h < extent.height && v < extent.width;
      lane[(i * size + j) * Vec::width] = inside ? plane[h * extent.width + v] : 0.0f;
    }
}

template <int size>
static inline void stage_zeros(float* lane) {
  for (int i = 0; i < size * size; i++) lane[i * Vec::width] = 0.0f;
}

// The lane's size x size elements go to the plane from (row, column) on; those outside are dropped.
template <int size>
static inline void store_patch(const float* lane, float* plane, Extent extent, int64_t row, int64_t column) {
  const int64_t rows = smaller(size, extent.height - row), columns = smaller(size, extent.width - column);
  float* at = plane + row * extent.width + column;
  if (rows == size && columns == size) {
    for (int i = 0; i < size; i++, at += extent.width)
#pragma GCC unroll 6
      for (int j = 0; j < size; j++) at[j] = lane[(i * size + j) * Vec::width];
    return;
  }
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) at[i * extent.width + j] = lane[(i * size + j) * Vec::width];
}

// --- tiles ---------------------------------------------------------------------------------------------------------------

struct Tile {
  int64_t image, row, column;  // of its first output
};

// The tiles of all images, numbered row by row: size x size outputs each.
struct Grid {
  int64_t size, images, down, across;
  Grid(int64_t size, int64_t images, Extent outputs)
      : size(size), images(images), down(divide_up(outputs.height, size)), across(divide_up(outputs.width, size)) {}
  int64_t count() const { return images * down * across; }
  Tile tile(int64_t index) const {
    return {index / (down * across), index / across % down * size, index % across * size};
  }
};

// --- the convolution that forward and backward_data are ------------------------------------------------------------------

// result [images][groups * rows] = source [images][groups * depth] with the windows w. backward_data is the forward convolution
// of the gradient of y with the windows turned by half a turn, and another padding (below 0 where that of x is wide).
struct Mapping {
  const float* source;
  float* result;
  int64_t images, groups, depth, rows;
  Extent from, to;
  int64_t pad[2];
  int64_t row_step, depth_step;  // from one window to the next: w is [rows][depth] or [depth][rows]
  bool turned;

  Mapping(const ConvProblem& p, Op op, const ConvTensors& t) : images(p.n), groups(p.groups) {
    const bool forward = op == Op::forward;
    const Extent x = {p.in[1], p.in[2]}, y = {p.out[1], p.out[2]};
    const int64_t gc = group_c(p), gk = group_k(p);
    source = static_cast<const float*>(forward ? t.x : t.y);
    result = static_cast<float*>(forward ? t.y : t.x);
    depth = forward ? gc : gk, rows = forward ? gk : gc;
    from = forward ? x : y, to = forward ? y : x;
    for (int i = 0; i < 2; i++) pad[i] = forward ? p.pad[i + 1] : p.window[i + 1] - 1 - p.pad[i + 1];
    row_step = forward ? gc : 1, depth_step = forward ? 1 : gc;
    turned = !forward;
  }
  const float* source_plane(int64_t image, int64_t group, int64_t channel) const {
    return source + ((image * groups + group) * depth + channel) * from.height * from.width;
  }
  float* result_plane(int64_t image, int64_t group, int64_t channel) const {
    return result + ((image * groups + group) * rows + channel) * to.height * to.width;
  }
};

// --- packed matrices -----------------------------------------------------------------------------------------------------
// One matrix for each point, `apart` floats from one to the next: panels of tile_rows or tile_columns, for tile_product.

constexpr int64_t block_tiles = 32;  // columns of a product: tiles that are transformed together
constexpr int64_t sum_block = 128;   // terms that tile_product adds up at once: the order of each sum, so the same on every ISA
static_assert(block_tiles % tile_columns == 0 && tile_rows <= Vec::width);

static inline int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }

// An odd number of cache lines, lest the 36 values of a transform compete for the same ways of a cache.
static inline int64_t apart(int64_t floats) { return (divide_up(floats, 16) | 1) * 16; }

// A packed matrix from some panel and some term of its sums on; its panels hold `depth` terms.
struct Packed {
  const float* at;
  int64_t depth;
};

// c [rows][pitch] = or += a * b, sums of `depth` terms, for `panels` panels of b. Whole panels of rows are written.
static inline void multiply(int64_t rows, int64_t panels, int64_t depth, Packed a, Packed b, float* c, int64_t pitch,
                            bool accumulate) {
  for (int64_t first = 0; first < depth; first += sum_block, accumulate = true) {
    const int64_t terms = smaller(sum_block, depth - first);
    for (int64_t i = 0; i < rows; i += tile_rows)
      for (int64_t j = 0; j < panels; j++) {
        const float* left = a.at + i * a.depth + first * tile_rows;
        const float* right = b.at + (j * b.depth + first) * tile_columns;
        (accumulate ? tile_product<true> : tile_product<false>)(terms, left, right, c + i * pitch + j * tile_columns, pitch);
      }
  }
}

// Floats from one point to the next of a group's transformed windows: [point][panel of rows][depth][tile_rows].
static inline int64_t filters_apart(const Mapping& m) { return apart(round_up(m.rows, tile_rows) * m.depth); }

template <int taps>
static void transform_filters(const Mapping& m, const float* w, float* to, const Parallel& parallel) {
  const int64_t panels = divide_up(m.rows, tile_rows), stride = filters_apart(m);
  parallel_for(parallel, m.groups * panels, [&](int64_t task, int) {
    const int64_t group = task / panels, panel = task % panels;
    float* packed = to + group * points * stride + panel * m.depth * tile_rows;
    Staged staged = {};
    for (int64_t depth = 0; depth < m.depth; depth++, packed += tile_rows) {
      for (int64_t lane = 0; lane < smaller(tile_rows, m.rows - panel * tile_rows); lane++) {
        const int64_t row = panel * tile_rows + lane;
        const float* window = w + (group * m.rows * m.depth + row * m.row_step + depth * m.depth_step) * taps * taps;
        for (int i = 0; i < taps * taps; i++)
          staged.at[i * Vec::width + lane] = window[m.turned ? taps * taps - 1 - i : i];
      }
      to_points<FilterMatrix<taps>, tile_rows>(staged, packed, stride);
    }
  });
}

// The windows of all groups, for forward and backward_data; the weight gradient has none.
static inline size_t winograd_prepared_size(const ConvProblem& p, Op op, int) {
  if (op == Op::backward_weight) return 0;
  const Mapping m(p, op, {});
  return sizeof(float) * size_t(m.groups * points * filters_apart(m));
}

static inline void winograd_prepare(
    const ConvProblem& p, Op op, int, const void* w, void* prepared, const Parallel& parallel) {
  const auto transform = p.window[1] == 3 ? transform_filters<3> : transform_filters<5>;
  transform(Mapping(p, op, {}), static_cast<const float*>(w), static_cast<float*>(prepared), parallel);
}

// `depth` channels of a block of tiles, from `channel` on, to [point][panel of tiles][packed_depth][tile_columns];
// `stride` from one point to the next.
static inline void transform_tiles(const Mapping& m, const Grid& grid, int64_t block, int64_t group, int64_t channel,
                                   int64_t depth, int64_t packed_depth, float* to, int64_t stride) {
  const int64_t count = smaller(block_tiles, grid.count() - block * block_tiles);
  for (int64_t first = 0; first < round_up(count, tile_columns); first += Vec::width) {
    float* packed = to + first / tile_columns * packed_depth * tile_columns + first % tile_columns;
    Tile tiles[Vec::width];
    const int64_t lanes = larger(0, smaller(Vec::width, count - first));
    for (int64_t lane = 0; lane < lanes; lane++) tiles[lane] = grid.tile(block * block_tiles + first + lane);
    Staged staged = {};
    for (int64_t d = 0; d < depth; d++, packed += tile_columns) {
      for (int64_t lane = 0; lane < lanes; lane++)
        stage_patch<side>(m.source_plane(tiles[lane].image, group, channel + d), m.from, tiles[lane].row - m.pad[0],
                          tiles[lane].column - m.pad[1], staged.at + lane);
      to_points<InputMatrix>(staged, packed, stride);
    }
  }
}

// The inverse: from [point][rows][block_tiles], `stride` from point to point, to `rows` planes of the result from `row` on.
template <int tile>
static inline void store_tiles(const Mapping& m, const Grid& grid, int64_t block, int64_t group, int64_t row, int64_t rows,
                               const float* from, int64_t stride) {
  const int64_t count = smaller(block_tiles, grid.count() - block * block_tiles);
  for (int64_t first = 0; first < count; first += Vec::width) {
    Tile tiles[Vec::width];
    const int64_t lanes = smaller(Vec::width, count - first);
    for (int64_t lane = 0; lane < lanes; lane++) tiles[lane] = grid.tile(block * block_tiles + first + lane);
    Staged staged;
    for (int64_t r = 0; r < rows; r++) {
      from_points<tile>(from + r * block_tiles + first, stride, staged);
      for (int64_t lane = 0; lane < lanes; lane++)
        store_patch<tile>(staged.at + lane, m.result_plane(tiles[lane].image, group, row + r), m.to, tiles[lane].row,
                          tiles[lane].column);
    }
  }
}

// --- what both say of themselves -----------------------------------------------------------------------------------------

static inline void winograd_reasons(const ConvProblem& p, Reasons& reasons) {
  const int64_t taps = p.window[1];
  reasons.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  reasons.add_if(p.window[0] != 1 || p.window[2] != taps || (taps != 3 && taps != 5), "its window is 3x3 or 5x5");
  reasons.add_if(!has_unit(p.stride), "its stride is 1");
  reasons.add_if(!has_unit(p.dilation), "its dilation is 1");
}

// About twice the worst of some thousand problems: normal, uniform and tiny data, data times 2^-20 to 2^20, and one outlier of
// 1e4; up to 512 channels. Outliers in both factors that share a tile but no window leave their rounding without being in the
// result: in units of the result, no bound holds then.
static inline double winograd_error(const ConvProblem&, Op op) { return op == Op::backward_weight ? 1.5e-5 : 1.2e-5; }

}  // namespace
}  // namespace msctx::MSCTX_ISA
