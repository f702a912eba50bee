// depthwise: one channel of the input for each group. Channels are lanes, in either layout: blocks of them are copied (channels-first
// ones are transposed) with zeros around, or read in place (channels_last of large images), and all three products are then sums of the
// same kind; see depthwise.h.

#include "msctx/depthwise.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int64_t most_parts = 8;     // of the images, whose weight gradients are summed side by side
constexpr int64_t blocks_summed = 16; // of rows_at_once() rows, in one piece of the weight gradient
constexpr int64_t piece_size = 512;  // results of a channel in one task, about
constexpr int64_t most_together = 4;   // blocks of channels that are read in place
constexpr int64_t enough_pixels = 8;  // of an image for each tap, so that most of them are far from its borders: it is read where it lies

static inline int64_t multiplier(const ConvProblem& p) { return group_k(p); }
static inline int64_t reach(const ConvProblem& p, int axis) { return (p.window[axis] - 1) * p.dilation[axis]; }
static inline int64_t divide_down(int64_t a, int64_t b) { return a >= 0 ? a / b : -divide_up(-a, b); }
static inline int64_t blocks(int64_t channels) { return divide_up(channels, lanes); }
static inline int count_of(int64_t channels, int64_t block) { return int(smaller(lanes, channels - block * lanes)); }

// The source along one axis as it is copied for results (forward, backward_data) or rows of y (backward_weight) `first` to `last`:
// `extent` elements from `origin` of the tensor on.
struct Window {
  int64_t origin, extent;
};
Window window_of(const ConvProblem& p, Op op, int axis, int64_t first, int64_t last) {
  const int64_t count = last - first, s = p.stride[axis];
  if (op != Op::backward_data) return {first * s - p.pad[axis], (count - 1) * s + reach(p, axis) + 1};
  const int64_t origin = divide_down(first + p.pad[axis] - reach(p, axis), s);
  return {origin, divide_down(last - 1 + p.pad[axis], s) - origin + 1};
}
Window rows_of(const ConvProblem& p, Op op, int64_t first, int64_t last) { return window_of(p, op, 1, first, last); }
// That of the largest of all pieces of so many rows: the last is shorter, and backward_data's begin at any phase.
int64_t most_extent(const ConvProblem& p, Op op, int64_t rows, int64_t all) {
  int64_t most = 0;
  for (int64_t first = 0; first < all; first += rows) most = larger(most, rows_of(p, op, first, smaller(all, first + rows)).extent);
  return most;
}
// Rows of the tensor are copied whole. The length is odd, so that neighbours in a column do not share a set of the cache.
Window columns_of(const ConvProblem& p, Op op) {
  const bool data = op == Op::backward_data;
  const Window w = window_of(p, op, 2, 0, data ? p.in[2] : p.out[2]);
  const int64_t origin = smaller(0, w.origin);
  return {origin, larger(w.extent + w.origin - origin, (data ? p.out[2] : p.in[2]) - origin) | 1};
}

// Forward, and backward_weight, where the window and y change places.
SumAxis along(const ConvProblem& p, Op op, int axis, int64_t first, int64_t last, int64_t origin) {
  const int64_t count = last - first, source = first * p.stride[axis] - p.pad[axis] - origin;
  if (op == Op::forward) return {count, 0, 1, p.window[axis], 0, 1, source, p.stride[axis], p.dilation[axis]};
  return {p.window[axis], 0, 1, count, 0, 1, source, p.dilation[axis], p.stride[axis]};
}

// backward_data: every stride-th row of x, from `phase` on, depends on the same taps. They are taken backwards, so that y runs forwards.
SumAxis along_phase(const ConvProblem& p, int axis, int64_t first, int64_t last, int64_t phase, int64_t origin) {
  const int64_t s = p.stride[axis], d = p.dilation[axis], at = first + phase + p.pad[axis];
  SumAxis found{larger(0, divide_up(last - first - phase, s)), phase, s, 0, 0, 0, 0, 1, 1};
  int64_t next = 1;  // from one of the taps to the next
  while (next * d % s != 0) next++;
  for (int64_t tap = 0; tap < smaller(next, p.window[axis]); tap++) {
    if ((at - tap * d) % s != 0) continue;
    found.terms = divide_up(p.window[axis] - tap, next);
    found.kernel = tap + (found.terms - 1) * next;
    found.kernel_step = -next;
    found.source = (at - found.kernel * d) / s - origin;
    found.term_step = next * d / s;
  }
  return found;
}

// Rows of an image from `rows.origin` on, copied with zeros around.
Source read_source(const Planes& from, const int64_t size[3], Window rows, Window columns, float* data) {
  const auto range = [](const Window& w, int64_t extent) {
    const int64_t begin = larger(0, -w.origin);
    return SumRange{begin, larger(begin, smaller(w.extent, extent - w.origin))};
  };
  const Source source{data, range(rows, size[1]), range(columns, size[2]), columns.extent * lanes, lanes, false};
  const auto [top, bottom] = source.rows;
  const auto [left, right] = source.columns;
  fill_zeros(data, smaller(top, rows.extent) * columns.extent);
  for (int64_t r = top; r < bottom; r++) {
    fill_zeros(data + r * source.pitch, left);
    fill_zeros(data + r * source.pitch + right * lanes, columns.extent - right);
  }
  if (bottom < rows.extent) fill_zeros(data + bottom * source.pitch, (rows.extent - bottom) * columns.extent);
  if (top < bottom && left < right)
    read_lanes(
        from, (rows.origin + top) * size[2], (bottom - top) * size[2], data + top * source.pitch + left * lanes, size[2], source.pitch);
  return source;
}

// The weights of a block: those of channels of y (forward), or of channels of x, once for each of the `multiplier` channels of y.
int64_t result_channels(const ConvProblem& p, Op op) { return op == Op::backward_data ? p.c : p.k; }
int64_t weights_of_block(const ConvProblem& p, Op op) { return op == Op::backward_data ? multiplier(p) : 1; }

size_t prepared_size(const ConvProblem& p, Op op, int) {
  if (op == Op::backward_weight) return 0;
  return sizeof(float) * lanes * blocks(result_channels(p, op)) * weights_of_block(p, op) * volume(p.window);
}

void prepare(const ConvProblem& p, Op op, int, const void* w, void* prepared, const Parallel& parallel) {
  const int64_t taps = volume(p.window), each = weights_of_block(p, op);
  parallel_for(parallel, blocks(result_channels(p, op)) * each, [&](int64_t task, int) {
    const int64_t block = task / each;
    auto* weights = const_cast<float*>(static_cast<const float*>(w));
    const Planes planes =
        planes_of(weights, taps, p.k, false, block * lanes * each + task % each, count_of(result_channels(p, op), block), each);
    read_lanes(planes, 0, taps, static_cast<float*>(prepared) + task * taps * lanes, taps, 0);
  });
}

// How many rows of the result one task computes: whole blocks of them. Any number gives the same bits.
int64_t piece(const ConvProblem& p, Op op) {
  const int64_t* size = op == Op::forward ? p.out : p.in;
  const int64_t rows = larger(divide_up(piece_size, larger(1, size[2])), 2 * reach(p, 1));
  return larger(1, smaller(size[1], divide_up(block_of(size[1], rows), most_rows) * most_rows));
}

struct Room {
  int64_t source, result;  // floats
  int64_t all() const { return source + result; }
};
Room room(const ConvProblem& p, Op op) {
  const int64_t rows = piece(p, op), columns = op == Op::forward ? p.out[2] : p.in[2];
  return {most_extent(p, op, rows, op == Op::forward ? p.out[1] : p.in[1]) * columns_of(p, op).extent * lanes, rows * columns * lanes};
}

void results(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& prepared, float* workspace, const Parallel& parallel) {
  const bool data = op == Op::backward_data;
  const int64_t m = multiplier(p), taps = volume(p.window), each = weights_of_block(p, op);
  const int64_t *in = data ? p.out : p.in, *out = data ? p.in : p.out;
  const int64_t read = data ? p.k : p.c, written = data ? p.c : p.k;
  auto *x = static_cast<float*>(data ? t.y : t.x), *y = static_cast<float*>(data ? t.x : t.y);
  const int64_t across = blocks(written), height = piece(p, op), pieces = divide_up(out[1], height);
  const auto* weights = static_cast<const float*>(prepared());
  const Room needed = room(p, op);
  const ConvTensors finished{.epilogue = t.epilogue};  // no peaks
  const bool large = t.channels_last && m == 1 && volume(in) >= enough_pixels * taps;
  const auto compute = [&](int64_t n, int64_t first, int64_t block, int64_t together, bool in_place, int slot) {
    const int64_t last = smaller(first + height, out[1]), channel = block * lanes;
    const int count = count_of(written, block);
    Window columns = columns_of(p, op);
    const Planes planes = planes_of(y + n * written * volume(out), volume(out), written, t.channels_last, channel, count);
    float *source_at = workspace + slot * needed.all(), *result_at = source_at + needed.source;
    Finish none, finish[most_together];
    for (int64_t b = 0; b < together; b++) finish[b] = Finish(finished, channel + b * lanes, count);
    for (int64_t i = 0; i < each; i++) {
      const float* kernel = weights + (block * each + i) * taps * lanes;
      const Zeros zeros = all_finite(kernel, taps) ? Zeros::skipped : data ? Zeros::excluded : Zeros::multiplied;
      Window rows = rows_of(p, op, first, last);
      if (in_place) rows = columns = {0, 0};
      float* const image = x + n * read * volume(in);
      const Source source =
          in_place ? Source{image + channel, {0, in[1]}, {0, in[2]}, in[2] * read, read, true}
                   : read_source(
                         data ? planes_of(image, volume(in), read, t.channels_last, channel * m + i, count, m)
                              : planes_of(image, volume(in), read, t.channels_last, channel, count, 1, m),
                         in, rows, columns, source_at);
      Sums sums{
          {}, {}, kernel, p.window[2] * lanes, source, result_at, out[2] * lanes, lanes, lanes, i > 0, i + 1 < each ? &none : finish};
      sums.blocks = together, sums.kernel_apart = taps * lanes;
      if (t.channels_last) {
        sums.result = y + ((n * out[1] + first) * out[2]) * written + channel;
        sums.result_pitch = out[2] * written;
        sums.result_column = written;
        sums.count = count;
        if (finish->other()) sums.other = finish->other() + (sums.result - y);
      }
      for (int64_t h = 0; h < (data ? p.stride[1] : 1); h++)
        for (int64_t v = 0; v < (data ? p.stride[2] : 1); v++) {
          sums.rows = data ? along_phase(p, 1, first, last, h, rows.origin) : along(p, op, 1, first, last, rows.origin);
          sums.columns = data ? along_phase(p, 2, 0, out[2], v, columns.origin) : along(p, op, 2, 0, out[2], columns.origin);
          run_sums(sums, zeros);
        }
    }
    if (!t.channels_last) write_lanes(planes, first * out[2], (last - first) * out[2], result_at);
  };
  int64_t together = large ? most_together : 1;
  while (parallel.threads > 1 && together > 1 && p.n * pieces * divide_up(across, together) < 2 * parallel.threads) together /= 2;
  const int64_t groups = divide_up(across, together);
  parallel_for(parallel, p.n * pieces * groups, [&](int64_t task, int slot) {
    const int64_t begin = task % groups * together, end = smaller(begin + together, across), whole = smaller(end, written / lanes) - begin;
    const bool in_place = large && whole > 0 && all_finite(weights + begin * taps * lanes, whole * taps);
    for (int64_t block = begin, count; block < end; block += count) {
      count = in_place && block == begin ? whole : 1;
      compute(task / groups / pieces, task / groups % pieces * height, block, count, in_place && block < begin + whole, slot);
    }
  });
}

// Images are summed in parts and those in their order, and within an image pieces of rows: all of them by the problem alone.
int64_t images_of_part(const ConvProblem& p) { return divide_up(p.n, most_parts); }
int64_t parts(const ConvProblem& p) { return p.n ? divide_up(p.n, images_of_part(p)) : 0; }
int64_t gradient_piece(const ConvProblem& p) { return smaller(p.out[1], blocks_summed * rows_at_once(p.out[2])); }

Room gradient_room(const ConvProblem& p) {
  const int64_t rows = gradient_piece(p);
  const int64_t source = most_extent(p, Op::backward_weight, rows, p.out[1]) * columns_of(p, Op::backward_weight).extent;
  return {source * lanes, rows * p.out[2] * lanes};
}

void weight_gradient(const ConvProblem& p, const ConvTensors& t, float* workspace, const Parallel& parallel) {
  constexpr Op op = Op::backward_weight;
  const int64_t taps = volume(p.window), across = blocks(p.k), each = images_of_part(p), height = gradient_piece(p);
  const int64_t in = volume(p.in), out = volume(p.out);
  auto *x = static_cast<float*>(t.x), *y = static_cast<float*>(t.y);
  const Window columns = columns_of(p, op);
  const Room needed = gradient_room(p);
  float *sums_of_parts = workspace, *scratch = workspace + parts(p) * across * taps * lanes;
  parallel_for(parallel, parts(p) * across, [&](int64_t task, int slot) {
    const int64_t block = task % across, part = task / across, channel = block * lanes;
    const int count = count_of(p.k, block);
    float *source_at = scratch + slot * needed.all(), *kernel = source_at + needed.source;
    float* result = sums_of_parts + task * taps * lanes;
    fill_zeros(result, taps);
    const Finish none;
    for (int64_t n = part * each; n < smaller(p.n, (part + 1) * each); n++) {
      const Planes from = planes_of(x + n * p.c * in, in, p.c, t.channels_last, channel, count, 1, multiplier(p));
      const Planes with = planes_of(y + n * p.k * out, out, p.k, t.channels_last, channel, count);
      for (int64_t first = 0; first < p.out[1]; first += height) {
        const int64_t last = smaller(first + height, p.out[1]), positions = (last - first) * p.out[2];
        read_lanes(with, first * p.out[2], positions, kernel, positions, 0);
        const Window rows = rows_of(p, op, first, last);
        const Sums sums{
            along(p, op, 1, first, last, rows.origin), along(p, op, 2, 0, p.out[2], columns.origin), kernel, p.out[2] * lanes,
            read_source(from, p.in, rows, columns, source_at), result, p.window[2] * lanes, lanes, lanes, true, &none};
        run_sums(sums, all_finite(kernel, positions) ? Zeros::skipped : Zeros::multiplied);
      }
    }
  });
  parallel_for(parallel, across, [&](int64_t block, int) {
    const Planes planes = planes_of(static_cast<float*>(t.w), taps, p.k, false, block * lanes, count_of(p.k, block));
    float* total = sums_of_parts + block * taps * lanes;
    for (int64_t part = 1; part < parts(p); part++)
      for (int64_t i = 0; i < taps * lanes; i += lanes)
        (Vec::load(total + i) + Vec::load(total + part * across * taps * lanes + i)).store(total + i);
    write_lanes(planes, 0, taps, total);
  });
}

size_t workspace(const ConvProblem& p, Op op, int threads) {
  if (op != Op::backward_weight) return sizeof(float) * size_t(room(p, op).all() * threads);
  const int64_t kept = larger(1, parts(p)) * blocks(p.k) * volume(p.window) * lanes;
  return sizeof(float) * size_t(kept + gradient_room(p).all() * threads);
}

constexpr size_t most_workspace = 256 << 20;
constexpr const char* too_far = "its strides, padding or dilated window reach too far beyond the image";

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(p.groups < 2 || p.groups != p.c || p.k < p.c, "it computes depthwise convolutions only, one input channel a group");
  why.add_if(reaches_far(p), too_far);
  if (why.count == 0 && !is_empty(p)) why.add_if(workspace(p, op, 1) > most_workspace, too_far);
}

double error(const ConvProblem& p, Op op) {
  if (op != Op::backward_weight) return 0x1p-24 * double(sum_chain(p.window[1], p.window[2]) + weights_of_block(p, op) - 1);
  const int64_t height = gradient_piece(p);
  const int64_t pieces = height ? divide_up(p.out[1], height) * images_of_part(p) : 0;
  return 0x1p-24 * double(sum_chain(height, p.out[2]) + pieces + parts(p));
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& prepared, void* workspace, const Parallel& parallel) {
  if (op == Op::backward_weight)
    weight_gradient(p, t, static_cast<float*>(workspace), parallel);
  else
    results(p, op, t, prepared, static_cast<float*>(workspace), parallel);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_depthwise = {
    .name = "depthwise",
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
    .reads_channels_last = true,
    .finishes = true,
    .prepared_size = prepared_size,
    .prepare = prepare,
};

}  // namespace msctx::MSCTX_ISA
