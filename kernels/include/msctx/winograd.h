// What both Winograd algorithms share (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks",
// arXiv 1509.09308). The inputs of a tile of outputs, 6 x 6 of them, and the taps of the window become values at 6 x 6 points;
// there the convolution is a product. 36 matmuls sum it over the channels; then the values become outputs.
//
// All transforms run on vectors whose lanes are channels, which either layout of a tensor gives: no sum depends on Vec::width.
#pragma once

#include "msctx/bounds.h"
#include "msctx/lanes.h"
#include "msctx/epilogue.h"
#include "msctx/tile.h"
#include "msctx/toom_cook.h"

namespace msctx::MSCTX_ISA {
namespace {

// --- two-dimensional transforms of one Vec of lanes ---------------------------------------------------------------------

// from [columns][columns] (columns of M), a vector each and `pitch` floats from row to row, becomes values at the points:
// to[point * stride], `kept` lanes of each.
template <class M, int64_t kept = lanes>
static inline void to_points(const float* from, int64_t pitch, float* to, int64_t stride) {
  constexpr int size = M::matrix.columns;
  Vec half[side][size];
  for (int j = 0; j < size; j++) {
    Vec column[size], out[side];
#pragma GCC unroll 6
    for (int i = 0; i < size; i++) column[i] = Vec::load(from + i * pitch + j * lanes);
    apply_rows<M>(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < side; i++) half[i][j] = out[i];
  }
  for (int i = 0; i < side; i++, to += side * stride) {
    Vec out[side];
    apply_rows<M>(half[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < side; j++)
      if constexpr (kept == lanes)
        out[j].store(to + j * stride);
      else
        out[j].store(to + j * stride, int(kept));
  }
}

// Values at the points, from[point * stride], become to [outputs][outputs], a vector each and `pitch` floats from row to row.
template <int outputs>
static inline void from_points(const float* from, int64_t stride, float* to, int64_t pitch) {
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
    for (int j = 0; j < outputs; j++) out[j].store(to + i * pitch + j * lanes);
  }
}

struct Extent {
  int64_t height, width;
  int64_t size() const { return height * width; }
};

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

// Tiles that lie side by side are staged together: their rows, a vector for each pixel.
constexpr int64_t longest_run = 16;
constexpr int64_t longest_row = longest_run * side;  // in pixels, and so enough for all sizes of a tile

struct alignas(64) Staged {
  float at[side * longest_row * lanes];
};

// body(first, count) for each run of the tiles from `begin` to `end`.
template <class Body>
static inline void for_runs(const Grid& grid, int64_t begin, int64_t end, const Body& body) {
  for (int64_t first = begin; first < end;) {
    const int64_t row_end = (first / grid.across + 1) * grid.across;
    const int64_t count = smaller(longest_run, smaller(row_end, end) - first);
    body(first, count);
    first += count;
  }
}

// The pixels [row, row + rows) x [column, column + columns) of some channels of an image, zeros outside of it.
static inline void stage(const Planes& from, Extent extent, int64_t row, int64_t column, int64_t rows, int64_t columns, float* to) {
  const int64_t left = smaller(columns, larger(0, -column)), right = larger(left, smaller(columns, extent.width - column));
  for (int64_t i = row; i < row + rows; i++, to += columns * lanes) {
    if (i < 0 || i >= extent.height) {
      fill_zeros(to, columns);
      continue;
    }
    fill_zeros(to, left);
    if (right > left) read_lanes(from, i * extent.width + column + left, right - left, to + left * lanes, right - left, 0);
    fill_zeros(to + right * lanes, columns - right);
  }
}

// The values at the points of the tiles [begin, end), for the channels of `planes(image)`: to(tile - begin)[point * stride].
template <class M, int64_t kept = lanes, class PlanesOf, class To>
static inline void transform_tiles(
    const Grid& grid, int64_t begin, int64_t end, const PlanesOf& planes, Extent extent, const int64_t pad[2], const To& to, int64_t stride) {
  constexpr int64_t reach = M::matrix.columns;
  Staged staged;
  for_runs(grid, begin, end, [&](int64_t first, int64_t count) {
    const Tile tile = grid.tile(first);
    const int64_t columns = (count - 1) * grid.size + reach, pitch = columns * lanes;
    stage(planes(tile.image), extent, tile.row - pad[0], tile.column - pad[1], reach, columns, staged.at);
    for (int64_t i = 0; i < count; i++)
      to_points<M, kept>(staged.at + i * grid.size * lanes, pitch, to(first - begin + i), stride);
  });
}

// The inverse, from[point * stride + (tile - begin) * step], to the pixels of the tiles that the image has, finished; `others` has the
// planes of what is added, if anything is.
template <int size, class PlanesOf, class OthersOf>
static inline void store_tiles(
    const Grid& grid, int64_t begin, int64_t end, const float* from, int64_t stride, int64_t step, const PlanesOf& planes, Extent extent,
    Finish finish, const OthersOf& others) {
  Staged staged;
  for_runs(grid, begin, end, [&](int64_t first, int64_t count) {
    const Tile tile = grid.tile(first);
    const int64_t pitch = count * size * lanes;
    for (int64_t i = 0; i < count; i++)
      from_points<size>(from + (first - begin + i) * step, stride, staged.at + i * size * lanes, pitch);
    const Planes to = planes(tile.image);
    for (int64_t i = 0; i < smaller(size, extent.height - tile.row); i++) {
      const int64_t pixel = (tile.row + i) * extent.width + tile.column, pixels = smaller(count * size, extent.width - tile.column);
      float* const row = staged.at + i * pitch;
      if (finish.is_needed()) {
        const float* const other = finish.other() ? others(tile.image, pixel) : nullptr;
        for (int64_t j = 0; j < pixels; j++) {
          const Vec sum = Vec::load(row + j * lanes);
          finish.note(sum, [&] { return tile.image * extent.size() + pixel + j; });
          finish(sum, other ? Vec::load(other + j * to.step, to.count) : Vec::zero()).store(row + j * lanes);
        }
      }
      write_lanes(to, pixel, pixels, row);
    }
  });
}

// result [images][groups * rows] = source [images][groups * depth] with the windows w. backward_data is the forward convolution
// of the gradient of y with the windows turned by half a turn, and another padding (below 0 where that of x is wide).
struct Mapping {
  float *source, *result;
  ConvTensors tensors;
  bool channels_last;
  int64_t images, groups, depth, rows;
  Extent from, to;
  int64_t pad[2];
  int64_t row_step, depth_step;  // from one window to the next: w is [rows][depth] or [depth][rows]
  bool turned;

  Mapping(const ConvProblem& p, Op op, const ConvTensors& t) : tensors(t), channels_last(t.channels_last), images(p.n), groups(p.groups) {
    const bool forward = op == Op::forward;
    const Extent x = {p.in[1], p.in[2]}, y = {p.out[1], p.out[2]};
    const int64_t gc = group_c(p), gk = group_k(p);
    source = static_cast<float*>(forward ? t.x : t.y);
    result = static_cast<float*>(forward ? t.y : t.x);
    depth = forward ? gc : gk, rows = forward ? gk : gc;
    from = forward ? x : y, to = forward ? y : x;
    for (int i = 0; i < 2; i++) pad[i] = forward ? p.pad[i + 1] : p.window[i + 1] - 1 - p.pad[i + 1];
    row_step = forward ? gc : 1, depth_step = forward ? 1 : gc;
    turned = !forward;
  }
  int64_t depth_blocks() const { return divide_up(depth, lanes); }
  int64_t row_panels() const { return divide_up(rows, tile_columns); }
  int64_t padded_rows() const { return row_panels() * tile_columns; }

  // A vector of the source's channels of a group.
  auto sources(int64_t group, int64_t block) const {
    return [=, this](int64_t image) {
      const int count = int(smaller(lanes, depth - block * lanes));
      const int64_t first = group * depth + block * lanes, all = groups * depth;
      return planes_of(source + image * all * from.size(), from.size(), all, channels_last, first, count);
    };
  }
  Finish finish(int64_t group, int64_t row) const { return {tensors, group * rows + row, int(smaller(lanes, rows - row))}; }
  // Where the channels from `row` on of what is added begin, at a pixel; channels_last.
  auto others(int64_t group, int64_t row) const {
    return [=, this](int64_t image, int64_t pixel) {
      return tensors.epilogue->other + (image * to.size() + pixel) * groups * rows + group * rows + row;
    };
  }
  auto results(int64_t group, int64_t row) const {
    return [=, this](int64_t image) {
      const int count = int(smaller(lanes, rows - row));
      return planes_of(result + image * groups * rows * to.size(), to.size(), groups * rows, channels_last, group * rows + row, count);
    };
  }
};

// Terms that are added up at once: the order of each sum, so the same on every ISA. Few, since the transform back adds up errors of many
// points, relative to values that may be larger than the result.
constexpr int64_t sum_block = 32;
static_assert(sum_block % lanes == 0 && tile_columns % lanes == 0);

static inline int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }

// An odd number of cache lines, lest the 36 values of a transform compete for the same ways of a cache.
static inline int64_t apart(int64_t floats) { return (divide_up(floats, 16) | 1) * 16; }

// The product of a tile, as far as its first `rows` need it: by thirds.
template <bool accumulate, int64_t step>
static inline auto product_of(int64_t rows) {
  constexpr int third = (tile_rows + 2) / 3;
  return rows > 2 * third ? tile_of_rows<accumulate, tile_rows, step>
         : rows > third   ? tile_of_rows<accumulate, 2 * third, step>
                          : tile_of_rows<accumulate, third, step>;
}

// c [rows][pitch] = or += left * right, sums of `depth` terms, for a panel of `right`; left(row, term) is where its panel of rows begins
// from a term on. Whole thirds of panels of rows are written. `next`: the panel of `right` that is read after this one.
template <class LeftAt>
static inline void multiply(
    int64_t rows, int64_t depth, const LeftAt& left, const float* right, const float* next, float* c, int64_t pitch, bool accumulate) {
  constexpr int64_t step = decltype(left(0, 0))::step;
  const int64_t share = divide_up(sum_block * tile_columns, divide_up(rows, tile_rows) * 16) * 16;
  for (int64_t first = 0; first < depth; first += sum_block, right += sum_block * tile_columns, accumulate = true) {
    const int64_t terms = smaller(sum_block, depth - first);
    const float* ahead = first + terms < depth ? right + terms * tile_columns : next;
    for (int64_t i = 0; i < rows; i += tile_rows, ahead += share) {
      for (int64_t j = 0; j < share; j += 16) __builtin_prefetch(ahead + j);
      (accumulate ? product_of<true, step> : product_of<false, step>)(rows - i)(terms, left(i, first), right, c + i * pitch, pitch);
    }
  }
}

// Transformed tiles as the left factor: [panel of tiles][vector of channels][tile_rows][lanes].
struct Sources {
  float* data;
  int64_t vectors;  // of channels
  float* at(int64_t tile, int64_t vector) const {
    return data + ((tile / tile_rows * vectors + vector) * tile_rows + tile % tile_rows) * lanes;
  }
  Left<lanes> operator()(int64_t tile, int64_t term) const { return {at(tile, term / lanes), 1, lanes, tile_rows * lanes}; }
  static int64_t size(int64_t tiles, int64_t vectors) { return round_up(tiles, tile_rows) * vectors * lanes; }
};

// Floats from one point to the next of a group's transformed windows: [point][panel of rows][depth][tile_columns].
static inline int64_t filters_apart(const Mapping& m) { return apart(m.padded_rows() * m.depth); }

template <int taps>
static void transform_filters(const Mapping& m, const float* w, float* to, const Parallel& parallel) {
  const int64_t stride = filters_apart(m);
  parallel_for(parallel, m.groups * m.row_panels(), [&](int64_t task, int) {
    const int64_t group = task / m.row_panels(), panel = task % m.row_panels();
    float* packed = to + group * points * stride + panel * m.depth * tile_columns;
    for (int64_t depth = 0; depth < m.depth; depth++, packed += tile_columns)
      for (int64_t first = 0; first < tile_columns; first += lanes) {
        alignas(64) float windows[taps * taps * lanes] = {};
        for (int64_t lane = 0; lane < smaller(lanes, m.rows - panel * tile_columns - first); lane++) {
          const int64_t row = panel * tile_columns + first + lane;
          const float* window = w + (group * m.rows * m.depth + row * m.row_step + depth * m.depth_step) * taps * taps;
          for (int i = 0; i < taps * taps; i++) windows[i * lanes + lane] = window[m.turned ? taps * taps - 1 - i : i];
        }
        to_points<FilterMatrix<taps>>(windows, taps * lanes, packed + first, stride);
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

static inline void winograd_reasons(const ConvProblem& p, Op, Reasons& reasons) {
  const int64_t taps = p.window[1];
  reasons.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  reasons.add_if(p.window[0] != 1 || p.window[2] != taps || (taps != 3 && taps != 5), "it needs a window of 3x3 or 5x5");
  reasons.add_if(!has_unit(p.stride), "it needs stride 1; this layer has {stride}");
  reasons.add_if(!has_unit(p.dilation), "it needs dilation 1; this layer has {dilation}");
}

// Found by search, not proven: 1.2e-5 is about twice the worst of some thousand problems of up to 512 channels (normal, uniform and tiny
// data, data times 2^-20 to 2^20, one outlier of 1e4). Where all channels are alike and all roundings go one way, they add up: 241 * 2^-24
// at 256 channels was the worst, most of it by the chain of additions, which is sum_block and a part of the depth. Weight gradients: some
// 280 * 2^-24, where the images and their gradients are large in places that never meet.
static inline double winograd_error(const ConvProblem& p, Op op) {
  const double channels = double(op == Op::forward ? group_c(p) : group_k(p));
  return or_gemm_error(op == Op::backward_weight ? 2.9e-5 : 0x1p-24 * (280 + channels / 5), p, op);
}

constexpr ConvAlgorithm winograd_by(
    const char* name, decltype(ConvAlgorithm::reasons) reasons, decltype(ConvAlgorithm::workspace) workspace,
    decltype(ConvAlgorithm::run) run) {
  return {
      .name = name,
      .reasons = reasons,
      .workspace = workspace,
      .error = winograd_error,
      .run = run,
      .spreads_nonfinite = true,
      .most_spread = 8,
      .reads_channels_last = true,
      .finishes = true,
      .prepared_size = winograd_prepared_size,
      .prepare = winograd_prepare,
      .prepared_for_all_sizes = true,
  };
}

}  // namespace
}  // namespace msctx::MSCTX_ISA
