// Convolution by Fourier transforms: what fft and fft_tiling share. 2-D, float32.
//
// Strides and dilations (polyphase). Along an axis, let period be the least common multiple of stride and dilation, and
//   t = phase + v * period / dilation,  0 <= phase < period / dilation,  the taps of the window,
//   o = residue + i * period / stride,  0 <= residue < period / stride,  the outputs.
// Counted from the first element of the padding, tap t of the window of o lies at
//   o * stride + t * dilation = (i + v) * period + residue * stride + phase * dilation.
// So for each residue the outputs are a sum, over channels and phases, of plain correlations: the one of x's elements for
// residue and phase (each element is in one such set at most) with the phase's taps. A channel and a phase together are
// called a part here, an image and a residue an item.
//
// In the frequency domain these are products of spectra, separately for each frequency:
//   forward          Y[n][k]    = sum over parts of X[n][part] conj(W[k][part])
//   backward_data    X[n][part] = sum over k of Y[n][k] W[k][part]
//   backward_weight  W[k][part] = sum over n of X[n][part] conj(Y[n][k])
// with n for the items. x and y may be transformed in tiles; then each tile is an item. The spectra of the weights, which know
// neither images nor tiles, are the prepared form of them that forward and backward_data read.
#pragma once

#include <new>

#include "msctx/bounds.h"
#include "msctx/fft.h"

namespace msctx::MSCTX_ISA {

// Along one axis: how many phases and residues there are, with taps and with outputs, and how far the taps (outputs) of one
// are apart.
struct Polyphase {
  int64_t period, phases, tap_step, residues, output_step;
};

static inline Polyphase polyphase(const ConvProblem& p, int axis) {
  const int64_t stride = p.stride[axis], dilation = p.dilation[axis];
  int64_t divisor = stride, rest = dilation;  // Euclid's
  while (rest != 0) {
    const int64_t next = divisor % rest;
    divisor = rest;
    rest = next;
  }
  const int64_t tap_step = stride / divisor, output_step = dilation / divisor;
  return {stride * output_step, smaller(tap_step, p.window[axis]), tap_step, smaller(output_step, p.out[axis]), output_step};
}

// The largest numbers of taps of a phase, and of outputs of a residue.
static inline int64_t most_taps(const ConvProblem& p, int axis) {
  return divide_up(p.window[axis], polyphase(p, axis).tap_step);
}
static inline int64_t most_outputs(const ConvProblem& p, int axis) {
  return divide_up(p.out[axis], polyphase(p, axis).output_step);
}

// The taps of a phase, at v, the outputs of a residue, at i, and the elements of x that these meet, at i + v.
static inline Lattice all_taps(const ConvProblem& p, int axis, int64_t phase) {
  const int64_t step = polyphase(p, axis).tap_step;
  return {0, divide_up(p.window[axis] - phase, step), phase, step};
}
static inline Lattice all_outputs(const ConvProblem& p, int axis, int64_t residue) {
  const int64_t step = polyphase(p, axis).output_step;
  return {0, divide_up(p.out[axis] - residue, step), residue, step};
}
static inline Lattice image_lattice(const ConvProblem& p, int axis, int64_t phase, int64_t residue) {
  const int64_t period = polyphase(p, axis).period;
  const int64_t origin = p.pad[axis] - residue * p.stride[axis] - phase * p.dilation[axis];  // where x's element 0 is
  const int64_t begin = origin > 0 ? divide_up(origin, period) : 0;
  const int64_t end_of_x = p.in[axis] + origin > 0 ? divide_up(p.in[axis] + origin, period) : 0;
  const int64_t end = smaller(all_taps(p, axis, phase).count + all_outputs(p, axis, residue).count - 1, end_of_x);
  return {begin, larger(0, end - begin), begin * period - origin, period};
}

// A range of indices.
struct Span {
  int64_t begin = 0, end = 0;
  bool empty() const { return end == 0; }
  void add(int64_t from, int64_t to) {
    begin = empty() ? from : smaller(begin, from);
    end = larger(end, to);
  }
};

// All indices that elements of x have, whatever the phase and residue.
static inline Span image_span(const ConvProblem& p, int axis) {
  const Polyphase all = polyphase(p, axis);
  Span span;
  for (int64_t phase = 0; phase < all.phases; phase++)
    for (int64_t residue = 0; residue < all.residues; residue++) {
      const Lattice image = image_lattice(p, axis, phase, residue);
      if (image.count > 0) span.add(image.first, image.end());
    }
  return span;
}

// The taps of a phase and the outputs of a residue that are written, or read. Of the latter those are left out that meet
// nothing but padding: they have no part in the result, but the errors of a transform are those of its largest element.
static inline Lattice window_lattice(const ConvProblem& p, Op op, int axis, int64_t phase) {
  const Lattice taps = all_taps(p, axis, phase);
  if (op == Op::backward_weight) return taps;
  Span met;
  for (int64_t residue = 0; residue < polyphase(p, axis).residues; residue++) {
    const Lattice image = image_lattice(p, axis, phase, residue);
    if (image.count > 0) met.add(larger(0, image.first - all_outputs(p, axis, residue).count + 1), image.end());
  }
  return between(taps, met.begin, met.end);
}
static inline Lattice output_lattice(const ConvProblem& p, Op op, int axis, int64_t residue) {
  const Lattice outputs = all_outputs(p, axis, residue);
  if (op == Op::forward) return outputs;
  Span met;
  for (int64_t phase = 0; phase < polyphase(p, axis).phases; phase++) {
    const Lattice image = image_lattice(p, axis, phase, residue);
    if (image.count > 0) met.add(larger(0, image.first - all_taps(p, axis, phase).count + 1), image.end());
  }
  return between(outputs, met.begin, met.end);
}

// How an axis is cut into tiles. Index 0 of the transform of tile j is the index begin + j * step of the whole. Of x and of y
// only the indices in the tile between first_ and end_ take part; results of different tiles are different elements.
struct Tiles {
  int64_t length, count, begin, step;
  int64_t first_x, end_x, first_y, end_y;
};

static inline Lattice in_tile(const Tiles& tiles, int64_t tile, const Lattice& l, int64_t first, int64_t end) {
  const int64_t origin = tiles.begin + tile * tiles.step;
  return shifted(between(l, origin + first, origin + end), -origin);
}
static inline Lattice x_in_tile(const Tiles& tiles, int64_t tile, const Lattice& l) {
  return in_tile(tiles, tile, l, tiles.first_x, tiles.end_x);
}
static inline Lattice y_in_tile(const Tiles& tiles, int64_t tile, const Lattice& l) {
  return in_tile(tiles, tile, l, tiles.first_y, tiles.end_y);
}

// What a transform of the axis (1: down, 2: across) can do. Down, whole blocks of frequencies are preferred if they cost less
// than 1/8.
static inline int64_t good_length(int axis, int64_t length) {
  if (axis == 2) return good_size(length);
  const int64_t half = good_size(divide_up(length, 2)), whole = lanes * good_size(divide_up(half, lanes));
  return 2 * (whole - half <= half / 8 ? whole : half);
}

// A matrix of blocks of 16 complex numbers.
struct Blocks {
  float* at;
  int64_t row, column;  // distances in blocks
  float* block(int64_t i, int64_t j) const { return at + (i * row + j * column) * row_floats; }
};

// result[i][j] = or += the sum over l, from `begin` to `end`, of a[i][l] * b[j][l], or of a[i][l] * conj(b[j][l]).
struct Product {
  Blocks a, b, result;
  int64_t begin, end;
  bool add;
};

// The longest sum that is computed in one go. Longer ones are added up from such: the errors grow with the square root only,
// and that much of a block's columns stays in the first-level cache while all rows pass by.
constexpr int64_t longest_sum = 32;

// Results that stay in registers, beside one column and the block's rows.
constexpr int block_rows = Vec::width == 16 ? 3 : 2, block_columns = Vec::width == 16 ? 4 : 2;

// For `rows` times `columns` results from i and j on.
template <bool conjugate, int rows, int columns>
static inline void multiply_block(const Product& product, int64_t i, int64_t j) {
  for (int lane = 0; lane < lanes; lane += Vec::width) {
    Complex sum[rows][columns];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++) sum[r][c] = {Vec::zero(), Vec::zero()};
    for (int64_t l = product.begin; l < product.end; l++) {
      // Spectra of weights come from memory, in runs too short to be foreseen: each block of rows prefetches a column to come.
      const float* const next = product.b.block(j + columns + i / block_rows % columns, l);
      for (int line = 0; line < row_floats; line += lanes) __builtin_prefetch(next + line);
      Complex left[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++) {
        const float* at = product.a.block(i + r, l) + lane;
        left[r] = {Vec::load(at), Vec::load(at + lanes)};
      }
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++) {
        const float* at = product.b.block(j + c, l) + lane;
        const Complex right = {Vec::load(at), Vec::load(at + lanes)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
          Complex& s = sum[r][c];
          s.re = fma(left[r].re, right.re, s.re);
          s.im = fma(left[r].im, right.re, s.im);
          s.re = conjugate ? fma(left[r].im, right.im, s.re) : fnma(left[r].im, right.im, s.re);
          s.im = conjugate ? fnma(left[r].re, right.im, s.im) : fma(left[r].re, right.im, s.im);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++) {
        float* at = product.result.block(i + r, j + c) + lane;
        Complex s = sum[r][c];
        if (product.add) s = Complex{Vec::load(at), Vec::load(at + lanes)} + s;
        s.re.store(at);
        s.im.store(at + lanes);
      }
  }
}

// For the rows from i to `last`: blocks of `rows` of them, and a smaller one at the end.
template <bool conjugate, int rows, int columns>
static inline void multiply_rows(const Product& product, int64_t i, int64_t last, int64_t j) {
  for (; i + rows <= last; i += rows) multiply_block<conjugate, rows, columns>(product, i, j);
  if constexpr (rows > 1)
    if (i < last) multiply_rows<conjugate, rows - 1, columns>(product, i, last, j);
}

// The same for all rows and the columns from j to `last`.
template <bool conjugate, int columns>
static inline void multiply_columns(const Product& product, int64_t rows, int64_t j, int64_t last) {
  for (; j + columns <= last; j += columns) multiply_rows<conjugate, block_rows, columns>(product, 0, rows, j);
  if constexpr (columns > 1)
    if (j < last) multiply_columns<conjugate, columns - 1>(product, rows, j, last);
}

// The whole sum, of `depth`.
template <bool conjugate>
static inline void multiply(int64_t rows, int64_t first, int64_t last, int64_t depth, const Blocks& a, const Blocks& b,
                            const Blocks& result, bool add) {
  for (int64_t begin = 0; begin < depth; begin += longest_sum) {
    const Product product = {a, b, result, begin, smaller(depth, begin + longest_sum), add || begin > 0};
    multiply_columns<conjugate, block_columns>(product, rows, first, last);
  }
}

// Memory for prepare(), which is given none.
struct Floats {
  float* const at;
  explicit Floats(int64_t count) : at(static_cast<float*>(::operator new(size_t(count) * sizeof(float), alignment))) {}
  ~Floats() { ::operator delete(at, alignment); }
  Floats(const Floats&) = delete;

 private:
  static constexpr std::align_val_t alignment{64};
};

// Whether there are taps or outputs that meet nothing but padding, and so are not transformed.
static inline bool leaves_out(const ConvProblem& p, Op op, int axis) {
  const Polyphase all = polyphase(p, axis);
  for (int64_t phase = 0; phase < all.phases; phase++)
    if (window_lattice(p, op, axis, phase).count < all_taps(p, axis, phase).count) return true;
  for (int64_t residue = 0; residue < all.residues; residue++)
    if (output_lattice(p, op, axis, residue).count < all_outputs(p, axis, residue).count) return true;
  return false;
}

// Padding is zeros, and zero times Inf is NaN: if what is left out is not finite, a NaN at `place`, in the result or in a
// spectrum of which it is made, has conv_run compute it again. (The gradient of x does not depend on what is left out.)
static inline void mark_nonfinite(const ConvProblem& p, Op op, const float* from, int64_t count, float* place) {
  if (op == Op::backward_data || !(leaves_out(p, op, 1) || leaves_out(p, op, 2))) return;
  float sum = 0.0f;
  for (int64_t i = 0; i < count; i++) sum += from[i] - from[i];  // zero or NaN
  if (sum != 0.0f) *place = sum;
}

// An odd number of blocks, lest those that are used together compete for the same ways of a cache.
static inline int64_t apart(int64_t blocks) { return blocks | 1; }

// The spectra lie as [block of 16 frequencies][item or k][part or k] blocks, so that each frequency's product is of neighbours.
struct SpectralConv {
  const ConvProblem& p;
  const Op op;
  const Tiles down, across;
  Polyphase poly_down = polyphase(p, 1), poly_across = polyphase(p, 2);
  int64_t phase_count = poly_down.phases * poly_across.phases;
  int64_t x_parts = p.c * phase_count, w_parts = group_c(p) * phase_count;
  int64_t items = p.n * poly_down.residues * poly_across.residues * down.count * across.count;
  Fft2d plan = make_fft2d(down.length, across.length);
  int64_t spectrum_bytes = plan.blocks() * row_floats * int64_t(sizeof(float));
  int64_t items_at_once = items_in_memory();
  float *x_spectra = nullptr, *w_spectra = nullptr, *y_spectra = nullptr, *scratch = nullptr;

  // So many that the weights' spectra are read rarely, and no more memory is taken than they take, or 8 MiB, or one item.
  int64_t items_in_memory() const {
    const int64_t budget = larger(p.k * w_parts * spectrum_bytes, 8 << 20);
    return larger(1, smaller(items, budget / ((x_parts + p.k) * spectrum_bytes)));
  }

  int64_t table_floats() const { return round_up(plan.table_floats(), lanes); }
  // Distances between blocks of frequencies.
  int64_t x_stride() const { return apart(items_at_once * x_parts) * row_floats; }
  int64_t y_stride() const { return apart(items_at_once * p.k) * row_floats; }
  int64_t w_stride() const { return apart(p.k * w_parts) * row_floats; }

  bool is_prepared() const { return op != Op::backward_weight; }  // else the weights are the result
  int64_t x_floats() const { return plan.blocks() * x_stride(); }
  int64_t y_floats() const { return plan.blocks() * y_stride(); }
  int64_t w_floats() const { return plan.blocks() * w_stride(); }
  size_t prepared_size() const { return is_prepared() ? size_t(w_floats()) * sizeof(float) : 0; }
  size_t workspace(int threads) const {
    const int64_t spectra = x_floats() + y_floats() + (is_prepared() ? 0 : w_floats());
    return size_t(table_floats() + threads * plan.scratch_floats() + spectra) * sizeof(float);
  }

  float* scratch_of(int slot) const { return scratch + slot * plan.scratch_floats(); }

  struct Item {
    int64_t image, residue_down, residue_across, tile_down, tile_across;
  };
  Item item(int64_t index) const {
    const int64_t tile = index / across.count, residue = tile / down.count, above = residue / poly_across.residues;
    return {above / poly_down.residues, above % poly_down.residues, residue % poly_across.residues, tile % down.count,
            index % across.count};
  }

  // Transforms to or from the spectra, for the items from `first` on.
  void transform_x(float* x, int64_t first, int64_t count, bool inverse, const Parallel& parallel) const {
    parallel_for(parallel, count * x_parts, [&](int64_t task, int slot) {
      const int64_t part = task % x_parts, phase = part % phase_count;
      const int64_t phase_down = phase / poly_across.phases, phase_across = phase % poly_across.phases;
      const Item at = item(first + task / x_parts);
      float* plane = x + (at.image * p.c + part / phase_count) * volume(p.in);
      const Lattice rows = x_in_tile(down, at.tile_down, image_lattice(p, 1, phase_down, at.residue_down));
      const Lattice columns = x_in_tile(across, at.tile_across, image_lattice(p, 2, phase_across, at.residue_across));
      transform_plane({x_spectra + task * row_floats, x_stride()}, plane, p.in[2], rows, columns, inverse, slot);
    });
  }
  void transform_y(float* y, int64_t first, int64_t count, bool inverse, const Parallel& parallel) const {
    parallel_for(parallel, count * p.k, [&](int64_t task, int slot) {
      const Item at = item(first + task / p.k);
      float* plane = y + (at.image * p.k + task % p.k) * volume(p.out);
      const Lattice rows = y_in_tile(down, at.tile_down, output_lattice(p, op, 1, at.residue_down));
      const Lattice columns = y_in_tile(across, at.tile_across, output_lattice(p, op, 2, at.residue_across));
      transform_plane({y_spectra + task * row_floats, y_stride()}, plane, p.out[2], rows, columns, inverse, slot);
    });
  }
  void transform_w(float* w, bool inverse, const Parallel& parallel) const {
    parallel_for(parallel, p.k * w_parts, [&](int64_t task, int slot) {
      float* plane = w + task / phase_count * volume(p.window);
      const Lattice rows = window_lattice(p, op, 1, task % phase_count / poly_across.phases);
      const Lattice columns = window_lattice(p, op, 2, task % poly_across.phases);
      transform_plane({w_spectra + task * row_floats, w_stride()}, plane, p.window[2], rows, columns, inverse, slot);
    });
  }
  void transform_plane(Spectrum s, float* plane, int64_t pitch, const Lattice& rows, const Lattice& columns, bool inverse,
                       int slot) const {
    if (inverse)
      inverse_2d(plan, s, scratch_of(slot), plane, pitch, rows, columns);
    else
      forward_2d(plan, plane, pitch, rows, columns, scratch_of(slot), s);
  }

  // The products for `count` items; those of the weights are added to what is there if `add`.
  void multiply_spectra(int64_t count, bool add, const Parallel& parallel) const {
    constexpr int64_t slice = 32;  // columns of the result in a task
    const int64_t gk = group_k(p), columns = op == Op::backward_data ? w_parts : gk, slices = divide_up(columns, slice);
    parallel_for(parallel, plan.blocks() * slices, [&](int64_t task, int) {
      const int64_t block = task / slices, first = task % slices * slice, last = smaller(columns, first + slice);
      for (int64_t g = 0; g < p.groups; g++) {
        float* x = x_spectra + block * x_stride() + g * w_parts * row_floats;
        float* y = y_spectra + block * y_stride() + g * gk * row_floats;
        float* w = w_spectra + block * w_stride() + g * gk * w_parts * row_floats;
        if (op == Op::forward)
          multiply<true>(count, first, last, w_parts, {x, x_parts, 1}, {w, w_parts, 1}, {y, p.k, 1}, add);
        else if (op == Op::backward_data)
          multiply<false>(count, first, last, gk, {y, p.k, 1}, {w, 1, w_parts}, {x, x_parts, 1}, add);
        else
          multiply<true>(w_parts, first, last, count, {x, 1, x_parts}, {y, 1, p.k}, {w, 1, w_parts}, add);
      }
    });
  }

  void prepare(const float* w, float* prepared, const Parallel& parallel) {
    const Floats memory(table_floats() + parallel.threads * plan.scratch_floats());
    fill_tables(plan, memory.at);
    scratch = memory.at + table_floats();
    w_spectra = prepared;
    transform_w(const_cast<float*>(w), false, parallel);
    mark_nonfinite(p, op, w, w_size(p), w_spectra);
  }

  void run(const ConvTensors& t, const Prepared& weight, float* memory, const Parallel& parallel) {
    fill_tables(plan, memory);
    scratch = memory + table_floats();
    x_spectra = scratch + parallel.threads * plan.scratch_floats();
    y_spectra = x_spectra + x_floats();
    w_spectra = is_prepared() ? static_cast<float*>(const_cast<void*>(weight())) : y_spectra + y_floats();
    float *x = static_cast<float*>(t.x), *w = static_cast<float*>(t.w), *y = static_cast<float*>(t.y);
    for (int64_t first = 0; first < items; first += items_at_once) {
      const int64_t count = smaller(items_at_once, items - first);
      if (op != Op::backward_data) transform_x(x, first, count, false, parallel);
      if (op != Op::forward) transform_y(y, first, count, false, parallel);
      multiply_spectra(count, op == Op::backward_weight && first > 0, parallel);
      if (op == Op::forward) transform_y(y, first, count, true, parallel);
      if (op == Op::backward_data) transform_x(x, first, count, true, parallel);
    }
    if (is_prepared()) return;
    transform_w(w, true, parallel);
    mark_nonfinite(p, op, y, y_size(p), w);
  }
};

static inline void write_zeros(float* to, int64_t count, const Parallel& parallel) {
  constexpr int64_t slice = 1 << 16;
  parallel_for(parallel, divide_up(count, slice), [&](int64_t task, int) {
    std::memset(to + task * slice, 0, size_t(smaller(slice, count - task * slice)) * sizeof(float));
  });
}

// The functions of a ConvAlgorithm. tiles_of(p, op, axis) gives the Tiles of the axes 1 and 2; they must not depend on n.
template <Tiles tiles_of(const ConvProblem&, Op, int)>
struct Spectral {
  static SpectralConv of(const ConvProblem& p, Op op) { return {p, op, tiles_of(p, op, 1), tiles_of(p, op, 2)}; }

  static void reasons(const ConvProblem& p, Op, Reasons& reasons) {
    reasons.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  }
  static size_t workspace(const ConvProblem& p, Op op, int threads) { return of(p, op).workspace(threads); }

  // Measured: 1.4e-6, and 5.6e-6 for weights, of which there may be so few that all nearly cancel.
  static double error(const ConvProblem& p, Op op) { return or_gemm_error(op == Op::backward_weight ? 1e-5 : 5e-6, p, op); }

  static bool run(
      const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
    // Not all elements of x need be in a phase with taps, or be reached.
    if (op == Op::backward_data) write_zeros(static_cast<float*>(t.x), x_size(p), parallel);
    of(p, op).run(t, weight, static_cast<float*>(workspace), parallel);
    return true;
  }
  static size_t prepared_size(const ConvProblem& p, Op op, int) { return of(p, op).prepared_size(); }
  static void prepare(const ConvProblem& p, Op op, int, const void* w, void* prepared, const Parallel& parallel) {
    of(p, op).prepare(static_cast<const float*>(w), static_cast<float*>(prepared), parallel);
  }
  static constexpr ConvAlgorithm called(const char* name) {
    return {
        .name = name,
        .reasons = reasons,
        .workspace = workspace,
        .error = error,
        .run = run,
        .spreads_nonfinite = true,
        .most_spread = 16,
        .prepared_size = prepared_size,
        .prepare = prepare,
    };
  }
};

}  // namespace msctx::MSCTX_ISA
